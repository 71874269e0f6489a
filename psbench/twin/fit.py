"""From what runs measured to a cluster: step times, links, servers, decisions; what is not known is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psbench.backends.stamps import cost_s
from psbench.clusters.shared_link import SharedLink
from psbench.errors import ParameterError
from psbench.results.run import Run
from psbench.twin.codecs import (
    NO_CODEC,
    NO_CODING,
    Coding,
    codecs_of,
    coding_of,
    mean_and_width,
    without_codec,
)
from psbench.twin.crowding import Crowd, seconds_in_company
from psbench.twin.exchanges import SHORTEST_S, Exchanges, exchanges_of
from psbench.twin.size_classes import rate_at, size_classes
from psbench.twin.stamped import Stamps, cores_of, in_words, stamps_of, with_cpu_times
from psbench.twin.variation import half_width, kept, together, variation_of

#: megabits per second that mean: what bytes cost is in the latency
NO_LIMIT = 1e6
#: what bands of more workers than were measured hold beside the others
IN_COMPANY = "a message's latency with each other under way, s"
#: values of each end of a link that a profile keeps
_KEPT_OF_LINK = 64
_MBIT = 8e-6
#: of what company costs, as nothing is quicker for it
_NOTHING_S = 1e-9
#: company that a message may have on its way, and still counts as alone
_ALONE = 0.05


class Fitted(NamedTuple):
    """A number of the cluster, with its 90 % interval, and what it comes from."""

    value: float
    low: float
    high: float
    source: str


class MeasuredLink(NamedTuple):
    """Links between workers as measured by `psbench doctor`: one way, and the rate of the largest messages.

    `seconds`: one way, of messages by their bytes (0: of next to none), a value for each end of each link.
    `up_mbit_s`, `down_mbit_s`: to a worker and back from it, each link alone; `at_once_mbit_s`: to one worker
    from all others together. 0: not measured.
    """

    latency_s: float
    mbit_s: float
    seconds: Mapping[int, Sequence[float]] = {}
    up_mbit_s: float = 0.0
    down_mbit_s: float = 0.0
    at_once_mbit_s: float = 0.0


@dataclass
class Fit:
    """A cluster as a specification, its numbers with intervals, and what is not known, in words."""

    cluster: dict[str, Any] = field(default_factory=dict)
    fitted: dict[str, Fitted] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    codecs: dict[str, Coding] = field(default_factory=dict)


def fit(runs: Sequence[Run], link: MeasuredLink | None = None) -> Fit:
    """Fit a cluster to runs of one model on the same workers; every fitted time is above zero.

    Raises
    ------
    ParameterError
        Without a run, or if the runs are of other models or numbers of workers.
    DataError
        If a log cannot be measured; see `exchanges_of`.
    """
    workers = _same(runs)
    found = Fit(cluster={"workers": workers})
    whole, stamps = [exchanges_of(run.log) for run in runs], [stamps_of(run) for run in runs]
    _fit_steps(found, [each.settled() for each in _on_cores(found, stamps, whole)], workers)
    codings = _fit_codecs(found, runs, stamps)
    measured = [without_codec(each.settled(), own) for each, own in zip(whole, codings, strict=True)]
    service_s = _fit_service(found, runs, stamps, measured, codings)
    _fit_links(found, measured, workers, service_s, link)
    return found


def _same(runs: Sequence[Run]) -> int:
    if not runs:
        raise ParameterError("calibrate: give at least one run")
    for key, what in {"num_workers": "workers", "model_bytes": "bytes of the model"}.items():
        values = sorted({run.meta[key] for run in runs})
        if len(values) > 1:
            raise ParameterError(
                f"calibrate: the runs have {values[0]} and {values[-1]} {what}; give equal ones"
            )
    return int(runs[0].meta["num_workers"])


# -------------------------------------------------------------------- cores


def _on_cores(
    found: Fit, stamps: Sequence[Stamps | None], measured: Sequence[Exchanges]
) -> Sequence[Exchanges]:
    """Fit the cores that workers share; return exchanges with steps as long as on a core of their own."""
    known = [each for each in stamps if each is not None]
    if not known:
        found.unknown.append(
            "cores: the runs have no stamps; steps are taken to need as long beside any others"
        )
        return measured
    found.remarks += in_words(known, cost_s())
    cores = cores_of(known)
    pairs = zip(stamps, measured, strict=True)
    alone = [None if own is None else with_cpu_times(own, each) for own, each in pairs]
    if not cores.value or any(each is None for each in alone):
        found.unknown.append(f"cores: {cores.why or 'stamps and logs are not of the same pushes'}")
        return measured
    found.cluster["cores"] = _rounded(cores.value)
    stamped = [each for each in alone if each is not None]
    found.fitted["cores"] = Fitted(*cores[:3], f"{sum(map(len, stamped))} steps")
    return stamped


# -------------------------------------------------------------------- steps


def _fit_steps(found: Fit, measured: Sequence[Exchanges], workers: int) -> None:
    """Fit seconds a step and a sample, each worker's speed, and how the times vary."""
    every = {
        name: np.concatenate([getattr(each, name) for each in measured]) for name in ("worker", "samples")
    }
    seconds = np.concatenate([each.compute_s for each in measured])
    missing = set(range(workers)) - set(every["worker"].tolist())
    if missing:
        raise ParameterError(f"calibrate: worker {min(missing)} has too few steps; let the probes run longer")
    batches = np.unique(every["samples"])
    cells = {
        (worker, batch): seconds[(every["worker"] == worker) & (every["samples"] == batch)]
        for worker in range(workers)
        for batch in batches.tolist()
    }
    means = {cell: float(values.mean()) for cell, values in cells.items() if len(values)}
    slowness, base = _slowness(means, workers)
    per_step, per_sample = _line(base)
    found.cluster |= {
        "speed": [_rounded(1.0 / each) for each in slowness],
        "seconds_per_step": _rounded(per_step),
        "seconds_per_sample": _rounded(per_sample),
    }
    if len(base) == 1:
        bound = f"0 to {base[next(iter(base))] / next(iter(base)):.3g} s"
        found.unknown.append(f"seconds_per_sample: all steps had {batches[0]} samples; it is {bound}")
    common = _common_batch(cells, workers)
    for worker in range(workers):
        own = (batch for each, batch in means if each == worker)
        batch = common or max(own, key=lambda b: len(cells[worker, b]))
        wide, mean = half_width(cells[worker, batch]), means[worker, batch]
        source = f"{len(cells[worker, batch])} steps of {batch} samples"
        found.fitted[f"step of worker {worker}, s"] = Fitted(mean, max(0.0, mean - wide), mean + wide, source)
    series = [
        each.compute_s[own] / means[worker, batch]
        for each in measured
        for (worker, batch) in means
        if (own := (each.worker == worker) & (each.samples == batch)).sum() > 1
    ]
    found.cluster["step_time"], why = variation_of(series)
    found.remarks.append(f"steps: {why}")
    _say_whether_slow_together(found, measured, means)


