"""Switch by hand only."""

from __future__ import annotations

from psbench.core import Switching


class Manual(Switching):
    """Switch only manually."""

    name = "manual"
    source = "by hand"
