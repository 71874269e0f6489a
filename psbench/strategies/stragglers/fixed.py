"""Equal work for all."""

from __future__ import annotations

from psbench.core import Stragglers


class Fixed(Stragglers):
    """Every worker keeps its initial batch size: its share of the global batch."""

    name = "fixed"
    source = "thesis 2.1.2, eq. 2.1"