def _common_batch(cells: Mapping[tuple[int, int], NDArray[np.float64]], workers: int) -> int:
    """Return the batch size at which the workers' step times are compared; 0 if they have none in common.

    Of several it is the one of which the worker with the fewest steps has most.
    """
    fewest = {batch: min(len(cells[each, batch]) for each in range(workers)) for _, batch in cells}
    best = max(fewest, key=lambda batch: (fewest[batch], batch))
    return best if fewest[best] else 0


def _say_whether_slow_together(
    found: Fit, measured: Sequence[Exchanges], means: Mapping[tuple[int, int], float]
) -> None:
    """Name a common factor of all workers' steps, with its bound: the simulator's workers have none."""
    known = list[NDArray[np.float64]]()
    for each in measured:
        cells = zip(each.worker.tolist(), each.samples.tolist(), strict=True)
        factors = each.compute_s / np.array([means[cell] for cell in cells])
        known += together(each.worker, each.released_s, factors)
    if not known:
        found.unknown.append("a common slow factor of all workers: too few steps to tell; taken as none")
        return
    r, low, high = np.mean(known, axis=0)
    said = "and is there: barriers wait less than is predicted" if low > 0.1 else "taken as none"
    bound = f"steps at the same time are correlated by {r:+.2f} ({low:+.2f} to {high:+.2f})"
    found.unknown.append(f"a common slow factor of all workers: {bound}; {said}")


