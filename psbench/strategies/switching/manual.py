"""Switch by hand only."""

from __future__ import annotations

from typing import ClassVar

from psbench.core.parts import Switching


class Manual(Switching):
    """Switch only by hand."""

    name: ClassVar[str] = "manual"
    source: ClassVar[str] = "by hand"
