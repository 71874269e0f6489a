"""Data for showing any moment of a run: its recording, and facts that the log does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psbench.core.collective import Collective, servers_that_add
from psbench.core.log import EventLog
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.strategy import Strategy
from psbench.experiment import Experiment
from psbench.metrics.recording import Recording, packed
from psbench.metrics.recording_reader import LogPrefix, recording
from psbench_widgets.own_objects import title

#: spans that a page is sent at once: a run with more is sent piece by piece, as they come into view
MOST_SPANS = 30_000
#: rows from which the moving window of a run under way is made, and for each worker at least: about as many
#: spans, which fill a wide screen
NEWEST, OF_EACH = 1000, 12
#: parts of a run for which the page receives the number of waiting workers: one for some pixels of a strip
PARTS = 200


def film(
    experiment: Experiment, log: EventLog, label: str, key: str, at_s: float | None = None
) -> dict[str, Any]:
    """Return a run, or its part around a time, for the page.

    Parameters
    ----------
    experiment : Experiment
    log : EventLog
    label : str
        What the run is called.
    key : str
        Tells runs apart.
    at_s : float, seconds, optional
        What must be in it, if it is too long to be sent whole.
    """
    return part_of(recording(log, bounds_of(experiment)), experiment, label, key, at_s)


def part_of(
    whole: Recording, experiment: Experiment, label: str, key: str, at_s: float | None
) -> dict[str, Any]:
    """Return a recording, or its part around a time; see `film`."""
    part, begin = whole.around(whole.end_s if at_s is None else at_s, MOST_SPANS)
    found = _message(part, about(experiment, label, key, whole.workers), begin, whole)
    return found | {"along": packed(whole.waiting_along(PARTS))}


def moving(
    experiment: Experiment, log: EventLog, label: str, key: str, since: LogPrefix, stop: int
) -> dict[str, Any]:
    """Return the newest rows of a running run up to `stop`, for the page."""
    part = recording(log, since.bounds, since, stop)
    begin_s = float(log.rows(since.row, since.row + 1)["time_s"][0]) if since.row else 0.0
    return _message(part, about(experiment, label, key, part.workers), begin_s, part)


def bounds_of(experiment: Experiment) -> list[int | None]:
    """Return the staleness bound of each composition; None for those without a bound."""
    return [getattr(each.consistency, "staleness_bound", None) for each in experiment.strategy.compositions]


def about(experiment: Experiment, label: str, key: str, workers: Sequence[int]) -> dict[str, Any]:
    """Return a run's facts beside its recording."""
    strategy = experiment.strategy
    return {
        "label": label,
        "title": title_of(experiment, label),
        "key": key,
        "workers": list(workers),
        "compositions": [_composition(each) for each in strategy.compositions],
        "can_fork": experiment.backend == "simulated",
        "can_switch": len(strategy.compositions) > 1,
        "speeds": _speeds(experiment),
        "bounded": isinstance(strategy, Strategy) and bounds_of(experiment) != [None],
    }


def _speeds(experiment: Experiment) -> list[float]:
    """Return the workers' speeds; empty for a live run, whose machines determine them."""
    if experiment.backend != "simulated":
        return []
    return [float(f"{speed:.3g}") for speed in experiment.cluster.profile().speed]


def title_of(experiment: Experiment, label: str) -> str:
    """Return the title of a displayed run: its name, strategy, cluster and seed."""
    strategy = str(experiment.strategy.name)
    said = (strategy, *(composition.name for composition in experiment.strategy.compositions))
    named = [label] if any(name in label for name in said) else [label, strategy]
    cluster = f"{title(experiment.cluster)} cluster of {experiment.num_workers}"
    return " · ".join([*named, cluster, f"seed {experiment.seed}", experiment.backend])


def _composition(strategy: Strategy) -> dict[str, Any]:
    placement = strategy.placement
    adding = servers_that_add(placement)  # the picture has them in the middle, and else a ring
    servers = adding or placement.num_servers
    peers = isinstance(placement, PeerToPeer)
    return {
        "name": strategy.name,
        "collective": peers or (isinstance(placement, Collective) and not adding),
        "peers": peers,
        "servers": servers,
    }


def _message(part: Recording, facts: dict[str, Any], begin_s: float, whole: Recording) -> dict[str, Any]:
    # which worker is the slowest is so in the whole run, not in the piece that is sent
    known = {"about": facts, "begin_s": begin_s, "whole_s": whole.end_s}
    return part.plain() | known | {"step_s": packed(whole.step_s), "waiting": packed(whole.waiting)}
