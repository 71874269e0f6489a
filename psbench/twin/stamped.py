"""Findings from the stamps of live runs: clocks, queues, and cores per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from psbench.arrays import Doubles
from psbench.backends.stamps import SAID_COLUMNS, WORKER_SAID_COLUMNS, rows_of
from psbench.errors import DataError
from psbench.percents import percent
from psbench.results.run import Run
from psbench.seeds import Streams
from psbench.twin.exchanges import Exchanges

#: by how much a clock may run away from the coordinator's during a run, beside what round trips leave open
_DRIFT_S = 1e-3
#: share of a step that is CPU time from which on cores matter; of the error that they must explain
_COMPUTES, _EXPLAINS = 0.5, 0.3
_GRID, _DRAWS = 0.05, 200
#: share of a step that stamps may take, and by what they take longer within a run, whose caches are full
_TOO_MUCH, _WITHIN = 0.02, 4


class Cores(NamedTuple):
    """Number of cores that workers share, with a 90 % interval, or the reason for a missing fit."""

    value: float
    low: float
    high: float
    why: str


class Stamps(NamedTuple):
    """The stamps of one run: a table for pushes, answers and each worker, by column."""

    pushes: Mapping[str, Doubles]
    answers: Mapping[str, Doubles]
    workers: Mapping[int, Mapping[str, Doubles]]
    #: votes and reports at the coordinator, and of each worker; empty in files of before they had stamps
    said: Mapping[str, Doubles]
    words: Mapping[int, Mapping[str, Doubles]]
    #: one in so many stretches of exchanges has stamps
    every: int
    #: of each worker, before and after: by how much its clock is behind the coordinator's, and the round trip
    clocks: Mapping[int, Doubles]
    #: seconds of `encoding` and `decoding`, of each worker; and those of a server's service, with its queue
    codecs: Mapping[int, Mapping[str, Doubles]]
    servers: Mapping[str, Mapping[str, Doubles]]


def stamps_of(run: Run) -> Stamps | None:
    """Return a run's stamps, None if it has none.

    Raises
    ------
    DataError
        If they are cut off, or a clock ran away from the coordinator's.
    """
    plain = run.meta.get("stamps")
    if plain is None:
        return None
    try:
        names = plain["columns"]
        pushes = _columns(names["push"], plain["pushes"])
        if "number" not in pushes:  # a record of before, when all pushes had stamps
            pushes["number"] = np.arange(len(pushes["worker"]), dtype=np.float64)
        workers = {
            int(name.rpartition(" ")[2]): (_columns(names["worker"], each["rows"]), np.array(each["clocks"]))
            for name, each in plain["workers"].items()
        }
        found = Stamps(
            pushes,
            _columns(names["answer"], plain["answers"]),
            {worker: rows for worker, (rows, _) in workers.items()},
            _columns(names.get("said", SAID_COLUMNS), plain.get("said", [])),
            {
                int(name.rpartition(" ")[2]): _columns(WORKER_SAID_COLUMNS, each.get("said", []))
                for name, each in plain["workers"].items()
            },
            int(plain.get("every", 1)),
            {worker: clocks for worker, (_, clocks) in workers.items()},
            {
                int(name.rpartition(" ")[2]): {
                    of: _seconds(each.get(of, [])) for of in ("encoding", "decoding")
                }
                for name, each in plain["workers"].items()
            },
            {
                name: {of: _seconds(text) for of, text in each.items()}
                for name, each in plain.get("servers", {}).items()  # records of before have none
            },
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the run's stamps are truncated ({error}); run it again") from None
    for worker, clocks in found.clocks.items():
        _check_clock(worker, clocks)
    return found


def _columns(names: Sequence[str], rows: str | Sequence[Sequence[float]]) -> dict[str, Doubles]:
    table = rows_of(rows, names)
    return {name: table[:, at] for at, name in enumerate(names)}


def _seconds(text: str | Sequence[Sequence[float]]) -> Doubles:
    return rows_of(text, ["s"])[:, 0]


def _check_clock(worker: int, clocks: Doubles) -> None:
    """Raise DataError if a clock's offset changed during a run by more than the round trips."""
    if len(clocks) < 2:
        return
    (before, first_s), (after, last_s) = clocks[0], clocks[-1]
    if (apart := abs(after - before)) > (first_s + last_s) / 2 + _DRIFT_S:
        raise DataError(
            f"the clocks of worker {worker} and the coordinator drift apart by {apart:.3g} s during the "
            "run; synchronise them (NTP), and measure again"
        )


