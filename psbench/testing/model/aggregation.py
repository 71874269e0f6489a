"""How much each push counts for, as the sources say; see the docstrings of the parts for these."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from psbench.core.actions import Apply, Measure
from psbench.core.events import Push
from psbench.core.view import Status
from psbench.testing.model.cluster import Cluster
from psbench.testing.model.rule import Decisions, Rule, rule


def shares(pushes: list[Push]) -> list[float]:
    """Return each push's share of the samples."""
    return [push.samples / sum(other.samples for other in pushes) for push in pushes]


@rule("aggregation", "mean")
class Mean(Rule):
    """The mean over the samples."""

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Weigh by samples."""
        return [Apply(pushes, shares(pushes))]


@rule("aggregation", "sum")
class Sum(Rule):
    """The sum."""

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Weigh each alike."""
        return [Apply(pushes, [1.0 for _ in pushes])]


@rule("aggregation", "accumulated")
class Accumulated(Rule):
    """The sum of a worker's steps counts for its batch, not for all their samples."""

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Weigh by samples a step."""
        batches = [push.samples / push.steps for push in pushes]
        return [Apply(pushes, [batch / math.fsum(batches) for batch in batches])]


def averaged(pushes: list[Push], c: Cluster) -> Decisions:
    """Mix the mean of the models pushed into the model, as the share of the workers that they are of.

    All workers that have work to contribute make the whole model; newcomers have none.
    """
    working = {each.id for each in c.present if each.status is not Status.NEW}
    whole = working <= {push.worker for push in pushes} and not c.num_under_way
    share = 1.0 if whole else min(1.0, len(pushes) / len(c.active))
    return [Apply(pushes, [share * own for own in shares(pushes)], {"keep": 1.0 - share})]


@rule("aggregation", "model_average")
class ModelAverage(Rule):
    """The mean of the models."""

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Average."""
        return averaged(pushes, c)


@rule("aggregation", "exchange")
class Exchange(Rule):
    """Models are averaged, or gradients."""

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Average what is exchanged."""
        return averaged(pushes, c) if self.own.aggregate == "parameters" else [Apply(pushes, shares(pushes))]


@rule("aggregation", "block_momentum")
class BlockMomentum(Rule):
    """The mean of the models, to whose change the servers give a momentum."""

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Weigh by samples; the server has the momentum."""
        return [Apply(pushes, shares(pushes))]


@rule("aggregation", "staleness_weighted")
class StalenessWeighted(Rule):
    """The rate over the staleness of the push, or over the mean of all until now; never over less than 1."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.seen: list[int] = []

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Divide by the versions made since the push was begun."""
        stale = [c.version - push.base_version for push in pushes]
        self.seen += stale
        if self.own.rate == "per_gradient":
            by = [float(max(1, one)) for one in stale]
        else:
            by = [max(1.0, fmean(self.seen)) if self.own.rate == "mean" else 1.0] * len(pushes)
        return [Apply(pushes, [share / one for share, one in zip(shares(pushes), by, strict=True)])]


@rule("aggregation", "dyn_sgd")
class DynSGD(Rule):
    """A push counts 1/d, where d is its staleness and 1 more."""

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Divide by the staleness, the push's own version included."""
        stale = [c.version - push.base_version for push in pushes]
        return [Apply(pushes, [share / (one + 1) for share, one in zip(shares(pushes), stale, strict=True)])]


@rule("aggregation", "dyn_sgd_versioned")
class DynSGDVersioned(Rule):
    """The d-th push of a stage counts 1/d; a stage is closed when nobody can push in it."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.stages: list[int] = []  # of every push that belongs to an open one

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Count the push in the stage of its worker."""
        (push,) = pushes
        stage = c.workers[push.worker].clock - 1
        self.stages.append(stage)
        weight = 1.0 / self.stages.count(stage)
        closed = all(each.clock > stage for each in c.present)
        if closed:
            self.stages = [other for other in self.stages if other > stage]
        return [Apply(pushes, [weight], {"stage": float(stage), "closes": float(closed)})]


@rule("aggregation", "loss_weighted")
class LossWeighted(Rule):
    """The weights are 1/L of the model and of the worker's; the first push becomes the model."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.first, self.push = True, -1

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Take the first; ask for the losses of others."""
        (push,) = pushes
        if self.first:
            self.first = False
            return [Apply(pushes, [1.0], {"keep": 0.0})]
        self.push = push.id
        return [
            Measure("aggregation", {"model_loss": None, "candidate_loss": push.id}, self.own.loss_samples)
        ]

    def on_measured(self, facts: dict[str, float], c: Cluster) -> Decisions:
        """Weigh W2 / (W1 + W2)."""
        old, new = facts["model_loss"], facts["candidate_loss"]
        if not math.isfinite(new):
            share = 0.0
        elif not math.isfinite(old):
            share = 1.0
        elif old == new:
            share = 0.5
        else:
            share = 1.0 if new == 0 else 0.0 if old == 0 else (1 / new) / (1 / old + 1 / new)
        return [Apply([c.pending[self.push]], [share], {"keep": 1.0 - share})]


@rule("aggregation", "bounded_step", "bounded_step_by_mean")
class BoundedStep(Rule):
    """The factor is clip(C / distance squared, least, most), C given or the mean until now."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.pushes: list[Push] = []
        self.distances: list[float] = []

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Ask for the distances of stale pushes."""
        self.pushes = pushes
        needs: dict[str, int | None] = {
            f"distance_sq:{push.id}": push.id for push in pushes if push.base_version != c.version
        }
        return [Measure("aggregation", needs)] if needs else self.on_measured({}, c)

    def on_measured(self, facts: dict[str, float], c: Cluster) -> Decisions:
        """Weigh each push by its factor."""
        own = self.own
        self.distances += facts.values()
        constant = getattr(own, "near", 0.0) or (fmean(self.distances) if self.distances else 0.0)
        weights = []
        for push, share in zip(self.pushes, shares(self.pushes), strict=True):
            distance = facts.get(f"distance_sq:{push.id}", 0.0)
            rate = constant / distance if distance > 0 else math.inf
            weights.append(share * min(max(rate, own.least), own.most))
        return [Apply(self.pushes, weights)]
