"""Every sample once a pass."""

from __future__ import annotations

from psbench.core import Selection


class Reshuffle(Selection):
    """Draw every sample of the shard once per pass, in a new random order on every pass.

    Notes
    -----
    A mini-batch that reaches the end of a pass goes on with the next. The order of a sharding that is
    `ordered` (SelDP) is kept.
    """

    name = "reshuffle"
    source = "Goodfellow et al. 2016, 8.1.3"