def with_cpu_times(stamps: Stamps, each: Exchanges) -> Exchanges | None:
    """Return the stamped exchanges, with steps that take their CPU time and waits, without contention.

    None if the stamps are not of the log's pushes.
    """
    names = ("worker", "ticket", "number")
    numbers = {
        (worker, ticket): number
        for worker, ticket, number in zip(*(stamps.pushes[name].tolist() for name in names), strict=True)
    }
    seconds = dict[int, tuple[int, float]]()
    for worker, rows in stamps.workers.items():
        values = (rows["cpu_s"] + rows["paced_s"]) / np.maximum(rows["steps"], 1)
        for ticket, value in zip(rows["ticket"].tolist(), values.tolist(), strict=True):
            number = numbers.get((worker, ticket))
            if number is not None:  # else it was on its way when the run ended
                seconds[int(number)] = worker, max(value, 1e-7)
    pushes = zip(each.push.tolist(), each.worker.tolist(), strict=True)
    own = [seconds.get(push, (worker, 0.0)) for push, worker in pushes]
    if not seconds or any(of != worker for (of, _), worker in zip(own, each.worker.tolist(), strict=True)):
        return None
    cpu = np.array([value for _, value in own])
    return replace(each, compute_s=cpu).where(cpu > 0)


def cores_of(runs: Sequence[Stamps]) -> Cores:
    """Fit the cores of one machine by the ratio between step times and CPU times.

    While n steps are under way on C cores, each proceeds at min(1, C / n). C is that of the least squares of
    CPU seconds beside what its share comes to; the interval is of a bootstrap over steps.
    """
    tables = [_spans(run) for run in runs]
    cpu = np.concatenate([each[2] for each in tables])
    wall = np.concatenate([each[1] - each[0] for each in tables])
    paced = np.concatenate([each[3] for each in tables])
    if len(cpu) < 20:
        return _none("too few steps have stamps")
    if np.median(cpu / (wall + paced)) < _COMPUTES:
        return _none(
            f"of a step {percent(np.median(cpu / (wall + paced)))} is CPU time: workers leave cores to others"
        )
    most = max(int(_under_way(begin, end).max()) for begin, end, _, _ in tables)
    tried = np.arange(0.5, most + _GRID / 2, _GRID)
    shares = np.stack([np.concatenate([_share(*each[:2], cores) for each in tables]) for cores in tried])
    errors = (shares - cpu) ** 2
    best = int(errors.sum(axis=1).argmin())
    if errors[best].sum() > (1 - _EXPLAINS) * errors[-1].sum() or best == len(tried) - 1:
        return _none(
            f"up to {most} steps at once did not make each other longer: it has at least {most} cores"
        )
    rng = Streams(0).generator("cores")
    drawn = [
        int(errors[:, rng.integers(len(cpu), size=len(cpu))].sum(axis=1).argmin()) for _ in range(_DRAWS)
    ]
    low, high = np.quantile(tried[drawn], (0.05, 0.95))
    return Cores(float(tried[best]), float(low), float(high), "")


def _none(why: str) -> Cores:
    return Cores(0.0, 0.0, 0.0, why)


def _spans(stamps: Stamps) -> tuple[Doubles, Doubles, Doubles, Doubles]:
    """Return begin, end, CPU time and internal waits of steps, on one clock."""
    parts = []
    for worker, rows in stamps.workers.items():
        one = rows["steps"] == 1
        begin = rows["begun_s"][one] + float(stamps.clocks[worker][:, 0].mean())
        parts.append((begin, begin + rows["wall_s"][one], rows["cpu_s"][one], rows["paced_s"][one]))
    begin, end, cpu, paced = (np.concatenate(column) for column in zip(*parts, strict=True))
    return begin, end, cpu, paced


def _under_way(begin: Doubles, end: Doubles) -> Doubles:
    """Return the number of concurrent steps from each begin or end of a step."""
    moments = np.sort(np.concatenate([begin, end]))
    begun, ended = (np.searchsorted(np.sort(each), moments, "right") for each in (begin, end))
    found: Doubles = (begun - ended).astype(np.float64)
    return found


