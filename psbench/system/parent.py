"""Ends a pool's process together with the process that started it, however that one ends."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait


def end_with_parent() -> None:
    """End this process as soon as its parent process has ended.

    A process that is killed can say nothing to its pool, whose processes would go on computing until
    their next answer; a pipe to it closes then. Does nothing in a process that is no child
    of `multiprocessing`.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel,), name="psbench-parent", daemon=True).start()


def _watch(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
