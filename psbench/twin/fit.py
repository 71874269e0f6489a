"""Fit of a cluster to measured runs: step times, links, servers, decisions; unknown quantities are listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from psbench.arrays import Booleans, Doubles, Integers
from psbench.backends.stamps import cost_s
from psbench.clusters.shared_link import SharedLink
from psbench.core.collective import Collective
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
from psbench.twin.exchanges import SHORTEST_S, Exchanges, as_quick_both_ways, exchanges_of
from psbench.twin.sharing import Passage, seconds_alone, shared_s
from psbench.twin.size_classes import MBIT, Z90, SizeClasses, rate_at, size_classes
from psbench.twin.stamped import Stamps, cores_of, in_words, stamps_of, with_cpu_times
from psbench.twin.variation import deviation_of, half_width, kept, together, variation_of

#: megabits per second that mean: what bytes cost is in the latency
NO_LIMIT = 1e6
#: numbers of a fit that bands hold: how steps vary within a run and between, what messages cost each other
SPREAD = "deviation of a step, share of its mean"
RUN_TO_RUN = "deviation of a worker's mean step from run to run, share"
HOP = "latency between workers, s"
AT_ONCE = "a message's time on the link that all share, s"
#: values of each end of a link that a profile keeps
_KEPT_OF_LINK = 64
#: the shortest time on a shared link that differs from none
_NOTHING_S = 1e-9


class Fitted(NamedTuple):
    """A fitted number with its 90 % interval and its source."""

    value: float
    low: float
    high: float
    source: str


class MeasuredLink(NamedTuple):
    """Links between workers measured by `psbench doctor`: one-way, with the rate of the largest messages.

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
    """A cluster as a specification, its numbers with intervals, and a list of unknown quantities."""

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
    """Fit the cores that workers share; return exchanges with step times on dedicated cores."""
    known = [each for each in stamps if each is not None]
    if not known:
        found.unknown.append("cores: the runs have no stamps; steps are assumed not to slow each other down")
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
    """Fit seconds per step and per sample, each worker's speed, and the variation of times."""
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
        steps = cells[worker, batch]
        each = Fitted(*mean_and_width(steps), f"{len(steps)} steps of {batch} samples")
        found.fitted[f"step of worker {worker}, s"] = each
    found.fitted |= _run_to_run(measured, workers)
    series = [
        each.compute_s[own] / means[worker, batch]
        for each in measured
        for (worker, batch) in means
        if (own := (each.worker == worker) & (each.samples == batch)).sum() > 1
    ]
    found.cluster["step_time"], why = variation_of(series)
    found.fitted[SPREAD] = Fitted(*deviation_of(series), f"{sum(map(len, series))} steps, in stretches")
    found.remarks.append(f"steps: {why}")
    _say_whether_slow_together(found, measured, means)


def _run_to_run(measured: Sequence[Exchanges], workers: int) -> dict[str, Fitted]:
    """Return the variation of a worker's mean step time between runs, beyond the common variation.

    Of each batch size the residuals of an additive model of the logarithms (run + worker), which of few are
    made larger by Student's factor, less what the steps within a run explain.
    """
    squares, free, luck = 0.0, 0, list[float]()
    for batch in np.unique(np.concatenate([each.samples for each in measured])).tolist():
        series = [
            [each.compute_s[(each.worker == worker) & (each.samples == batch)] for worker in range(workers)]
            for each in measured
        ]
        runs = [own for own in series if min(map(len, own)) > 1]
        if len(runs) < 2 or workers < 2:
            continue
        logs = np.log([[values.mean() for values in own] for own in runs])
        apart = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
        squares, free = squares + float((apart**2).sum()), free + (len(runs) - 1) * (workers - 1)
        luck += [(half_width(values) / (Z90 * values.mean())) ** 2 for own in runs for values in own]
    if not free:
        return {}
    student = float(stats.t.ppf(0.95, free)) / Z90
    value = max(_NOTHING_S, max(0.0, student**2 * squares / free - float(np.mean(luck))) ** 0.5)
    return {RUN_TO_RUN: Fitted(value, value, value, f"{free} free")}


def _common_batch(cells: Mapping[tuple[int, int], Doubles], workers: int) -> int:
    """Return a batch size that all workers have, for comparing step times; 0 if there is none.

    Of several it is the one of which the worker with the fewest steps has most.
    """
    fewest = {batch: min(len(cells[each, batch]) for each in range(workers)) for _, batch in cells}
    best = max(fewest, key=lambda batch: (fewest[batch], batch))
    return best if fewest[best] else 0


