"""`python -m fdmath`: the command line without the console script."""

from fdmath.cli import main

raise SystemExit(main())
