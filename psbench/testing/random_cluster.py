"""Scripted clusters with random size, step times, failures and joins."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from psbench.core import AnyStrategy
from psbench.core import events as ev
from psbench.errors import ParameterError
from psbench.seeds import Streams
from psbench.strategies import make_strategy
from psbench.testing.scripted_cluster import ScriptedCluster


def random_cluster(strategy: Any, seed: int, *, max_workers: int = 6, **options: Any) -> ScriptedCluster:
    """Return a cluster with random size, step times, failures, rejoins and late joins.

    Half of the clusters have integer step times, so that many events coincide; the other half have
    exponential ones. A strategy that can switch is also asked to, at random times.

    Parameters
    ----------
    strategy : anything that `make_strategy` takes
    seed : int
    max_workers : int
        Sizes that the strategy refuses are not drawn.
    **options
        For `ScriptedCluster`.

    Raises
    ------
    ParameterError
        If the strategy refuses every size.
    """
    made = make_strategy(strategy)
    rng = Streams(seed).generator("cluster")
    if max_workers < 1:
        raise ParameterError(f"random cluster: max_workers must be at least 1, got {max_workers}")
    sizes = fitting_sizes(made, max_workers)
    if not sizes:
        made.check(max_workers, 4 * max_workers)  # says why
    num_workers = sizes[int(rng.integers(len(sizes)))]
    speed = rng.uniform(0.25, 2.0, num_workers)
    whole = bool(rng.random() < 0.5)
    streams = Streams(seed)
    generators = [streams.generator("step_time", worker) for worker in range(num_workers)]

    def seconds(worker: int, number: int) -> float:
        rng = generators[worker]
        return float(rng.integers(1, 4) if whole else rng.exponential() / speed[worker])

    changes = _membership_changes(num_workers, rng)
    if len(made.compositions) > 1:
        changes += [
            (float(rng.uniform(0, 20)), ev.SwitchRequested(to)) for to in (None, 1, 0)[: rng.integers(4)]
        ]
    late = bool(rng.random() < 0.5)
    values: dict[str, Any] = {"deliver_void": late, "epochs": 20, "val_loss": float} | options
    return ScriptedCluster(made, seconds, num_workers=num_workers, changes=changes, seed=seed, **values)


def fitting_sizes(strategy: AnyStrategy, most: int = 8) -> list[int]:
    """Return the sizes of clusters, from 1, that a strategy takes."""
    found = []
    for size in range(1, most + 1):
        with suppress(ParameterError):
            strategy.check(size, 4 * size)
            found.append(size)
    return found


def _membership_changes(num_workers: int, rng: np.random.Generator) -> list[tuple[float, ev.Event]]:
    changes: list[tuple[float, ev.Event]] = []
    for worker in range(num_workers):
        at = 0.0
        if worker > 0 and rng.random() < 0.25:
            at = _instant(rng, at)
            changes.append((at, ev.Join(worker)))
        while rng.random() < 0.35:
            at = _instant(rng, at)
            changes.append((at, ev.Leave(worker)))
            if rng.random() < 0.3:
                break
            at = _instant(rng, at)
            changes.append((at, ev.Join(worker)))
    return changes


def _instant(rng: np.random.Generator, after: float) -> float:
    """Return a later time: a whole second, shared with other pushes, or any time."""
    return after + float(rng.integers(1, 9) if rng.random() < 0.5 else rng.uniform(0.1, 9.0))
