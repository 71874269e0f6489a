"""Fit of a cluster to measured runs: step times, links, servers, decisions; unknown quantities are listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from psbench.arrays import Doubles
from psbench.backends.stamps import cost_s
from psbench.core.collective import Collective
from psbench.errors import ParameterError
from psbench.results.run import Run
from psbench.twin.between_runs import Kind, kind_of
from psbench.twin.codecs import (
    NO_CODEC,
    NO_CODING,
    Coding,
    codecs_of,
    coding_of,
    mean_and_width,
    without_codec,
)
from psbench.twin.exchanges import SHORTEST_S, Exchanges, exchanges_of
from psbench.twin.fitted import RUN_TO_RUN, SPREAD, Fit, Fitted, rounded
from psbench.twin.link_fit import fit_ends, fit_shared_link, passage
from psbench.twin.links import MeasuredLinks
from psbench.twin.peer_fit import adds_up, fit_peers, has_server
from psbench.twin.size_classes import Z90
from psbench.twin.stamped import Stamps, cores_of, in_words, stamps_of, with_cpu_times
from psbench.twin.variation import deviation_of, half_width, together, variation_of

#: the shortest difference from run to run that differs from none
_NOTHING_S = 1e-9


def fit(runs: Sequence[Run], links: MeasuredLinks | None = None, left_out: Kind | None = None) -> Fit:
    """Fit a cluster to runs of one model on the same workers; every fitted time is above zero.

    Messages to servers are fitted without those of the kind of runs that is `left_out`.

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
    pairs = list(zip(runs, measured, strict=True))
    # messages of runs without a server are another matter, but for a fit to nothing else
    served = [each for run, each in pairs if has_server(run) and kind_of(run) != left_out] or measured
    passages = [passage(each, service_s) for each in served]
    if links is None:
        fit_shared_link(found, served, passages)
    else:
        fit_ends(found, served, passages, links)
    if summed := [each for run, each in pairs if adds_up(run) and served is not measured]:
        fit_peers(found, summed, runs[0].meta["model_bytes"], service_s[1])
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
    # steps of runs without stamps have waited for cores, and are left out
    alone = [with_cpu_times(own, each) for own, each in pairs if own is not None]
    stamped = [each for each in alone if each is not None]
    if not cores.value or len(stamped) < len(alone):
        found.unknown.append(f"cores: {cores.why or 'stamps and logs are not of the same pushes'}")
        return measured
    found.cluster["cores"] = rounded(cores.value)
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
        "speed": [rounded(1.0 / each) for each in slowness],
        "seconds_per_step": rounded(per_step),
        "seconds_per_sample": rounded(per_sample),
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


# -------------------------------------------------------------------- codecs and servers


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
            means.append(rounded(each.value))
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
    found.cluster["service"] = {"message_s": rounded(message), "decision_s": rounded(decision)}
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
