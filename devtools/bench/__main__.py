"""`python -m devtools.bench`: as `manage.py bench`, without loading the settings (and so without the servers that they
start in development)."""

from devtools.bench.options import main

raise SystemExit(main())
