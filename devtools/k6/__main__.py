"""`python -m devtools.k6`. Never loads the settings, which would start servers of their own."""

from devtools.k6.options import parse


def main() -> int:
    options = parse()
    from devtools.k6.run import run  # after parsing: `--help` needs nothing of it

    return run(options)


if __name__ == "__main__":
    raise SystemExit(main())