def _beside(begin: Doubles, end: Doubles) -> Doubles:
    """Return the mean number of other steps concurrent with each step."""
    moments = np.sort(np.concatenate([begin, end]))
    sums = np.concatenate([[0.0], np.cumsum(np.diff(moments) * _under_way(begin, end)[:-1])])
    both: Doubles = np.interp(end, moments, sums) - np.interp(begin, moments, sums)
    return np.maximum(0.0, both / np.maximum(end - begin, 1e-9) - 1.0)


def _share(begin: Doubles, end: Doubles, cores: float) -> Doubles:
    """Return the core seconds of each step if the steps share the cores equally."""
    moments = np.sort(np.concatenate([begin, end]))
    rate = np.minimum(1.0, cores / np.maximum(_under_way(begin, end), 1))
    had = np.concatenate([[0.0], np.cumsum(np.diff(moments) * rate[:-1])])
    share: Doubles = np.interp(end, moments, had) - np.interp(begin, moments, had)
    return share


def _words_s(stamps: Stamps) -> Doubles:
    """Return the transfer times of votes and reports, on one clock; seconds."""
    found = [np.zeros(0)]
    for worker, rows in stamps.words.items():
        there = stamps.said["received_s"][stamps.said["worker"] == worker]
        both = min(len(there), len(rows["sent_s"]))  # the last may be on its way
        found.append(there[:both] - rows["sent_s"][:both] - float(stamps.clocks[worker][:, 0].mean()))
    whole: Doubles = np.concatenate(found)
    return whole


def _served(name: str, runs: Sequence[Mapping[str, Doubles]]) -> list[str]:
    """Return remarks on a server's use of time, and on its queue."""
    serving, updating, waiting = (
        np.concatenate([each[of] for each in runs]) for of in ("serving", "updating", "waiting")
    )
    if not len(waiting):
        return []  # workers hold the parameters
    queue = f"{waiting.mean():.2g} others waiting (at most {waiting.max():.0f})" if waiting.min() >= 0 else ""
    times = f"{serving.sum() / len(waiting) * 1e6:.3g} us a push and its answer"
    update = f"an update {updating.mean() * 1e6:.3g} us" if len(updating) else "no update"
    return [f"{name}: {', '.join(filter(None, (times, update, queue and f'a push found {queue}')))}"]


def in_words(stamps: Sequence[Stamps], cost_s: float) -> list[str]:
    """Return remarks from stamps: queues at the coordinator, clocks, and the stamps' own cost."""
    waiting = np.concatenate([each.pushes["waiting"] for each in stamps])
    queue = np.concatenate([each.pushes["dequeued_s"] - each.pushes["received_s"] for each in stamps])
    steps = np.concatenate([_spans(each)[1] - _spans(each)[0] + _spans(each)[3] for each in stamps])
    apart = max(float(np.ptp(clocks[:, 0])) for each in stamps for clocks in each.clocks.values())
    every = max(each.every for each in stamps)
    share = cost_s / steps.mean() / every
    above = _WITHIN * share > _TOO_MUCH
    lines = [
        f"stamps: {cost_s * 1e6:.2g} us of CPU an exchange, taken, carried and kept, "
        f"{percent(share, 2)} of a step"
        + (f"; steps are short, so one in {every} stretches of exchanges has them" if every > 1 else "")
        + (f"; within a run they may take {_WITHIN} times that: over 2 %" if above else ""),
        f"clocks: before and after a run at most {apart * 1e6:.3g} us apart",
    ]
    beside = np.concatenate([_beside(*_spans(each)[:2]) for each in stamps])
    cpu, paced = (sum(float(_spans(each)[at].sum()) for each in stamps) for at in (2, 3))
    computed = float(steps.sum()) - paced
    each_ms = f"{cpu / len(steps) * 1e3:.3g} ms of CPU in {computed / len(steps) * 1e3:.3g} ms (mean)"
    busy = f"{beside.mean():.2g} others compute meanwhile, at most {beside.max():.2g}"
    lines.append(f"steps: {each_ms}; {busy}")
    if (waiting >= 0).all():
        lines.append(f"queue: a push found {waiting.mean():.2g} others waiting, at most {waiting.max():.0f}")
    for name in sorted({name for each in stamps for name in each.servers}):
        lines += _served(name, [each.servers[name] for each in stamps if name in each.servers])
    if len(took := np.concatenate([_words_s(each) for each in stamps])):
        lines.append(f"votes and reports: {len(took)}, {np.median(took) * 1e3:.3g} ms on their way (median)")
    return [
        *lines,
        f"queue: from receipt to the decision's beginning {np.median(queue) * 1e6:.2g} us (median)",
    ]
