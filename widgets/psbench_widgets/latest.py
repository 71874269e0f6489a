"""Work that takes a while, done aside; only the newest request counts."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable


class Latest:
    """Does the newest thing asked for in a thread of its own, which ends when there is nothing to do.

    Parameters
    ----------
    name : str
        Of the thread.
    trouble : callable
        Gets the traceback of a request that failed, from that thread.
    """

    def __init__(self, name: str, trouble: Callable[[str], None]) -> None:
        self._name, self._trouble = name, trouble
        self._lock = threading.Lock()
        self._next: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None

    def ask(self, work: Callable[[], None]) -> None:
        """Do this soon, and forget what was asked before and has not begun."""
        with self._lock:
            self._next = work
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until everything asked for is done."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def close(self, timeout_s: float = 30.0) -> None:
        """Forget what has not begun and wait for the rest."""
        with self._lock:
            self._next = None
        self.wait(timeout_s)

    def _work(self) -> None:
        while True:
            with self._lock:
                work, self._next = self._next, None
                if work is None:
                    self._thread = None
                    return
            try:
                work()
            except Exception:
                self._trouble(traceback.format_exc())