def _slowness(means: dict[tuple[int, int], float], workers: int) -> tuple[list[float], dict[int, float]]:
    """Return how much slower each worker is than the fastest, and the fastest's seconds by batch.

    Least squares of log(mean) = log(base of the batch) + log(slowness of the worker).
    """
    batches = sorted({batch for _, batch in means})
    rows, logs = np.zeros((len(means), workers + len(batches))), np.log(list(means.values()))
    for row, (worker, batch) in enumerate(means):
        rows[row, worker] = rows[row, workers + batches.index(batch)] = 1.0
    solved = np.linalg.lstsq(rows, logs, rcond=None)[0]
    fastest = solved[:workers].min()
    base = np.exp(solved[workers:] + fastest).tolist()
    return np.exp(solved[:workers] - fastest).tolist(), dict(zip(batches, base, strict=True))


def _line(base: dict[int, float]) -> tuple[float, float]:
    """Return seconds a step and seconds a sample; of one batch alone, no step is free and no sample."""
    batches, seconds = np.array(list(base), dtype=float), np.array(list(base.values()))
    if len(base) == 1:
        return 0.0, float(seconds[0] / batches[0])
    slope, fixed = np.polyfit(batches, seconds, 1)
    if slope <= 0:  # samples cost nothing beside the step
        return float(seconds.mean()), SHORTEST_S * 1e-3
    return (float(fixed), float(slope)) if fixed >= 0 else (0.0, float((seconds / batches).mean()))


# -------------------------------------------------------------------- codecs, servers and links


def _fit_codecs(found: Fit, runs: Sequence[Run], stamps: Sequence[Stamps | None]) -> list[Coding]:
    """Fit what codecs take, each with its parameters; returns that of each run."""
    known: dict[str, list[list[NDArray[np.float64]]]] = {}
    for run, own in zip(runs, stamps, strict=True):
        if (name := codecs_of(run.experiment)) != NO_CODEC:
            seconds = coding_of(run, own)
            known.setdefault(name, []).extend([] if seconds is None else [seconds])
    for name, parts in known.items():
        if not parts:
            found.unknown.append(
                f"codec {name}: its runs have no times of it; they are in latencies and service"
            )
            continue
        means = []
        for of, *values in zip(Coding._fields, *parts, strict=True):
            whole = np.concatenate(values)
            each = Fitted(*mean_and_width(whole), f"{len(whole)} vectors")
            found.fitted[f"codec {name}: {of.replace('_', ' ')}, s"] = each
            means.append(_rounded(each.value))
        found.codecs[name] = Coding(*means)
    if not known:
        found.unknown.append("codecs: no run had one; strategies that have one are refused")
    return [found.codecs.get(codecs_of(run.experiment), NO_CODING) for run in runs]


def _fit_service(
    found: Fit,
    runs: Sequence[Run],
    stamps: Sequence[Stamps | None],
    measured: Sequence[Exchanges],
    codings: Sequence[Coding],
) -> tuple[float, float]:
    """Fit what a message and a decision take, from what coordinators and servers reported, in seconds.

    Codecs are taken off. Of several servers a message is as late as at the one that takes longest.
    """
    loads = [
        (run.meta["coordinator"], int(each.bytes_up.max() + each.bytes_down.max()), coding)
        for run, each, coding in zip(runs, measured, codings, strict=True)
        if run.meta.get("coordinator", {}).get("pushes")
        and not run.experiment.strategy.compositions[0].placement.collective
    ]
    if not loads:
        found.unknown.append("service: no run reported what pushes cost its server; taken as no time")
        return 0.0, 0.0
    each_s = [_of_message(load["serving_s"] / load["pushes"], coding) for load, _, coding in loads]
    decisions = [(load["handled_s"] - load["serving_s"]) / load["pushes"] for load, _, _ in loads]
    source = f"{sum(load['pushes'] for load, _, _ in loads)} pushes"
    message, decision = (max(SHORTEST_S, float(np.mean(values))) for values in (each_s, decisions))
    found.fitted["service of a message, s"] = Fitted(message, min(each_s), max(each_s), source)
    longest = _fit_other_servers(found, stamps, codings)
    if all(run.experiment.strategy.compositions[0].placement.num_servers > 1 for run in runs):
        message = max(message, longest)  # which one server alone does not wait for
    found.fitted["decision, s"] = Fitted(decision, max(0.0, min(decisions)), max(decisions), source)
    found.cluster["service"] = {"message_s": _rounded(message), "decision_s": _rounded(decision)}
    largest = max(size for _, size, _ in loads) / 2
    bound = f"0 to {message / largest:.2g} s"
    found.unknown.append(f"service.byte_s: all messages have one size; it is {bound}, and in message_s")
    return message, decision


