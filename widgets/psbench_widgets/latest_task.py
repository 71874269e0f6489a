"""Slow work in a background thread; only the newest request counts."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable


class LatestTask:
    """Runs the newest request in its own thread, which ends when idle.

    Parameters
    ----------
    name : str
        Of the thread.
    on_error : callable
        Called with the traceback of a request that failed, from that thread.
    """

    def __init__(self, name: str, on_error: Callable[[str], None]) -> None:
        self._name, self._on_error = name, on_error
        self._lock = threading.Lock()
        self._next: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None

    def ask(self, work: Callable[[], None]) -> None:
        """Run this soon; it replaces a request that has not started."""
        with self._lock:
            self._next = work
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until no request is left."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def close(self, timeout_s: float = 30.0) -> None:
        """Drop a request that has not begun and wait for the one that has."""
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
                self._on_error(traceback.format_exc())
