"""The project's settings, on servers that belong to this test run alone.

Without DATABASE_URL and REDIS_URL the run gets a PostgreSQL and a Redis of its own, in a temporary folder that the
keeper deletes when the run has ended, in whatever way. They do not sync to disk: a power cut may take them along.
"""

import os
import tempfile

import pytest

from config.embedded import EmbeddedServiceError

os.environ.setdefault("DEBUG", "1")
if os.environ.get("PYTEST_XDIST_WORKER") and os.environ.get("EMBEDDED_THROWAWAY"):
    # Run side by side (`pytest -n 2`), each process has its own servers, not those of the one that started it.
    del os.environ["DATABASE_URL"], os.environ["REDIS_URL"]
if not (os.environ.get("DATABASE_URL") and os.environ.get("REDIS_URL")):
    os.environ["EMBEDDED_DATA_DIR"] = tempfile.mkdtemp(prefix="dualrail-tests-")
    os.environ["EMBEDDED_THROWAWAY"] = "1"
    os.environ["EMBEDDED_FSYNC"] = "0"

try:
    from config.settings import *  # noqa: F403
except EmbeddedServiceError as error:
    raise pytest.UsageError(str(error)) from None