def _of_message(push_and_answer_s: float, coding: Coding) -> float:
    """Return the seconds of a push or an answer at a server, alike, without codecs."""
    return max(SHORTEST_S, push_and_answer_s - coding.server_decodes - coding.server_encodes) / 2


def _fit_other_servers(found: Fit, stamps: Sequence[Stamps | None], codings: Sequence[Coding]) -> float:
    """Fit what a message takes at each server but the first, and an update at all; returns the longest."""
    served: dict[str, list[tuple[float, int]]] = {}
    updates = [np.zeros(0)]
    for own, coding in zip(stamps, codings, strict=True):
        for name, seconds in ({} if own is None else own.servers).items():
            updates.append(seconds["updating"])
            if pushes := len(seconds["waiting"]):
                each_s = _of_message(float(seconds["serving"].sum()) / pushes, coding)
                served.setdefault(name, []).append((each_s, pushes))
    if len(updating := np.concatenate(updates)) > 1:
        each = Fitted(*mean_and_width(updating), f"{len(updating)} updates; in the service of messages")
        found.fitted["update at a server, s"] = each
    longest = 0.0
    for name in sorted(served.keys() - {"server 0"}):
        values = [each_s for each_s, _ in served[name]]
        mean, pushes = float(np.mean(values)), sum(count for _, count in served[name])
        spread = Fitted(mean, min(values), max(values), f"{pushes} pushes")
        found.fitted[f"service of a message at {name}, s"] = spread
        longest = max(longest, mean)
    return longest


