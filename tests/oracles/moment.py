"""The state of a run at one moment, and the reason for it as a sentence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psbench.metrics.recording import STAGES, Recording, Table


@dataclass(frozen=True)
class WorkerMoment:
    """What a worker does at a moment.

    `progress` is how much of the phase is over, 0 to 1; `version` is that of the model it works on, or that
    is on its way to it; `why` is a sentence about a wait, empty otherwise.
    """

    worker: int
    phase: str
    progress: float
    clock: int
    version: int
    waited_for: int | None
    why: str


@dataclass(frozen=True)
class Moment:
    """The state of a run at one moment.

    Attributes
    ----------
    time_s : float, seconds
    version : int
        Of the model at the server, or with all workers.
    composition : int
    workers : tuple of WorkerMoment
        Those that are there.
    buffer : tuple of (worker, base version)
        Pushes that have arrived and are in no version yet.
    """

    time_s: float
    version: int
    composition: int
    workers: tuple[WorkerMoment, ...]
    buffer: tuple[tuple[int, int], ...]

    @property
    def sentences(self) -> list[str]:
        """Why each worker that waits does so."""
        return [worker.why for worker in self.workers if worker.why]


def moment(recorded: Recording, time_s: float) -> Moment:
    """Return the state at a time: what was decided at that very time has happened.

    Parameters
    ----------
    recorded : Recording
    time_s : float, seconds
    """
    spans = recorded.spans
    under_way = np.flatnonzero((spans["start_s"] <= time_s) & (time_s < spans["end_s"]))
    workers = tuple(_worker(recorded, int(place), time_s) for place in under_way)
    return Moment(
        time_s=time_s,
        version=_last(recorded.versions, "version", time_s),
        composition=_last(recorded.compositions, "index", time_s),
        workers=workers,
        buffer=_buffer(recorded.pushes, time_s),
    )


def wait_sentence(recorded: Recording, span: int) -> str:
    """Return why a worker waits, as a sentence; empty if the span is no wait.

    Such as "Worker 0 waits 71 ms for worker 3: it is 4 steps ahead of the slowest, one more than its bound
    of 3 allows".
    """
    spans = recorded.spans
    if STAGES[spans["phase"][span]] not in ("wait", "switching"):
        return ""
    lasted = duration(float(spans["end_s"][span] - spans["start_s"][span]))
    whom, why = int(spans["waited_for"][span]), recorded.whys[spans["why"][span]]
    whom_text = f" for worker {whom}" if whom >= 0 else ""
    return f"Worker {spans['worker'][span]} waits {lasted}{whom_text}: {why}"


def duration(seconds: float) -> str:
    """Return a duration in words of three digits.

    >>> duration(0.0714), duration(2.5), duration(0.0004)
    ('71.4 ms', '2.5 s', '400 µs')
    """
    if seconds < 0.0009995:
        return f"{1e6 * seconds:.3g} µs"
    if seconds >= 999.5:
        return f"{seconds:.0f} s"
    return f"{1000 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def told(recorded: Recording, time_s: float, whole_s: float) -> str:
    """Return what the panel says of a moment of a run that is over, if no worker is gone."""
    spans, waits = recorded.spans, []
    for span in range(len(spans["worker"])):
        is_here = spans["start_s"][span] <= time_s < spans["end_s"][span]
        if is_here and STAGES[spans["phase"][span]] in ("wait", "switching"):
            waits.append(span)
    if not waits:
        version = moment(recorded, time_s).version
        return f"No worker is waiting. The newest version is {version}."
    lasts = [float(spans["end_s"][span] - spans["start_s"][span]) for span in waits]
    longest = waits[lasts.index(max(lasts))]
    whom = int(spans["waited_for"][longest])
    group = [int(spans["worker"][span]) for span in waits if int(spans["waited_for"][span]) == whom]
    who = f"{_names(group)} {'is' if len(group) == 1 else 'are'}"
    end = float(spans["end_s"][longest])
    until = " in all" if end < whole_s else ", until the run ends"
    it = f"Worker {spans['worker'][longest]} waits longest," if len(group) > 1 else "It waits"
    waiting = f"{who} waiting{f' for worker {whom}' if whom >= 0 else ''}."
    text = f"{waiting} {it} {duration(max(lasts))}{until}: {recorded.whys[spans['why'][longest]]}."
    if end < whole_s:
        free = [worker for worker in group if _goes_on(recorded, worker, end)]
        text += " " + _ending(recorded, whom, end, f"in {duration(end - time_s)}", _then(free, group))
    more = len(waits) - len(group)
    return text + (f" {more} more worker{'s wait' if more > 1 else ' waits'}." if more else "")


def _names(workers: list[int]) -> str:
    if len(workers) == 1:
        return f"Worker {workers[0]}"
    if len(workers) > 4:
        return f"{len(workers)} workers"
    return f"Workers {', '.join(map(str, workers[:-1]))} and {workers[-1]}"


def _goes_on(recorded: Recording, worker: int, end_s: float) -> bool:
    """Return whether a worker waits before a time, and does something else from then on."""
    own = {name: values[recorded.spans["worker"] == worker] for name, values in recorded.spans.items()}
    waits = np.isin(own["phase"], (STAGES.index("wait"), STAGES.index("switching")))
    begins = ~waits & np.isclose(own["start_s"], end_s, rtol=1e-9, atol=0)
    return bool(begins.any() and (waits & (own["end_s"] == end_s)).any())


def _then(free: list[int], group: list[int]) -> str:
    """Return who of a group goes on when the longest wait of it ends."""
    if not free or len(group) == 1:
        return " and ends the wait"
    if len(free) < len(group):
        return f"; then {_names(free).lower()} {'goes' if len(free) == 1 else 'go'} on"
    return f"; then {'both' if len(free) == 2 else f'all {len(free)}'} go on"


def _ending(recorded: Recording, whom: int, end_s: float, when: str, then: str) -> str:
    """Return what ends a wait: a worker's push that arrives at that time, or that is ready to be sent."""
    pushes = recorded.pushes
    own = {name: values[pushes["worker"] == whom] for name, values in pushes.items()}
    for column, text in (
        ("arrived_s", "Worker {}'s step {} arrives {}{}."),
        ("sent_s", "Worker {} ends its step {} {}, and the exchange begins."),
    ):
        for time_s, arrived_s in zip(own[column], own["arrived_s"], strict=True):
            if np.isclose(time_s, end_s, rtol=1e-9, atol=0):
                clocks = recorded.clocks
                own_clocks = clocks["clock"][(clocks["worker"] == whom) & (clocks["time_s"] >= arrived_s)]
                return text.format(whom, own_clocks[0], when, then)  # a switch may change it at that instant
    return f"The wait ends {when}."


