"""Equal work for all."""

from __future__ import annotations

from typing import ClassVar

from psbench.core.parts import Stragglers


class Fixed(Stragglers):
    """Every worker keeps the batch it began with: its share of the global batch."""

    name: ClassVar[str] = "fixed"
    source: ClassVar[str] = "thesis 2.1.2, eq. 2.1"
