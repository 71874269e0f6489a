"""`python -m psbench`, where the `psbench` command is not on the path."""

import sys

from psbench.cli import main

sys.exit(main())
