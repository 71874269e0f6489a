"""Progress of each process of a live run during its start, with durations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TypeAlias, get_args

Stage: TypeAlias = Literal["process up", "torch loaded", "data read", "met"]
#: what a process does before training begins, in this order; the last is that it met the coordinator
STAGES: tuple[Stage, ...] = get_args(Stage)


class StartProgress:
    """The stages that each process of a live run has reached, with their times; thread-safe.

    Parameters
    ----------
    changed : callable or None
        Called whenever there is news, from the thread that starts the run; must be quick.
    clock : callable
        Returns seconds.

    Examples
    --------
    >>> times = iter([0.0, 0.5, 0.6, 0.9, 2.0])
    >>> start = StartProgress(clock=lambda: next(times))
    >>> start.expect(["coordinator", "worker 0"])
    >>> start.see(["tcp://a", "tcp://b"])
    >>> start.place({"coordinator": "tcp://a", "worker 0": "tcp://b"})
    >>> start.reach("worker 0", "torch loaded")
    >>> start.words()
    'starting 2 processes: 2 up, 1 with torch, 0 with data, 0 met, 2.0 s'
    """

    def __init__(
        self, changed: Callable[[], None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._changed, self._clock = changed, clock
        self._lock = threading.Lock()
        self._began = clock()
        self._times: dict[str, dict[str, float]] = {}  # role -> stage -> seconds
        self._up: dict[str, float] = {}  # address -> seconds

    def expect(self, roles: Iterable[str]) -> None:
        """Start over with these roles."""
        with self._lock:
            self._times = {role: {} for role in roles}
        self._tell()

    def see(self, addresses: Iterable[str]) -> None:
        """Record the started processes, whose roles are not known yet."""
        now = self._now()
        with self._lock:
            before = len(self._up)
            for address in addresses:
                self._up.setdefault(address, now)
            news = len(self._up) > before
        if news:
            self._tell()

    def place(self, placed: Mapping[str, str]) -> None:
        """Record the role of each process."""
        now = self._now()
        with self._lock:
            for role, address in placed.items():
                self._times.setdefault(role, {}).setdefault(STAGES[0], self._up.get(address, now))
        self._tell()

    def reach(self, role: str, stage: Stage) -> None:
        """Record that a process has reached a stage."""
        now = self._now()
        with self._lock:
            self._times.setdefault(role, {}).setdefault(stage, now)
        self._tell()

    def copy(self, rows: Iterable[tuple[str, Sequence[float | None]]]) -> None:
        """Show the start of a run in another process, whose `rows` these are."""
        with self._lock:
            self._times = {
                role: {stage: at for stage, at in zip(STAGES, times, strict=True) if at is not None}
                for role, times in rows
            }
        self._tell()

    def rows(self) -> list[tuple[str, list[float | None]]]:
        """Return each process and the seconds until each stage; None for stages not reached.

        Before it is known which process will be what, they are numbered in the order in which they came up.
        """
        with self._lock:
            times = {role: dict(own) for role, own in self._times.items()}
            up = sorted(self._up.values())
        if not any(times.values()):
            seen = [*up, *[None] * (len(times) - len(up))]
            return [(f"process {i + 1}", [at, None, None, None]) for i, at in enumerate(seen[: len(times)])]
        return [(role, [own.get(stage) for stage in STAGES]) for role, own in times.items()]

    def words(self) -> str:
        """Return the state as a line."""
        rows = self.rows()
        counts = [sum(times[place] is not None for _, times in rows) for place in range(len(STAGES))]
        parts = [f"{counts[0]} up"]
        if counts[1] or counts[0] == len(rows):
            parts += [f"{counts[1]} with torch", f"{counts[2]} with data", f"{counts[3]} met"]
        return f"starting {len(rows)} processes: {', '.join(parts)}, {self._now():.1f} s"

    def _now(self) -> float:
        return self._clock() - self._began

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed()


_watched: ContextVar[StartProgress | None] = ContextVar("start", default=None)


@contextmanager
def watching_start(progress: StartProgress) -> Iterator[None]:
    """Let the runs of this block, in this thread, report their start to `progress`."""
    before = _watched.set(progress)
    try:
        yield
    finally:
        _watched.reset(before)


def start_progress() -> StartProgress:
    """Return the progress object of the current start."""
    return _watched.get() or StartProgress()
