"""`python -m devtools.demo`: as `manage.py demo`, without loading the settings (and so without the servers that they
start in development)."""

from devtools.demo.options import parse


def main() -> int:
    options = parse()
    from devtools.demo.scenario import run  # after parsing: `--help` needs nothing of it

    return run(options)


if __name__ == "__main__":
    raise SystemExit(main())
