"""`python -m devtools.bench`: as `manage.py bench`, without loading the settings (and so without the servers that they
start in development)."""

from devtools.bench.options import parse


def main() -> int:
    options = parse()
    from devtools.bench.run import run  # after parsing: `--help` needs nothing of it

    return run(options)


if __name__ == "__main__":
    raise SystemExit(main())
