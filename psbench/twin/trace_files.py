"""Readers for traces: torch profiler, Flight Recorder dumps, CSV, psbench runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from psbench.arrays import Doubles
from psbench.core.typed_data import numbers_of, read_json, typed
from psbench.errors import DataError, naming
from psbench.results.run import Run
from psbench.specfile import dump_yaml
from psbench.system.files import write_text
from psbench.twin.attribution import Meetings
from psbench.twin.exchanges import SHORTEST_S, exchanges_of
from psbench.twin.variation import kept

if TYPE_CHECKING:
    import pandas as pd

#: seconds of begin and end, by worker and step
StepSpans = dict[str, dict[int, tuple[float, float]]]
_STEP = re.compile(r"ProfilerStep#(\d{1,18})(?!\d)")
#: what collectives are called by NCCL, gloo and c10d; communication of two alone is none
_COLLECTIVE = re.compile(
    r"(nccl|gloo|c10d|mpi|xccl)\S*(all_?reduce|all_?gather|reduce_?scatter|broadcast)", re.I
)
_RANK = re.compile(r"(\d+)\D*$")
#: by how much clocks may still differ from step to step, as a share of a step, once they are set
_APART = 0.2
#: times of a trace are below this, in seconds: sums of larger ones are no numbers
_LATEST_S = 1e12


class _Rank(NamedTuple):
    """The steps of one rank in one process group, by their numbers.

    Attributes
    ----------
    spans : dict of number to (seconds, seconds)
        From the beginning of a step until the rank was ready for its collective.
    ends : dict of number to seconds
        When a collective was over.
    incomplete : set of int
        Steps that begin or end with a collective that is not known to be completed.
    """

    spans: dict[int, tuple[float, float]]
    ends: dict[int, float]
    incomplete: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Traced:
    """The process groups of a trace.

    Attributes
    ----------
    groups : dict of name to Meetings
        Largest group first; a trace without groups has one, called "".
    left_out : dict of name to str
        Groups that cannot be analysed, with the reason.
    """

    groups: dict[str, Meetings]
    left_out: dict[str, str] = field(default_factory=dict)


def read_meetings(paths: Sequence[str | Path]) -> Meetings:
    """Read a trace of one process group: one file or run, or one torch file per rank.

    Raises
    ------
    DataError
        If a file cannot be read or is none of these, the trace has gaps or several process groups, or clocks
        run apart. One line.
    """
    found = read_trace(paths)
    if len(found.groups) > 1:
        raise DataError(f"the trace has several process groups ({', '.join(found.groups)}); use read_trace")
    return next(iter(found.groups.values()))


def read_trace(paths: Sequence[str | Path]) -> Traced:
    """Read a trace: one file or run, or one torch file per rank; process groups are separated.

    Raises
    ------
    DataError
        As `read_meetings`; of several groups, if none can be analysed.
    """
    found = [Path(path) for path in paths]
    if not found:
        raise DataError("diagnose: give a file, or one for each rank")
    alone = [path for path in found if path.is_dir() or path.suffix.lower() == ".csv"]
    if alone and len(found) > 1:
        raise DataError(f"{alone[0]}: contains all workers; remove the other files")
    if found[0].is_dir():
        return Traced({"": _of_run(found[0])})
    if found[0].suffix.lower() == ".csv":
        return Traced({"": _whole(_of_csv(found[0]), str(found[0]))})
    ranks = set[str]()
    groups = defaultdict[str, dict[str, _Rank]](dict)
    for path in found:
        plain = typed(dict[str, Any], read_json(path), path)
        read = _of_profiler if "traceEvents" in plain else _of_recorder if "entries" in plain else None
        if read is None:
            raise DataError(f"{path}: has neither traceEvents (torch profiler) nor entries (Flight Recorder)")
        rank, own = read(plain, path)
        if rank in ranks:
            raise DataError(f"{path}: is a second file of rank {rank}; give one for each rank")
        ranks.add(rank)
        for name, steps in own.items():
            groups[name][rank] = steps
    return _of_groups(groups, ", ".join(path.name for path in found))


def _of_groups(groups: Mapping[str, Mapping[str, _Rank]], where: str) -> Traced:
    traced = Traced({})
    errors = list[DataError]()
    for name in sorted(groups, key=lambda name: -sum(len(rank.spans) for rank in groups[name].values())):
        of = groups[name]
        try:
            spans = _one_clock(
                {rank: own.spans for rank, own in of.items()}, {r: own.ends for r, own in of.items()}
            )
            incomplete = frozenset[int]().union(*(own.incomplete for own in of.values()))
            traced.groups[name] = _whole(spans, where, incomplete)
        except DataError as error:
            errors.append(error)
            traced.left_out[name] = str(error).removeprefix(f"{where}: ")
    if not traced.groups:
        raise errors[0]
    return traced


def _rank_of(given: Any, path: Path) -> str:
    if given is not None:
        return str(given)
    number = _RANK.search(path.stem)
    if number is None:
        raise DataError(f"{path}: neither the file nor its name gives the rank; name it like rank_0.json")
    return number[1]


def _mappings(plain: Mapping[str, Any], name: str, path: Path) -> list[dict[str, Any]]:
    """Return the mappings in a list of a trace; other elements are not steps."""
    if not isinstance(plain[name], list):
        raise DataError(f"{path}: {name} is not a list")
    return [each for each in plain[name] if isinstance(each, dict)]


def _seconds(value: Any, unit: float) -> float:
    """Return a time from a trace.

    Raises
    ------
    TypeError, ValueError, OverflowError
        If it is none.
    """
    number = float(value) * unit
    if not abs(number) < _LATEST_S:
        raise ValueError(number)
    return number


def _of_profiler(plain: Mapping[str, Any], path: Path) -> tuple[str, dict[str, _Rank]]:
    """Return a rank, and its steps up to the start of their last collective, with the end of that."""
    about = plain.get("distributedInfo")
    rank = _rank_of(about.get("rank") if isinstance(about, dict) else None, path)
    steps, collectives = {}, []
    for event in _mappings(plain, "traceEvents", path):
        if event.get("ph") != "X":
            continue
        name = str(event.get("name", ""))
        try:
            begin, length = _seconds(event["ts"], 1e-6), _seconds(event["dur"], 1e-6)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise DataError(f"{path}: event {name!r} has no ts and dur; is the trace truncated?") from None
        if step := _STEP.search(name):
            steps[int(step[1])] = begin, begin + length
        elif _COLLECTIVE.search(name):
            collectives.append((begin, begin + length))
    if not steps:
        raise DataError(
            f"{path}: has no ProfilerStep; call profiler.step() after each step of a profiler that has a "
            "schedule, as profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=50))"
        )
    collectives.sort()
    spans, ends = {}, {}
    for number, (begin, end) in steps.items():
        own = [each for each in collectives if begin <= each[0] < end]
        if own:
            spans[number], ends[number] = (begin, own[-1][0]), own[-1][1]
    if not spans:
        raise DataError(f"{path}: has no collective of NCCL, gloo or c10d within its steps")
    return rank, {"": _Rank(spans, ends)}


def _of_recorder(plain: Mapping[str, Any], path: Path) -> tuple[str, dict[str, _Rank]]:
    """Return a rank, and for each process group its intervals between two collectives by number."""
    rank = _rank_of(plain.get("rank"), path)
    groups = defaultdict[str, list[tuple[int, float, float]]](list)
    for each in _mappings(plain, "entries", path):
        if not _COLLECTIVE.search(str(each.get("profiling_name", ""))):
            continue
        try:
            number, asked = int(each["collective_seq_id"]), _seconds(each["time_created_ns"], 1e-9)
            # of one that is not known to be completed torch writes 0 into JSON, and None into a pickle
            done = _seconds(each.get("time_discovered_completed_ns") or 0, 1e-9)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise DataError(
                f"{path}: an entry has no collective_seq_id and times in ns that are numbers; is the dump "
                "truncated?"
            ) from None
        groups[_group_of(each)].append((number, asked, done))
    over = np.sort([done for rows in groups.values() for _, _, done in rows if done])
    found = {name: _between_collectives(sorted(rows), over) for name, rows in groups.items()}
    if not any(each.spans for each in found.values()):
        without = sum(not done for rows in groups.values() for _, _, done in rows)
        why = f" ({without} have no time_discovered_completed_ns, as all but NCCL's do)" if without else ""
        raise DataError(f"{path}: has fewer than two completed collectives{why}")
    return rank, {name: each for name, each in found.items() if each.spans}


def _group_of(entry: Mapping[str, Any]) -> str:
    """Return the process group of an entry, as torch names it.

    >>> _group_of({"process_group": ["1", "mesh_dp"]}), _group_of({"pg_name": "0"}), _group_of({})
    ('mesh_dp (1)', '0', '')
    """
    given = entry.get("process_group", entry.get("pg_name", ""))
    name, *about = map(str, given) if isinstance(given, (list, tuple)) and given else [str(given)]
    return f"{about[0]} ({name})" if about and about[0] not in ("", "undefined") else name


def _between_collectives(rows: Sequence[tuple[int, float, float]], over: Doubles) -> _Rank:
    """Return the intervals between collectives of a group: number, requested and completed, 0 if unknown.

    `over`: when collectives of all groups were completed. A step begins when the last one before it was.
    """
    spans, incomplete = {}, set[int]()
    for (_, _, before), (number, asked, done) in pairwise(rows):
        if before and done:
            latest = over[max(0, int(np.searchsorted(over, asked, "right")) - 1)]
            spans[number] = max(before, min(float(latest), asked)), max(asked, before)
        else:
            incomplete.add(number)
    return _Rank(spans, {number: done for number, _, done in rows if done}, frozenset(incomplete))


def _of_csv(path: Path) -> StepSpans:
    import pandas as pd

    columns = ["worker", "step", "begin", "end"]
    try:
        frame = pd.read_csv(path)
    except OSError as error:
        raise DataError(f"{path}: {(error.strerror or 'it cannot be read').lower()}") from None
    except ValueError as error:
        raise DataError(f"{path}: is not a CSV file ({str(error).splitlines()[0]})") from None
    if missing := [name for name in columns if name not in frame.columns]:
        raise DataError(f"{path}: has no column {missing[0]!r}; expected {', '.join(columns)}")
    if frame.empty:
        raise DataError(f"{path}: has no rows below its header")
    _refuse_rows(path, frame["worker"].isna(), "worker has no name")
    for name in columns[1:]:
        frame[name] = numbers_of(frame[name])
        _refuse_rows(path, frame[name].isna(), f"{name} is not a number")
    _refuse_rows(path, frame["step"] % 1 != 0, "step is not a whole number")
    for name in columns[2:]:
        _refuse_rows(path, frame[name].abs() >= _LATEST_S, f"{name} is too large for a time in seconds")
    spans: StepSpans = defaultdict(dict)
    for worker, step, begin, end in frame[columns].itertuples(index=False):
        if int(step) in spans[str(worker)]:
            raise DataError(f"{path}: worker {worker} has step {int(step)} twice")
        spans[str(worker)][int(step)] = float(begin), float(end)
    return spans


def _refuse_rows(path: Path, wrong: pd.Series[bool], what: str) -> None:
    if wrong.any():
        raise DataError(f"{path}: row {int(np.argmax(wrong.to_numpy()))}: {what}")


def _of_run(folder: Path) -> Meetings:
    """Return the synchronised steps of a psbench run with a barrier: pushes of one version."""
    found = exchanges_of(Run.load(folder).log).settled()
    spans: StepSpans = defaultdict(dict)
    messages = defaultdict[str, dict[int, float]](dict)
    rounds: dict[float, int] = {}
    computed = found.compute_s * np.maximum(found.steps, 1)
    columns = found.worker, found.released_s, found.arrived_s, computed
    for worker, begun, arrived, compute_s in zip(*(column.tolist() for column in columns), strict=True):
        name, number = f"worker {worker}", rounds.setdefault(begun, len(rounds))
        spans[name][number] = begun, arrived
        messages[name][number] = max(0.0, arrived - begun - compute_s)
    met = set.intersection(*(set(own) for own in spans.values()))
    if len(met) < len(rounds) / 2:
        raise DataError(
            f"{folder}: its workers do not synchronise; `psbench report` shows for whom each waited"
        )
    whole = _whole(spans, str(folder))
    return replace(
        whole, messages=np.array([[messages[w][step] for step in sorted(met)] for w in whole.workers])
    )


def _one_clock(spans: StepSpans, ends: Mapping[str, Mapping[int, float]]) -> StepSpans:
    """Align all clocks at the ends of collectives, which are simultaneous."""
    first, *others = sorted(spans)
    set_spans = {first: spans[first]}
    for rank in others:
        common = sorted(ends[first].keys() & ends[rank].keys())
        if not common:
            raise DataError(f"rank {rank} has no step in common with rank {first}")
        ahead = np.array([ends[rank][step] - ends[first][step] for step in common])
        times = np.array([ends[rank][step] for step in common])
        is_line = len(common) > 2 and np.ptp(times) > 0
        drift, offset = np.polyfit(times - times[0], ahead, 1) if is_line else (0.0, ahead.mean())
        left = ahead - offset - drift * (times - times[0])
        whole = float(np.median(np.diff(times))) if len(times) > 1 else 1.0
        if np.median(np.abs(left)) > _APART * whole:
            raise DataError(
                f"the clocks of rank {rank} and rank {first} differ by more than a constant drift"
            )

        def moved(at: float, offset: float = offset, drift: float = drift, zero: float = times[0]) -> float:
            return at - offset - drift * (at - zero)

        set_spans[rank] = {step: (moved(begin), moved(end)) for step, (begin, end) in spans[rank].items()}
    return set_spans


def _whole(spans: StepSpans, where: str, incomplete: frozenset[int] = frozenset()) -> Meetings:
    """Return the steps common to all workers; only the first and the last may be missing for some.

    Steps that are `incomplete` for a worker are left out.
    """
    workers = sorted(spans, key=lambda name: (len(name), name))
    common = set.intersection(*(set(own) for own in spans.values())) - incomplete
    if not common:
        raise DataError(f"{where}: its workers have no step in common")
    for worker in workers:
        known = {
            step for own in spans.values() for step in own if min(common) < step < max(common)
        } - incomplete
        if missing := sorted(known - set(spans[worker])):
            raise DataError(f"{where}: worker {worker} has no step {missing[0]}: the trace has a gap")
    times = np.array([[spans[worker][step] for step in sorted(common)] for worker in workers])
    with naming(where):
        return Meetings(workers, times[:, :, 0] - times[:, :, 0].min(), times[:, :, 1] - times[:, :, 0].min())


def cluster_of(meetings: Meetings, path: str | Path) -> None:
    """Write a trace's workers as a cluster with their measured step times; its links are unknown."""
    seconds = [kept(np.maximum(own, SHORTEST_S)) for own in meetings.end - meetings.begin]
    steps = {"name": "trace", "order": "blocks", "seconds": seconds}
    plain = {"cluster": {"workers": len(seconds), "step_time": steps}}
    write_text(path, dump_yaml(plain, default_flow_style=None, width=110))
