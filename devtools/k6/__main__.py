"""`python -m devtools.profiles`. Never loads the settings, which would start servers of their own."""

from devtools.profiles.options import main

raise SystemExit(main())
