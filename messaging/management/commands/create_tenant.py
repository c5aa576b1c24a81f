"""`create_tenant`: a customer who can send, in one step."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from core.models import ApiKey, Tenant
from messaging.domain.rails import Category
from messaging.models import SenderDomain, TenantAllowance
from messaging.models.allowance import MAX_PRIORITY_BLAST

HELP = """\
Create a tenant with its sender domains and one API key, and print the key: the only time that it is shown.

  python manage.py create_tenant shop --name "The Shop" --domain shop.example

The key alone goes to stdout, everything else to stderr, so a script can keep it:

  KEY=$(python manage.py create_tenant shop --name "The Shop" --domain shop.example)

It may send in every category, and its blasts are marketing, unless told otherwise. More domains, keys and categories
later: in the admin, at the tenant.
"""
EXAMPLE = """\
Try it (202 with an id; whether it arrives is up to the provider and whether it has verified the domain):

  curl -i {url} -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" \\
    -d '{{"category": "transactional", "to": "you@example.org", "from": "hello@{domain}",
         "subject": "Hi", "text": "It works."}}'
"""


class Command(BaseCommand):
    help = HELP

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        # Not Django's formatter, which would flow the examples into the text.
        return super().create_parser(
            prog_name, subcommand, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs
        )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("slug", help="short name used in commands and logs: a–z, 0–9 and hyphens")
        parser.add_argument("--name", required=True, help="name shown to people")
        parser.add_argument(
            "--domain",
            action="append",
            required=True,
            dest="domains",
            help="domain that it may use in `from`, exactly; repeat for more",
        )
        parser.add_argument("--key-name", default="first key", help="what the key is used for (default: %(default)s)")

        names = [category.value for category in Category]
        parser.add_argument(
            "--category",
            action="append",
            default=[],
            dest="categories",
            choices=names,
            help="what its sends may be; repeat for more (default: any)",
        )
        parser.add_argument(
            "--blast-category",
            action="append",
            default=[],
            dest="blast_categories",
            choices=names,
            help="what a whole blast may be; repeat for more (default: marketing)",
        )
        parser.add_argument(
            "--max-priority-blast",
            type=int,
            default=MAX_PRIORITY_BLAST,
            metavar="COUNT",
            help="recipients of a blast that is not marketing (default: %(default)s)",
        )

    def handle(self, *args: Any, slug: str, name: str, domains: list[str], key_name: str, **options: Any) -> None:
        domains = list(dict.fromkeys(domain.strip().lower() for domain in domains))
        if Tenant.objects.filter(slug=slug).exists():
            raise CommandError(f"There is a tenant {slug!r} already. Add domains and keys to it in the admin.")
        with transaction.atomic():
            tenant = Tenant(slug=slug, name=name)
            _check("tenant", tenant.full_clean)
            tenant.save()
            for domain in domains:
                row = SenderDomain(tenant=tenant, domain=domain)
                _check(f"--domain {domain}", row.full_clean)
                row.save()
            allowed = {name: options[name] for name in ("categories", "blast_categories", "max_priority_blast")}
            allowance = TenantAllowance(tenant=tenant, **allowed)
            _check("--max-priority-blast", allowance.full_clean)
            allowance.save()
            _check("--key-name", partial(ApiKey(tenant=tenant, name=key_name).clean_fields, {"prefix", "digest"}))
            _, key = ApiKey.issue(tenant, key_name)
        self.stderr.write(f"Tenant {slug} may send from: {', '.join(domains)}.")
        self.stderr.write("Its API key, shown this once:")
        self.stdout.write(key)
        url = "http://127.0.0.1:8000/v1/messaging/sends"
        self.stderr.write("\n" + EXAMPLE.format(url=url, domain=domains[0]))


def _check(what: str, clean: Callable[[], None]) -> None:
    try:
        clean()
    except ValidationError as error:
        raise CommandError(f"{what}: {' '.join(error.messages)}") from None
