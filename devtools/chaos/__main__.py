from devtools.chaos.options import parse


def main() -> int:
    options = parse()
    from devtools.chaos.run import run  # after parsing: `--help` needs nothing of it

    return run(options)


if __name__ == "__main__":
    raise SystemExit(main())
