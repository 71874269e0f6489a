"""The computation tree of a run: the model from which each gradient was computed, and its distance.

The main branch has a node for each gradient that the servers have applied, one after the other; an update of
several pushes is several nodes. The gradient that leads from node k to the next one was taken at some other
node: an earlier one of the main branch, or the end of the steps that a worker has made by itself since. The
distance of the two is the number of edges to the ancestor that both have in common, from the one of them
that is further away. The largest distance, R, is what decides how fast such a method can converge.

Source
------
Tyurin and Sivtsov (2026), "Birch SGD: A Tree Graph Framework for Local and Asynchronous SGD Methods", ICLR,
sec. 2 (main branch, tree distance, repr) and Theorem 2.4 (step size).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from psbench.arrays import Array, Integers
from psbench.core.collective import Collective
from psbench.core.log import EventLog, Kind
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.strategy import Strategy
from psbench.core.switching_strategy import AnyStrategy
from psbench.errors import DataError, ParameterError
from psbench.metrics.pushes import pushes
from psbench.metrics.rows import Rows, pick, positions
from psbench.metrics.table import table
from psbench.strategies.communication.elastic import Elastic

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ComputationTree:
    """The computation tree of a run.

    Attributes
    ----------
    gradients : DataFrame
        A row for each gradient applied, in order: `node` (of the main branch that it leads away from),
        `push`, `worker`, `step` (of those in the push), `version` (made), `applied_s`, `base` (the node of
        the main branch from which its worker began; it took the gradient `step` own steps from there, where a
        push has several) and `distance`.

    Notes
    -----
    repr(z) is within repr(x) for every gradient, as the theorem asks: a worker's own steps are applied in
    their order, and the gradients of the version that it began with were applied before. Strategies for which
    that does not hold have no tree here; see `computation_tree`.
    """

    gradients: pd.DataFrame

    @property
    def radius(self) -> int:
        """R, the largest distance; 0 if no gradient was applied."""
        return int(self.gradients["distance"].max()) if len(self.gradients) else 0

    def largest_rate(self, smoothness: float, variance: float, target: float) -> float:
        """Return the step size of the convergence theorem: min(1/(2L), 1/(2RL), eps/(4 sigma^2 L)).

        Parameters
        ----------
        smoothness : float, > 0
            L, the Lipschitz constant of the gradient.
        variance : float, >= 0
            sigma^2, the variance of a stochastic gradient.
        target : float, > 0
            eps, the squared gradient norm to be reached.

        Notes
        -----
        Of plain SGD, in which every gradient is applied with this rate. An update of k pushes that are
        averaged applies each with a k-th of the optimizer's rate.

        Raises
        ------
        ParameterError

        Examples
        --------
        >>> tree = ComputationTree(table({"distance": [0, 1, 2]}))
        >>> tree.largest_rate(smoothness=2.0, variance=0.0, target=0.1)
        0.125
        """
        if not (0 < smoothness < np.inf and 0 <= variance < np.inf and 0 < target < np.inf):
            raise ParameterError(
                f"computation tree: smoothness = {smoothness}, variance = {variance}, target = {target}; "
                "give finite numbers, the first and the last above 0"
            )
        bounds = [1 / (2 * smoothness)]
        if self.radius:
            bounds.append(1 / (2 * self.radius * smoothness))
        if variance:
            bounds.append(target / (4 * variance * smoothness))
        return min(bounds)


def computation_tree(log: EventLog, strategy: AnyStrategy) -> ComputationTree:
    """Return the computation tree of a run.

    Parameters
    ----------
    log : EventLog
        Its whole log.
    strategy : Strategy or SwitchingStrategy
        Of the run: it says whether a push of several steps is several gradients along a worker's own way, or
        the mean of several at one point.

    Raises
    ------
    ParameterError
        If a composition has no tree: without a server, or if workers go on from models of their own.
    DataError
        If the log is not one of a run.

    Notes
    -----
    Our reading: weights are left out, as in the paper, where all gradients have one step size. What an
    aggregation remembers of earlier pushes (momentum, a table of gradients) adds no node. A worker's own
    steps that are applied alone, on the version that it began with, are the main branch: their distance is 0.

    Examples
    --------
    >>> from psbench import run
    >>> from psbench.testing import toy_experiment
    >>> done = run(toy_experiment("bsp", cluster={"workers": 3}))
    >>> computation_tree(done.log, done.experiment.strategy).radius
    2
    """
    for composition in strategy.compositions:
        if why := why_no_tree(composition):
            raise ParameterError(f"strategy {composition.name!r}: has no computation tree: {why}")
    rows = log.rows()
    applied = pushes(log).set_index("push").loc[pick(rows, Kind.APPLY)["id"].tolist()]
    by_itself = _by_itself(rows, strategy)
    gradients = np.where(by_itself, applied["steps"].to_numpy(dtype=np.int64), 1)
    begins = np.cumsum(gradients) - gradients  # the node that the first gradient of each push leads away from
    version = applied["version"].to_numpy(dtype=np.int64)
    base = _nodes(applied["base_version"].to_numpy(dtype=np.int64), version, begins + gradients)
    push = np.repeat(np.arange(len(applied)), gradients)
    step = np.arange(len(push)) - begins[push]
    node = np.arange(len(push))
    alone = (begins == base) & _alone(version)
    # the branch begins at `base`, and is never longer than what the main branch has grown by since
    distance = np.where(alone[push], 0, node - base[push])
    return ComputationTree(
        table(
            {
                "node": node,
                "push": applied.index.to_numpy(dtype=np.int64)[push],
                "worker": applied["worker"].to_numpy()[push],
                "step": step,
                "version": version[push],
                "applied_s": applied["applied_s"].to_numpy()[push],
                "base": base[push],
                "distance": distance,
            }
        )
    )


def why_no_tree(composition: Strategy) -> str:
    """Return the reason why runs of a composition have no computation tree; empty if they have one."""
    a, m = composition.aggregation, composition.communication
    if isinstance(composition.placement, PeerToPeer):
        return "there is no server whose model is the main branch"
    if m.overlaps or composition.keeps_steps or isinstance(m, Elastic):
        return "workers continue from models with gradients that no server has applied"
    if a.reply != "model" and not isinstance(composition.placement, Collective):
        return "workers are not sent the model of the server"
    return ""


def _by_itself(rows: Rows, strategy: AnyStrategy) -> Array:
    """Return for each applied push whether it contains local steps, by the composition in force."""
    own = np.array([composition.has_local_steps for composition in strategy.compositions])
    places = positions(rows, Kind.HANDOVER)
    inside = np.searchsorted(places, positions(rows, Kind.APPLY))
    in_force = np.append(0, rows["id"][places])[inside]
    if (in_force < 0).any() or (in_force >= len(own)).any():
        raise DataError("this log switches to a composition that its strategy does not have")
    found: Array = own[in_force]
    return found


def _nodes(wanted: Integers, made: Integers, ends: Integers) -> Integers:
    """Return the tree nodes of versions: the number of gradients applied before each."""
    place = np.searchsorted(made, wanted, side="right")
    nodes: Integers = np.append(0, ends)[place]
    return nodes


def _alone(version: Integers) -> Array:
    """Return for each applied push whether it is the only one of its version."""
    _, place, count = np.unique(version, return_inverse=True, return_counts=True)
    alone: Array = count[place] == 1
    return alone
