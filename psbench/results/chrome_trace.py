"""A run as a trace in Chrome's JSON format, which Perfetto and Chrome open."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

import numpy as np
import pandas as pd

from psbench import metrics
from psbench.arrays import Array
from psbench.core.log import EventLog, Kind
from psbench.errors import SpecError
from psbench.metrics.record import RunRecord
from psbench.metrics.rows import Rows, pick, positions, workers_of
from psbench.system.files import atomic_write, check_writable

_Event: TypeAlias = dict[str, Any]
#: of each slice, by its table and row: the flows that begin ("s"), pass ("t") or end ("f") there
_Flows: TypeAlias = Mapping[tuple[str, int], list[tuple[str, int]]]

#: made once: `json.dumps` makes an encoder for each call that has options
_encode = json.JSONEncoder(allow_nan=False, check_circular=False).encode
#: processes of the trace, and the first thread of each: one with its process's number is its main thread
_WORKERS, _SERVERS, _MODEL, _THREAD = 1, 2, 3, 100
#: rows without a duration, marked on their worker's thread or, if they concern all, across the trace
_MARKS = {
    **{Kind.JOIN: "joins", Kind.LEAVE: "leaves", Kind.DROP: "dropped", Kind.READMIT: "readmitted"},
    **{Kind.CANCEL: "step cancelled", Kind.HANDOVER: "switch", Kind.REASSIGN: "parameters reassigned"},
    Kind.RESUME: "resumed",
}
_OF_ALL = (Kind.HANDOVER, Kind.REASSIGN, Kind.RESUME)


def write_chrome_trace(run: RunRecord, path: str | Path) -> Path:
    """Write a run as a trace for https://ui.perfetto.dev or chrome://tracing; atomically.

    Parameters
    ----------
    run : RunRecord
    path : path
        Ends in `.json`, or in `.json.gz` for a compressed file, which Perfetto opens as well.

    Notes
    -----
    A microsecond of the trace is a microsecond of the run's clock, virtual or real. It has three processes:

    - workers: a thread for each, with the spans of `metrics.timeline`. Sends that overlap with computation
      (`metrics.sends_beside`) have a second thread.
    - servers (of a run without a server: models): a thread for the pushes of each worker, with a slice from a
      push's arrival to the decision about it, named by the decision. The slice is the time in which the push
      was buffered, 0 if it was applied at once: the log does not have the computing time of an update.
    - model: the counters `version` (without a server: `updates`) and `staleness`, and one for each evaluated
      value.

    A flow leads from a worker's send over the push to the worker's next activity.

    Raises
    ------
    SpecError
        If the name ends otherwise, or the file cannot be written.
    """
    path = Path(path)
    if not path.name.endswith((".json", ".json.gz")):
        raise SpecError(f"{path}: the name of a trace must end in .json or .json.gz")
    check_writable(path.parent)
    with atomic_write(path) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
                _write(run, cast(BinaryIO, packed))
        else:
            _write(run, file)
    return path


def _write(run: RunRecord, file: BinaryIO) -> None:
    names = ("name", "strategy", "seed", "backend", "status", "reason", "run_id")
    about = {name: run.meta[name] for name in names if name in run.meta}
    about["clock"] = metrics.clock_of(run.meta)
    file.write(b'{"displayTimeUnit": "ms", "otherData": ' + json.dumps(about).encode())
    file.write(b', "traceEvents": [')
    separator = "\n"
    for event in _events(run.log):
        file.write((separator + _encode(event)).encode())
        separator = ",\n"
    file.write(b"\n]}\n")


def _events(log: EventLog) -> Iterator[_Event]:
    own, beside, served = _with_threads(metrics.timeline(log)), metrics.sends_beside(log), _served(log)
    beside = _with_threads(beside, 1 + int(log.rows()["worker"].max(initial=0)))
    yield from _names(log, beside, served)
    flows = _flows(log.rows(), own, beside, served)
    yield from _slices(_WORKERS, "worker", own, ("reason", "waited_for"), flows)
    yield from _slices(_WORKERS, "overlap", beside, (), flows)
    yield from _slices(_SERVERS, "server", served, _OF_A_PUSH, flows)
    yield from _marks(log)
    yield from _counters(log)


def _with_threads(spans: pd.DataFrame, first: int = 0) -> pd.DataFrame:
    return spans.rename(columns={"phase": "name"}).assign(thread=spans["worker"] + _THREAD + first)


#: columns of `metrics.pushes` that a slice of a push shows
_OF_A_PUSH = ("push", "worker", "base_version", "version", "staleness", "samples", "bytes", "loss")


def _served(log: EventLog) -> pd.DataFrame:
    """Return a span for each push from its arrival to its decision; those of a thread do not overlap.

    `depth` is 0, or counts the pushes of the same worker that were undecided when this one arrived.
    """
    found, rows = metrics.pushes(log), log.rows()
    discarded = pick(rows, Kind.DISCARD)
    end = found["applied_s"].to_numpy(float).copy()
    end[pd.Index(found["push"]).get_indexer(pd.Index(discarded["id"]))] = discarded["time_s"]
    end[np.isnan(end)] = metrics.end_of(rows)  # buffered until then
    free = defaultdict[int, list[float]](list)  # of each worker, when each of its threads is free
    places = list[tuple[int, int]]()
    for worker, start, stop in zip(found["worker"], found["time_s"], end.tolist(), strict=True):
        until = free[worker]
        depth = next((at for at, each in enumerate(until) if each <= start), len(until))
        until[depth : depth + 1] = [stop]
        places.append((worker, depth))
    threads = {place: _THREAD + number for number, place in enumerate(sorted(set(places)))}
    return found[list(_OF_A_PUSH)].assign(
        name=found["fate"],
        start_s=found["time_s"],
        end_s=end,
        thread=[threads[place] for place in places],
        depth=[depth for _, depth in places],
    )


def _names(log: EventLog, beside: pd.DataFrame, served: pd.DataFrame) -> Iterator[_Event]:
    """Yield the names of processes and threads, which viewers show in the order of their numbers."""
    processes = {
        _WORKERS: "workers",
        _SERVERS: "models" if _is_serverless(log) else "servers",
        _MODEL: "model",
    }
    for pid, name in processes.items():
        yield _meta("process_name", pid, name=name)
        yield _meta("process_sort_index", pid, sort_index=pid)
    threads = {(_WORKERS, worker + _THREAD): f"worker {worker}" for worker in workers_of(log.rows())}
    for worker, thread in set(zip(beside["worker"], beside["thread"], strict=True)):
        threads[_WORKERS, thread] = f"worker {worker}, sends while it computes"
    for worker, thread, depth in set(zip(served["worker"], served["thread"], served["depth"], strict=True)):
        threads[_SERVERS, thread] = f"pushes of worker {worker}" + (f" ({depth + 1})" if depth else "")
    for (pid, tid), name in sorted(threads.items()):
        yield _meta("thread_name", pid, int(tid), name=name)
        yield _meta("thread_sort_index", pid, int(tid), sort_index=int(tid))


def _is_serverless(log: EventLog) -> bool:
    return bool(len(log.of_kind(Kind.MIX)["row"]))


def _meta(what: str, pid: int, tid: int = 0, **args: str | int) -> _Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _slices(
    pid: int, table: str, spans: pd.DataFrame, shown: tuple[str, ...], flows: _Flows
) -> Iterator[_Event]:
    """Yield the spans of a table as slices, each with its flows."""
    names, threads = spans["name"].astype(str).tolist(), spans["thread"].tolist()
    starts, ends = (_nanoseconds(spans[name].to_numpy(float)) for name in ("start_s", "end_s"))
    details = [_known(spans[name]) for name in shown]
    for row, (name, tid, start, end) in enumerate(zip(names, threads, starts, ends, strict=True)):
        place = {"pid": pid, "tid": tid, "ts": start / 1000}
        args = {key: own[row] for key, own in zip(shown, details, strict=True) if own[row] is not None}
        yield {"ph": "X", "name": name, "cat": table, **place, "dur": (end - start) / 1000, "args": args}
        for phase, push in flows.get((table, row), ()):
            bound = {"bp": "e"} if phase == "f" else {}
            yield {"ph": phase, "name": "push", "cat": "push", "id": push, **place, **bound}


def _nanoseconds(seconds: Array) -> list[int]:
    found: list[int] = np.rint(1e9 * seconds).astype(np.int64).tolist()
    return found


def _known(column: pd.Series[Any]) -> list[Any]:
    """Return a column as a list, with None where a cell is empty or has no value in JSON."""
    known = column.notna() & ~column.isin(["", np.inf, -np.inf])
    return [value if there else None for value, there in zip(column.tolist(), known, strict=True)]


def _flows(rows: Rows, own: pd.DataFrame, beside: pd.DataFrame, served: pd.DataFrame) -> _Flows:
    """Return the flow of each push: from the span that sent it over its own to its worker's next one."""
    sent = {
        (worker, end): (table, row)
        for table, spans in (("worker", own), ("overlap", beside))
        for row, (worker, end) in enumerate(zip(spans["worker"], spans["end_s"], strict=True))
    }
    following = _following(rows, own)
    found = defaultdict[tuple[str, int], list[tuple[str, int]]](list)
    for row, (push, worker, arrived) in enumerate(
        zip(served["push"], served["worker"], served["start_s"], strict=True)
    ):
        chain = [sent.get((worker, arrived)), ("server", row), following[row]]
        there = [each for each in chain if each is not None]
        for place, phase in zip(there, ("s", *"t" * (len(there) - 2), "f"), strict=False):
            if len(there) > 1:
                found[place].append((phase, int(push)))
    return found


