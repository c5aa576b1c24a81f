"""Django settings, from the typed environment (`config.env`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from config.env import Env
from config.logs import logging_config
from core.db import session

BASE_DIR = Path(__file__).resolve().parent.parent

# A checkout where nothing is set is development. One part of a production environment without the others is a mistake,
# and must not start an empty database and public keys beside the real queue.
if not os.environ.keys() & {"DEBUG", "DATABASE_URL", "REDIS_URL", "SECRET_KEY", "ENCRYPTION_KEYS", "FINGERPRINT_KEY"}:
    os.environ["DEBUG"] = "1"

ENV = Env.read()
if ENV.database_url is None or ENV.redis_url is None:
    from config.embedded import ensure_services

    ensure_services(BASE_DIR / ".dev", need_postgres=ENV.database_url is None, need_redis=ENV.redis_url is None)
    ENV = Env.read()
assert ENV.database_url is not None
assert ENV.redis_url is not None

SECRET_KEY = ENV.secret_key
DEBUG = ENV.debug
ALLOWED_HOSTS = list(ENV.allowed_hosts)

INSTALLED_APPS = [
    "django_dramatiq",  # before apps with actors: it sets the broker
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "core",
    "messaging",
]
if DEBUG:  # commands for development, which an installation does not have
    INSTALLED_APPS.append("devtools")

MIDDLEWARE = [
    "config.middleware.RefuseNul",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "config.middleware.AwayForNow",
]
if not DEBUG:  # runserver serves static files by itself
    MIDDLEWARE.insert(1, "whitenoise.middleware.WhiteNoiseMiddleware")

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]


def _database(url: str) -> dict[str, Any]:
    parts = conninfo_to_dict(url)
    names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    database: dict[str, Any] = {names[k]: str(v) for k, v in parts.items() if k in names}
    options: dict[str, Any] = {k: v for k, v in parts.items() if k not in names}
    # A statement of ours is short; a connection that died without a word is noticed within half a minute.
    options |= {"connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
    options["tcp_user_timeout"] = 25_000  # ms; keepalives are not sent while a statement is unacknowledged
    options["prepare_threshold"] = 5  # Django's default, None, would also forbid it to those who ask (core.db.cursor)
    options["options"] = f"{options.get('options', '')} {session.STARTUP}".strip()
    return {
        "ENGINE": "core.db.postgres",
        **database,
        # A new connection plans the ledger's statements anew: a login code now and then would wait for that.
        "CONN_MAX_AGE": 3600,
        # One round trip a request or ticket; without it each thread's first one after a restart of PostgreSQL fails.
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": options,
        "TEST": {"NAME": os.environ.get("TEST_DATABASE_NAME") or None},
    }


DATABASES = {"default": _database(ENV.database_url)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = ENV.redis_url
DRAMATIQ_BROKER = {
    "BROKER": "core.broker.RailBroker",
    "OPTIONS": {"url": REDIS_URL},
    # Short on purpose: no Retries (the ledger retries), no TimeLimit (it interrupts threads at any byte code), no
    # AdminMiddleware (nine statements a message).
    "MIDDLEWARE": [
        "core.broker.processes.WorkerProcess",
        "django_dramatiq.middleware.DbConnectionsMiddleware",
        "core.telemetry.counters.FlushCounters",
        "messaging.backpressure.middleware.RailPriorityMiddleware",
        "core.broker.dead_letters.ActorDeadLetters",
    ],
}

ENCRYPTION_KEYS = ENV.encryption_keys
FINGERPRINT_KEY = ENV.fingerprint_key
MESSAGING_PROVIDERS = {"email": "messaging.providers.resend.ResendAdapter"}
RESEND_API_KEY = ENV.resend_api_key
RESEND_BASE_URL = ENV.resend_base_url
#: When a channel's marketing yields; a channel without an entry has the defaults (messaging.backpressure.settings).
MESSAGING_YIELD: Mapping[str, Any] = ENV.messaging_yield
#: Days after which a blast is given up that was made, but neither launched nor added to.
MESSAGING_DRAFT_DAYS = 7
METRICS_TOKEN = ENV.metrics_token

# Of the admin's accounts: what stands in every list of passwords must not open it.
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]

LOGGING = logging_config(ENV)
LOGGING_CONFIG = "logging.config.dictConfig"

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
USE_I18N = False
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "build" / "static"
#: Where `collectstatic` did not run (the Procfile's `release` does it), they come from the packages: slower to start, no
#: compression, and an admin that works.
WHITENOISE_USE_FINDERS = not STATIC_ROOT.is_dir()
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}

if not DEBUG:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
    SECURE_HSTS_SECONDS = 31_536_000

#: What `check --deploy` would have, and why not:
SILENCED_SYSTEM_CHECKS = [
    # The proxy ends TLS and redirects. Here a redirect would answer health checks and scrapes of the inner network, and a
    # client that has just sent its key in the clear with the advice to send it again.
    "security.W008",
    # Whether all other names below this one speak TLS, and whether browsers are told so for good, is for the owner of the
    # domain to say: at the proxy.
    "security.W005",
    "security.W021",
]
