"""`python -m devtools.demo`: as `manage.py demo`, without loading the settings (and so without the servers that they
start in development)."""

from devtools.demo.options import main

raise SystemExit(main())
