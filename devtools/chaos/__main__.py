from devtools.chaos.options import main

raise SystemExit(main())
