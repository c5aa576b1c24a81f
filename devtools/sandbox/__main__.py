"""`python -m devtools.sandbox`."""

from devtools.sandbox.cli import main

raise SystemExit(main())
