"""Base classes without messages: workers of one host write into one model in its memory."""

from __future__ import annotations

from psbench.core.aggregation import Aggregation
from psbench.core.needs import Need
from psbench.core.parts import Consistency, Placement

#: why a worker waits whose update is being written
WRITING = "writing"


class SharedMemory(Placement):
    """All workers are processes of one host and have its one model; nothing is sent."""

    needs = (
        Need(
            "communication",
            lambda m: not m.is_encoded,
            "{part} sends no vectors, but {other} encodes them",
            "set both codecs to 'none', or use placement 'parameter_server'",
        ),
    )

    def bytes_up(self, payload: int, num_workers: int) -> int:
        """Return 0: a gradient is written where it was computed."""
        return 0

    def bytes_down(self, payload: int, num_workers: int) -> int:
        """Return 0: a model is read where it is."""
        return 0


class Overwriting(Aggregation):
    """Of blocks that several workers write at a time, the last write alone remains."""

    needs = (
        Need(
            "consistency",
            lambda c: isinstance(c, WritesUnlocked),
            "{part} compares the times in which workers write, and under {other} writing takes none",
            "use consistency 'hogwild'",
        ),
    )


class WritesUnlocked(Consistency):
    """A worker's update is a write that takes time, in which others may write too."""

    needs = (
        Need(
            "aggregation",
            lambda a: isinstance(a, Overwriting),
            "under {part} writes may overlap, and {other} would lose nothing by it",
            "use aggregation 'last_write'",
        ),
        Need(
            "placement",
            lambda p: isinstance(p, SharedMemory),
            "under {part} workers write into one memory, and {other} has none",
            "use placement 'shared_memory'",
        ),
    )