def _say_whether_slow_together(
    found: Fit, measured: Sequence[Exchanges], means: Mapping[tuple[int, int], float]
) -> None:
    """Add a remark, with a bound, on a common factor of all workers' steps, which the simulator lacks."""
    known = list[Doubles]()
    for each in measured:
        cells = zip(each.worker.tolist(), each.samples.tolist(), strict=True)
        factors = each.compute_s / np.array([means[cell] for cell in cells])
        known += together(each.worker, each.released_s, factors)
    if not known:
        found.unknown.append("a common slow factor of all workers: too few steps to tell; assumed absent")
        return
    r, low, high = np.mean(known, axis=0)
    said = "and present: barriers wait less than predicted" if low > 0.1 else "assumed absent"
    bound = f"steps at the same time are correlated by {r:+.2f} ({low:+.2f} to {high:+.2f})"
    found.unknown.append(f"a common slow factor of all workers: {bound}; {said}")


def _slowness(means: dict[tuple[int, int], float], workers: int) -> tuple[list[float], dict[int, float]]:
    """Return the slowdown of each worker relative to the fastest, and the fastest's seconds by batch.

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
    """Return seconds per step and per sample; with a single batch size, each has a positive lower bound."""
    batches, seconds = np.array(list(base), dtype=float), np.array(list(base.values()))
    if len(base) == 1:
        return 0.0, float(seconds[0] / batches[0])
    slope, fixed = np.polyfit(batches, seconds, 1)
    if slope <= 0:  # samples cost nothing beside the step
        return float(seconds.mean()), SHORTEST_S * 1e-3
    return (float(fixed), float(slope)) if fixed >= 0 else (0.0, float((seconds / batches).mean()))


# -------------------------------------------------------------------- codecs, servers and links


def _fit_codecs(found: Fit, runs: Sequence[Run], stamps: Sequence[Stamps | None]) -> list[Coding]:
    """Fit the codec times for each setting; return the times of each run."""
    known: dict[str, list[list[Doubles]]] = {}
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
    """Fit the time of a message and of a decision, from the reports of coordinators and servers; seconds.

    Codecs are taken off. Of several servers a message is as late as at the one that takes longest.
    """
    loads = [
        (run.meta["coordinator"], int(each.bytes_up.max() + each.bytes_down.max()), coding)
        for run, each, coding in zip(runs, measured, codings, strict=True)
        if run.meta.get("coordinator", {}).get("pushes")
        and not isinstance(run.experiment.strategy.compositions[0].placement, Collective)
    ]
    if not loads:
        found.unknown.append("service: no run reported its server's time for pushes; assumed to be zero")
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
    """Return the server's seconds for any push or answer, without codecs."""
    return max(SHORTEST_S, push_and_answer_s - coding.server_decodes - coding.server_encodes) / 2


def _fit_other_servers(found: Fit, stamps: Sequence[Stamps | None], codings: Sequence[Coding]) -> float:
    """Fit a message's time at the other servers, and an update's time; return the longest."""
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
    """Fit latencies, separately for each end of each link, as blocks of measured times.

    What a message took to pass, in equal shares with those that passed then, is taken off; what is left is
    latency, in which it keeps no other from passing.
    """
    passages = [_passage(each, service_s) for each in measured]
    classes = None if link is None else size_classes(link.seconds)
    rates = () if classes is None else classes.rates
    if link is None:
        rate, shared = NO_LIMIT, _fit_shared_link(found, measured, passages)
    else:
        rate = shared = max([link.mbit_s, *(mbit_s for _, mbit_s in rates)])
        _say_links(found, link, classes)
    ends: list[list[Doubles]] = [[] for _ in range(2 * workers)]
    for each, passage in zip(measured, passages, strict=True):
        both = [
            took - _passing_s(begin, size, shared, rates)
            for begin, took, size in zip(
                passage.begin_s, passage.took_s, (each.bytes_up, each.bytes_down), strict=True
            )
        ]
        for worker in np.unique(each.worker).tolist():
            own = (each.worker == worker) & (each.bytes_down > 0)
            alone = own & passage.counts
            chosen = alone if alone.sum() > 2 else own
            up, down = as_quick_both_ways(both[0][chosen], both[1][chosen])
            ends[worker].append(up)
            ends[workers + worker].append(down)
    latencies = [np.maximum(np.concatenate(end), SHORTEST_S) for end in ends]
    for end, values in enumerate(latencies):
        found.fitted[latency_of(end, workers)] = Fitted(*mean_and_width(values), f"{len(values)} messages")
    seconds_of = [kept(end, _KEPT_OF_LINK) for end in latencies]
    hop_s = _fit_hop(found, passages, latencies) if link is None else link.latency_s
    found.cluster |= {
        "link_time": {"name": "trace", "order": "blocks", "seconds": seconds_of},
        "latency_s": _rounded(hop_s),
        "server_latency_s": _rounded(hop_s),
        "bandwidth_mbit_s": _rounded(rate),
        "server_bandwidth_mbit_s": _rounded(shared),
        "link_sharing": "equal",
    }
    if len(rates) > 1:
        found.cluster["achieved_rates"] = [list(each) for each in rates]


