"""Where and with what something ran, for a page or a table that others will compare with theirs. No name of the host or
its user, no path."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[2]
_GIB = 1 << 30


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def hardware() -> str:
    """For example `2 cores, AMD EPYC, 23 GiB`."""
    found = [f"{os.cpu_count()} cores", _processor()]
    with contextlib.suppress(ValueError, OSError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        found.append(f"{memory / _GIB:.0f} GiB of memory")
    return ", ".join(part for part in found if part)


def system() -> str:
    return f"{platform.system()} {platform.release()}, {platform.machine()}"


def versions(packages: Iterable[str]) -> str:
    """Of Python and of these packages, as far as they are installed."""
    found = [f"Python {platform.python_version()}"]
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


def commit() -> str:
    """Of the checkout, and whether it was changed since; empty if there is no git."""
    try:
        return _git("rev-parse", "--short", "HEAD") + (", changed since" if _git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=_CHECKOUT, capture_output=True, text=True, check=True, timeout=10, env=_plain_env()
    )
    return done.stdout.strip()


def _plain_env() -> dict[str, str]:
    """Without what a hook of git may have set: it would point at another repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


def _processor() -> str:
    with contextlib.suppress(OSError):
        if found := re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M):
            return found[1].strip()
    return platform.processor()
