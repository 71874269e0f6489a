"""Whether a test writes its golden file, by the environment variable PSBENCH_WRITE_GOLDEN.

`PSBENCH_WRITE_GOLDEN=1` writes only what is missing, so that a new entry cannot hide a change of another;
`PSBENCH_WRITE_GOLDEN=all` rewrites everything.
"""

from __future__ import annotations

import os


def is_rewritten(exists: bool) -> bool:
    """Return whether the user asked to write this entry."""
    asked = os.environ.get("PSBENCH_WRITE_GOLDEN", "")
    return asked == "all" or (asked != "" and not exists)
