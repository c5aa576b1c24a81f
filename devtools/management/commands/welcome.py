"""`manage.py welcome`: what `make dev` says before it starts the processes. Where things are, and a login for the admin if
there is none yet."""

from __future__ import annotations

import secrets
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import IntegrityError, transaction

USER = "admin"


class Command(BaseCommand):
    help = "Say where the parts of `make dev` are; make a login for the admin if there is none. For development only."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--web", default="http://127.0.0.1:8000", metavar="URL")
        parser.add_argument("--sandbox", default="http://127.0.0.1:8025", metavar="URL")

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("A login with a printed password is for development (DEBUG) only.")
        password = make_login()
        login = f"user {USER}, password {password}" if password else "with the login that there is"
        web, sandbox = options["web"], options["sandbox"]
        for line in (
            f"  admin   {web}/admin/   {login}",
            f"  API     {web}/v1/messaging/sends",
            f"  inbox   {sandbox}/_sandbox/inbox   every e-mail that the sandbox provider took",
            "A tenant and its key: python manage.py create_tenant acme --name Acme --domain acme.example",
            *(() if password else (f"A new password: python manage.py changepassword {USER}",)),
            "Ctrl-C ends all of it.",
        ):
            self.stdout.write(line)


def make_login() -> str | None:
    """A superuser with a password that is kept nowhere; None if there is a superuser, or somebody has the name."""
    users = get_user_model()._default_manager
    if users.filter(is_superuser=True).exists():
        return None
    password = secrets.token_urlsafe(12)
    try:
        with transaction.atomic():
            users.create_superuser(username=USER, password=password)
    except IntegrityError:
        return None
    return password
