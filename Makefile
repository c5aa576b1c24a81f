# Needs python3 ≥ 3.11 with venv and pip, make and git; everything else goes to .venv. All paths are relative, because
# make cannot handle the spaces that the path of a checkout may contain.

PYTHON ?= python3
ARGS ?=
# Anything but 0: `make demo` leaves everything running until Ctrl-C.
KEEP ?=

# A process that types, not one that runs: mypy's Django plugin loads the settings, which must not start servers for it.
LINT_ENV = DEBUG=1 DATABASE_URL=postgresql:///lint REDIS_URL=redis://localhost/0

.DEFAULT_GOAL := help
.PHONY: help setup bench chaos k6 demo dev test lint lock clean

help: ## This list
	@echo 'make TARGET [PYTHON=python3.12]'
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 12

setup: ## .venv with everything in requirements.lock; the other targets do it by themselves
	@PYTHON="$(PYTHON)" sh devtools/setup.sh

demo: setup ## A blast and login codes at once, in numbers and as a page; ARGS="--short" for a short one, KEEP=1 to look around
	.venv/bin/python -m devtools.demo $(if $(filter-out 0,$(KEEP)),--keep) $(ARGS)

bench: setup ## What it does per second and what a part of it costs; ARGS="--only engine,steps", "--quick" for a smoke
	.venv/bin/python -m devtools.bench $(ARGS)

k6: setup ## Does the promise hold under load? Six kinds of traffic by k6, judged; ARGS="--only blast-vs-otp", "--short"
	.venv/bin/python -m devtools.k6 $(ARGS)

chaos: setup ## Everything killed and cut off while it sends: is each send sent once? ARGS="--seed 7", "--confirmation at-most-once"
	.venv/bin/python -m devtools.chaos $(ARGS)

dev: setup ## All processes of Procfile.dev, with the sandbox as provider, on http://127.0.0.1:8000
	PATH="$$PWD/.venv/bin:$$PATH" RESEND_BASE_URL=http://127.0.0.1:8025 RESEND_API_KEY=re_sandbox \
	python -m config.embedded run sh -c \
	'python manage.py migrate --verbosity 0 && python manage.py welcome && exec honcho start --procfile Procfile.dev --port 8000'

test: lint ## Lint, then all tests, in two processes, each with a PostgreSQL and a Redis of its own; ARGS go to pytest
	.venv/bin/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: setup ## ruff, mypy, import-linter
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	$(LINT_ENV) .venv/bin/python -m mypy
	.venv/bin/lint-imports

lock: ## requirements.lock anew from pyproject.toml
	"$(PYTHON)" -m venv build/lock
	build/lock/bin/python -m pip install --quiet uv
	build/lock/bin/python -m uv pip compile --quiet pyproject.toml --extra dev --universal --python-version 3.11 \
		--no-emit-index-url --generate-hashes --no-header --output-file requirements.lock

clean: ## Delete what was made here, the development database too, except .venv
	@if [ -x .venv/bin/python ] && .venv/bin/python -m config.embedded status >/dev/null 2>&1; then \
		echo 'The embedded servers are in use. Stop the processes that use them first.' >&2; exit 1; fi
	rm -rf .dev build dist demo-report.html k6/results
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