def _following(rows: Rows, own: pd.DataFrame) -> list[tuple[str, int] | None]:
    """Return for each push the span of its worker that begins with the next release, or None."""
    pushed, released = positions(rows, Kind.PUSH), positions(rows, Kind.RELEASE)
    found: list[tuple[str, int] | None] = [None] * len(pushed)
    workers, starts = own["worker"].to_numpy(), own["start_s"].to_numpy(float)
    for worker in workers_of(rows):
        mine = np.flatnonzero(rows["worker"][pushed] == worker)
        answers = released[rows["worker"][released] == worker]
        spans = np.flatnonzero(workers == worker)
        nearest = np.searchsorted(answers, pushed[mine])
        for push, answer in zip(mine.tolist(), nearest.tolist(), strict=True):
            if answer < len(answers):
                at = int(np.searchsorted(starts[spans], rows["time_s"][answers[answer]]))
                found[push] = ("worker", int(spans[at])) if at < len(spans) else None
    return found


def _marks(log: EventLog) -> Iterator[_Event]:
    """Yield the events without a duration: joins, departures, switches."""
    rows = pick(log.rows(), *_MARKS)
    for row, time_s in zip(rows, _nanoseconds(rows["time_s"]), strict=True):
        kind = Kind(row["kind"])
        whole = kind in _OF_ALL
        place = (
            {"pid": _MODEL, "tid": 0, "s": "g"}
            if whole
            else {"pid": _WORKERS, "tid": int(row["worker"]) + _THREAD, "s": "t"}
        )
        text = log.text(int(row["text"]))
        args = {"reason": text} if text else {}
        yield {"ph": "i", "name": _MARKS[kind], "cat": "mark", **place, "ts": time_s / 1000, "args": args}


def _counters(log: EventLog) -> Iterator[_Event]:
    """Yield the model's version, the staleness of each applied push, and the evaluated values."""
    stale = metrics.staleness(log)
    # without a server each worker has versions of its own, and all updates are counted
    made = {"updates": np.arange(1, len(stale) + 1)} if _is_serverless(log) else {"version": stale["version"]}
    columns = {**made, "staleness": stale["staleness"]}
    for name, column in columns.items():
        for time_s, value in zip(_nanoseconds(stale["time_s"].to_numpy()), column.tolist(), strict=True):
            yield _counter(name, time_s, value)
    for row in log.evaluations():
        (time_s,) = _nanoseconds(np.array([row["time_s"]]))
        for name, value in row.items():
            if name not in ("time_s", "epoch", "version") and value is not None and np.isfinite(value):
                yield _counter(name, time_s, value)


def _counter(name: str, time_ns: int, value: float) -> _Event:
    return {"ph": "C", "name": name, "pid": _MODEL, "tid": 0, "ts": time_ns / 1000, "args": {"value": value}}