def _worker(recorded: Recording, span: int, time_s: float) -> WorkerMoment:
    spans = recorded.spans
    worker, start, end = (spans[name][span] for name in ("worker", "start_s", "end_s"))
    whom = int(spans["waited_for"][span])
    return WorkerMoment(
        worker=int(worker),
        phase=STAGES[spans["phase"][span]],
        progress=float((time_s - start) / (end - start)),
        clock=_last(recorded.clocks, "clock", time_s, int(worker)),
        version=_last(recorded.models, "version", time_s, int(worker)),
        waited_for=whom if whom >= 0 else None,
        why=wait_sentence(recorded, span),
    )


def _buffer(pushes: Table, time_s: float) -> tuple[tuple[int, int], ...]:
    here = np.flatnonzero((pushes["arrived_s"] <= time_s) & (time_s < pushes["left_s"]))
    return tuple((int(pushes["worker"][i]), int(pushes["base_version"][i])) for i in here)


def _last(table: Table, column: str, time_s: float, worker: int | None = None) -> int:
    """Return the newest value at a time, of one worker if given; 0 if there was none."""
    times, values = table["time_s"], table[column]
    if worker is not None:
        own = table["worker"] == worker
        times, values = times[own], values[own]
    place = int(np.searchsorted(times, time_s, side="right")) - 1
    return int(values[place]) if place >= 0 else 0
