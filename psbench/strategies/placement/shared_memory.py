"""One model in the memory of one host."""

from __future__ import annotations

from psbench.core import shared_memory


class SharedMemory(shared_memory.SharedMemory):
    """All workers read and write one model in the memory of their host; no message takes time or bytes."""

    name = "shared_memory"
    source = "Recht et al. 2011; thesis 3.1"
