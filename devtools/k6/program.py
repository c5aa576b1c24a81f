"""The k6 program: a tool of its own, started and never imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from devtools.stack import StackError

_HELP = """\
k6 was looked for as the program that the environment variable K6 names, in {scripts} and on PATH.
requirements.lock brings it on Linux x86-64. Elsewhere install it (https://grafana.com/docs/k6/latest/set-up/install-k6/;
macOS: brew install k6) and try again, or say where it is: K6=/path/to/k6 make k6"""


def program(environment: Mapping[str, str] = os.environ) -> Path:
    """K6, or what .venv has, or what PATH has. Raises StackError, which says what to do."""
    scripts = Path(sys.executable).parent
    if named := environment.get("K6"):
        if found := shutil.which(named, path=environment.get("PATH", "")):
            return Path(found)
        raise StackError(f"K6={named} is no program.\n{_HELP.format(scripts=scripts)}")
    if found := shutil.which("k6", path=os.pathsep.join([str(scripts), environment.get("PATH", "")])):
        return Path(found)
    raise StackError(f"There is no k6.\n{_HELP.format(scripts=scripts)}")


def version(k6: Path) -> str:
    """`1.1.0`. Raises StackError if it is something else that bears the name."""
    try:
        said = subprocess.run([k6, "version"], capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError) as error:
        raise StackError(f"{k6} cannot be run ({type(error).__name__}).") from error
    if said[:1] != ["k6"] or len(said) < 2:
        raise StackError(f"{k6} is not k6.")
    return said[1].removeprefix("v")