def _fit_links(
    found: Fit,
    measured: Sequence[Exchanges],
    workers: int,
    service_s: tuple[float, float],
    link: MeasuredLink | None,
) -> None:
    """Fit latencies, each end of each link by itself, as blocks of what was measured.

    Where the rate is known, what a message took to pass, in equal shares with those that passed then, is
    taken off; what is left is latency, in which it keeps no other from passing. Where it is not known, those
    that were alone tell the latency, or else all.
    """
    message, decision = service_s
    classes = None if link is None else size_classes(link.seconds)
    rates = () if classes is None else classes.rates
    rate = NO_LIMIT if link is None else max([link.mbit_s, *(mbit_s for _, mbit_s in rates)])
    ends: list[list[NDArray[np.float64]]] = [[] for _ in range(2 * workers)]
    crowds: list[Crowd] = []
    for run, each in enumerate(measured):
        served = message * (each.place + 2) + decision
        ways = (
            (each.arrived_s - each.up_s, each.up_s, each.up_s, each.bytes_up),
            (each.released_s, each.down_s, each.down_s - served, each.bytes_down),
        )
        for way, (begin, took, seconds, size) in enumerate(ways):
            alone = ~_queued(each, 2 * message + decision) if way == 0 else np.ones(len(each), dtype=bool)
            company = _company(begin, begin + took)
            if link is None:
                alone &= company < 1 + _ALONE
            latency = seconds - _passing_s(begin, size, rate, rates)
            for worker in range(workers):
                own = (each.worker == worker) & (each.bytes_down > 0)
                crowds.append(Crowd(run, way * workers + worker, latency[own], company[own] - 1))
                chosen = own & alone if (link is not None or not way) and (own & alone).sum() > 2 else own
                ends[way * workers + worker].append(latency[chosen])
    if (more := seconds_in_company(crowds)) is None:
        found.unknown.append(f"{IN_COMPANY}: their company is always the same; taken as none")
    else:
        value, low, high = (
            max(least, each) for least, each in zip((_NOTHING_S, 0.0, _NOTHING_S), more, strict=True)
        )
        found.fitted[IN_COMPANY] = Fitted(value, low, high, f"{len(measured)} runs; none is quicker for it")
    latencies = [np.maximum(np.concatenate(end), SHORTEST_S) for end in ends]
    for end, values in enumerate(latencies):
        whither = "to the servers" if end < workers else "back"
        mean, wide = float(values.mean()), half_width(values)
        name, source = f"latency of worker {end % workers} {whither}, s", f"{len(values)} messages"
        found.fitted[name] = Fitted(mean, max(0.0, mean - wide), mean + wide, source)
    seconds_of = [kept(end, _KEPT_OF_LINK) for end in latencies]
    found.cluster["link_time"] = {"name": "trace", "order": "blocks", "seconds": seconds_of}
    typical = float(np.median(np.concatenate(latencies[:workers])))
    found.cluster["latency_s"] = _rounded(typical if link is None else link.latency_s)
    found.cluster |= {"bandwidth_mbit_s": _rounded(rate), "server_bandwidth_mbit_s": _rounded(rate)}
    found.cluster |= {"server_latency_s": found.cluster["latency_s"], "link_sharing": "equal"}
    if link is not None and link.up_mbit_s:
        said = f"{link.up_mbit_s:.4g} to a worker and {link.down_mbit_s:.4g} back, each alone"
        said += f"; {link.at_once_mbit_s:.4g} to one from all at once" if link.at_once_mbit_s else ""
        found.remarks.append(f"links, Mbit/s of the largest message: {said}")
    if classes is not None:
        found.unknown += classes.unknown
        for (begin_bytes, mbit_s), (low, high) in zip(rates, classes.between, strict=True):
            of = f"rate of messages of {begin_bytes:,.0f} bytes and more, Mbit/s"
            found.fitted[of] = Fitted(mbit_s, low, high, "messages between workers")
    if len(rates) > 1:
        found.cluster["achieved_rates"] = [list(each) for each in rates]
    if link is None:
        quickest = min(float(each.up_s.min()) for each in measured)
        largest = max(int(each.bytes_up.max()) for each in measured)
        bound = f"at least {_MBIT * largest / quickest:.3g} Mbit/s"
        found.unknown.append(f"bandwidth: all messages have one size; {bound}, and what it costs is latency")
        found.unknown.append("latency between workers: not measured; taken as the median to the servers")


def _passing_s(
    begin: NDArray[np.float64],
    size: NDArray[np.int64],
    mbit_s: float,
    rates: Sequence[tuple[float, float]] = (),
) -> NDArray[np.float64]:
    """Return how long messages took to pass a link of that rate, of which each had an equal share.

    At most it had the rate of its size.

    >>> _passing_s(np.array([0.0, 0.5]), np.array([125_000, 125_000]), 1.0).tolist()
    [1.5, 1.5]
    """
    link, order = SharedLink(mbit_s / _MBIT), np.argsort(begin, kind="stable").tolist()
    for each in order:
        own = rate_at(rates, float(size[each])) or mbit_s
        link.begin(each, float(size[each]), own / _MBIT, float(begin[each]))
    return np.array([link.ends(each) for each in range(len(begin))]) - begin


def _company(begin: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many messages were under way on average while each was, itself included.

    >>> _company(np.array([0.0, 0.0, 1.0]), np.array([2.0, 1.0, 2.0])).tolist()
    [2.0, 2.0, 2.0]
    """
    order, found = np.argsort(begin, kind="stable"), np.ones(len(begin))
    for place, one in enumerate(order.tolist()):
        for other in order[place + 1 :].tolist():
            if begin[other] >= end[one]:
                break
            both = min(end[one], end[other]) - begin[other]
            found[one] += both / max(SHORTEST_S, end[one] - begin[one])
            found[other] += both / max(SHORTEST_S, end[other] - begin[other])
    return found


def _queued(each: Exchanges, busy_s: float) -> NDArray[np.bool_]:
    """Return which pushes probably waited for the server: they follow another one within its service."""
    return np.diff(each.arrived_s, prepend=-np.inf) < 1.5 * busy_s


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
