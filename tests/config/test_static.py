"""The admin's style sheets and scripts where nothing but gunicorn serves them."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import call_command
from django.test import Client, override_settings
from django.urls import reverse
from honcho.environ import parse_procfile

ROOT = Path(__file__).resolve().parents[2]
#: As in production (config.settings adds it unless DEBUG).
MIDDLEWARE = [settings.MIDDLEWARE[0], "whitenoise.middleware.WhiteNoiseMiddleware", *settings.MIDDLEWARE[1:]]
SHEET = "/static/admin/css/base.css"


def test_release_collects_them() -> None:
    steps = parse_procfile((ROOT / "Procfile").read_text()).processes["release"].split(" && ")
    assert steps == ["python manage.py migrate", "python manage.py collectstatic --no-input"]


@pytest.mark.django_db
def test_collected_files_are_served_small(tmp_path: Path) -> None:
    with override_settings(STATIC_ROOT=tmp_path, MIDDLEWARE=MIDDLEWARE, WHITENOISE_USE_FINDERS=False):
        call_command("collectstatic", "--no-input", verbosity=0)
        client = Client()
        assert SHEET in client.get(reverse("admin:login")).content.decode()
        answer = client.get(SHEET, headers={"accept-encoding": "gzip"})
        assert (answer.status_code, answer["Content-Encoding"]) == (200, "gzip")
        assert len(answer.getvalue()) < len((tmp_path / "admin/css/base.css").read_bytes()) / 2
        assert client.get("/static/admin/css/none.css").status_code == 404


@pytest.mark.filterwarnings("ignore:No directory at")
def test_uncollected_files_come_from_the_packages(tmp_path: Path) -> None:
    with override_settings(STATIC_ROOT=tmp_path / "none", MIDDLEWARE=MIDDLEWARE, WHITENOISE_USE_FINDERS=True):
        answer = Client().get(SHEET)
        assert answer.status_code == 200
        assert b"--body-fg" in answer.getvalue()
