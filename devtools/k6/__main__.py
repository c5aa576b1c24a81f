"""`python -m devtools.k6`. Never loads the settings, which would start servers of their own."""

from devtools.k6.options import main

raise SystemExit(main())
