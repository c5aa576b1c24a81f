#!/bin/sh
# Make .venv hold exactly what requirements.lock says. Does nothing, quickly, when it does already.
# PYTHON: the interpreter for a new .venv (default: python3). Runs from the top folder of the checkout.
set -eu

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

# The lock as it was installed, and the place: scripts in .venv/bin name their interpreter by its full path.
wanted() {
    pwd
    cat requirements.lock
}

if [ -x .venv/bin/python ] && wanted | cmp -s - .venv/installed; then
    exit 0
fi

recent='import sys; sys.exit(sys.version_info < (3, 11))'

# Keep a .venv that works here; one that was moved or whose interpreter is gone is made anew.
if ! .venv/bin/python -c "$recent" 2>/dev/null || { [ -f .venv/installed ] && [ "$(head -n 1 .venv/installed)" != "$(pwd)" ]; }; then
    python=${PYTHON:-python3}
    command -v "$python" >/dev/null || fail "$python is not there. Install Python 3.11 or later, or say which: make PYTHON=…"
    "$python" -c "$recent" || fail "$("$python" --version) is too old: 3.11 or later is needed. Say which: make PYTHON=python3.12 …"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python comes without venv. Install it (Debian, Ubuntu: apt install python3-venv) and try again."
    echo "Making .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
fi

echo 'Installing requirements.lock'
.venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock ||
    fail 'pip could not install requirements.lock (see above).' 'Behind a proxy or mirror, set PIP_INDEX_URL, then try again.'
wanted >.venv/installed
