"""One seed, many named random streams.

A stream is named by its purpose and by integer keys, so that adding a worker, or drawing more
numbers for one purpose, changes no other stream. Nothing here touches global random state.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Streams:
    """Independent random streams derived from one root seed.

    Parameters
    ----------
    seed : int, >= 0

    Examples
    --------
    >>> streams = Streams(0)
    >>> streams.integer("shuffle", 3) == streams.integer("shuffle", 3) != streams.integer("shuffle", 4)
    True
    """

    seed: int

    def sequence(self, purpose: str, *keys: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=(zlib.crc32(purpose.encode()), *keys))

    def generator(self, purpose: str, *keys: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(self.sequence(purpose, *keys)))

    def integer(self, purpose: str, *keys: int) -> int:
        """Return a 63-bit integer of the stream: a seed for another library's generator."""
        return int(self.sequence(purpose, *keys).generate_state(1, np.uint64)[0] >> np.uint64(1))