def _fit_hop(found: Fit, passages: Sequence[Passage], latencies: Sequence[Doubles]) -> float:
    """Return an estimate of the latency between workers in seconds, with a wide interval.

    All workers of a ring send at once, on links that are each their own in virtual time. So a hop is taken to
    be as long as the typical message to a server, with what others under way at once cost it. It is in doubt
    by as much as the mean is beyond that, and by that cost: a ring may not use the link that servers share.
    """
    took = np.maximum(np.concatenate([each.took_s[0][each.counts] for each in passages]), SHORTEST_S)
    median, alone = float(np.median(took)), float(np.median(np.concatenate(latencies)))
    doubt = min(max(abs(float(took.mean()) - median), median - alone), 0.9 * median)
    found.fitted[HOP] = Fitted(median, median - doubt, median + doubt, "messages to the servers")
    found.unknown.append("latency between workers: not measured; assumed equal to the median to the servers")
    return median


def latency_of(end: int, workers: int) -> str:
    """Return the name of a link end's latency in `fitted`."""
    return f"latency of worker {end % workers} {'to the servers' if end < workers else 'back'}, s"


def _passage(each: Exchanges, service_s: tuple[float, float]) -> Passage:
    """Return a run's message times to the servers and back, without the servers' time."""
    message, decision = service_s
    served = message * (each.place + 2) + decision
    return Passage(
        (each.arrived_s - each.up_s, each.released_s + served),
        (each.up_s, each.down_s - served),
        each.worker,
        (each.bytes_down > 0) & ~_queued(each, 2 * message + decision),
    )


def _fit_shared_link(found: Fit, measured: Sequence[Exchanges], passages: Sequence[Passage]) -> float:
    """Fit the rate of a link shared by all messages, Mbit/s; processes of one machine share a link too."""
    largest = max(int(each.bytes_up.max()) for each in measured)
    alone = seconds_alone(passages)
    if alone is None:
        found.unknown.append(f"{AT_ONCE}: too few messages; assumed absent")
    value, low, high = (max(_NOTHING_S, each) for each in alone or (0.0, 0.0, 0.0))
    found.fitted[AT_ONCE] = Fitted(value, min(low, value), max(high, value), f"{len(passages)} runs")
    for way, whither in enumerate(("to the servers", "back")):
        passing = [shared_s(each.begin_s[way], value) / value for each in passages]
        company = float(np.concatenate(passing).mean())
        found.fitted[company_of(whither)] = Fitted(company, company, company, "when they begin to pass")
    bound = f"at least {MBIT * largest / min(float(each.up_s.min()) for each in measured):.3g} Mbit/s"
    found.unknown.append(
        f"bandwidth: all messages have one size; {bound}, and its cost is part of the latency"
    )
    return MBIT * largest / value


def company_of(whither: str) -> str:
    """Return the name in `fitted` of the number of concurrent messages."""
    return f"messages that pass at once {whither}, mean"


def _say_links(found: Fit, link: MeasuredLink, classes: SizeClasses | None) -> None:
    """Add remarks on the measured link rates: single links, concurrent links, and by message size."""
    if link.up_mbit_s:
        said = f"{link.up_mbit_s:.4g} to a worker and {link.down_mbit_s:.4g} back, each alone"
        said += f"; {link.at_once_mbit_s:.4g} to one from all at once" if link.at_once_mbit_s else ""
        found.remarks.append(f"links, Mbit/s of the largest message: {said}")
    if classes is not None:
        found.unknown += classes.unknown
        for (begin_bytes, mbit_s), (low, high) in zip(classes.rates, classes.between, strict=True):
            of = f"rate of messages of {begin_bytes:,.0f} bytes and more, Mbit/s"
            found.fitted[of] = Fitted(mbit_s, low, high, "messages between workers")


def _passing_s(
    begin: Doubles,
    size: Integers,
    mbit_s: float,
    rates: Sequence[tuple[float, float]] = (),
) -> Doubles:
    """Return the transfer times of messages that share a link with that rate equally.

    At most it had the rate of its size.

    >>> _passing_s(np.array([0.0, 0.5]), np.array([125_000, 125_000]), 1.0).tolist()
    [1.5, 1.5]
    """
    link, order = SharedLink(mbit_s / MBIT), np.argsort(begin, kind="stable").tolist()
    for each in order:
        own = rate_at(rates, float(size[each])) or mbit_s
        link.begin(each, float(size[each]), own / MBIT, float(begin[each]))
    return np.array([link.ends(each) for each in range(len(begin))]) - begin


def _queued(each: Exchanges, busy_s: float) -> Booleans:
    """Return a mask of pushes that probably queued: they follow another one within its service time."""
    return np.diff(each.arrived_s, prepend=-np.inf) < 1.5 * busy_s


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
