"""How much each push counts for, as the sources say; see the docstrings of the parts for these."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement
from statistics import fmean, median
from typing import Any

import numpy as np

from psbench.core import Apply, Measure, Note, Push, Status
from psbench.testing.model.rule import Decisions, Rule, rule
from psbench.testing.model.view import Cluster


def shares(pushes: list[Push]) -> list[float]:
    """Return each push's share of the samples."""
    return [push.samples / sum(other.samples for other in pushes) for push in pushes]


@rule("aggregation", "mean", "block_momentum", "outer")
class Mean(Rule):
    """The mean over the samples: of gradients, of models, or of differences."""

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Weigh by samples."""
        return [Apply(pushes, shares(pushes))]


@rule("aggregation", "power_sgd", "one_bit_adam")
class Versioned(Rule):
    """The mean over the samples, and which version it is made from."""

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Weigh by samples."""
        return [Apply(pushes, shares(pushes), {"version": c.version})]


@rule("aggregation", "sum", "delay_compensated")
class Sum(Rule):
    """Each push wholly."""

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Weigh each alike."""
        return [Apply(pushes, [1.0 for _ in pushes])]


@rule("aggregation", "eager_outer")
class EagerOuter(Rule):
    """The plain mean; and of how many."""

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Weigh each alike."""
        count = len(pushes)
        return [Apply(pushes, [1.0 / count] * count, {"workers": count})]


@rule("aggregation", "sparse_outer")
class SparseOuter(Rule):
    """Each push wholly, or shortened to the median norm."""

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Ask for the norms, if they count."""
        self.taken = pushes
        if self.own.clip == "none":
            return [Apply(pushes, [1.0 for _ in pushes])]
        return [Measure("aggregation", {f"dot:{push.id}:{push.id}": None for push in pushes})]

    def on_measured(self, facts: dict[str, float], c: Cluster) -> Decisions:
        """Shorten."""
        norms = [math.sqrt(facts[f"dot:{push.id}:{push.id}"]) for push in self.taken]
        return [Apply(self.taken, [min(1.0, median(norms) / each) if each else 1.0 for each in norms])]


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
    """The d-th push of a stage counts 1/d; a stage is closed when no worker can push in it."""

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


@rule("aggregation", "median", "trimmed_mean")
class Alike(Rule):
    """Yin et al.: every push counts alike."""

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Weigh alike."""
        return [Apply(pushes, [1 / len(pushes) for _ in pushes])]


class ByProducts(Rule):
    """The weights follow from the scalar products of the pushes that are numbers; others weigh nothing."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.pushes: list[Push] = []

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Ask for all of them."""
        self.pushes = pushes
        pairs = combinations_with_replacement([push.id for push in pushes], 2)
        return [Measure("aggregation", {f"dot:{one}:{other}": None for one, other in pairs})]

    def on_measured(self, facts: dict[str, float], c: Cluster) -> Decisions:
        """Weigh those that are numbers; if none is, all by their samples."""
        good = [push for push in self.pushes if math.isfinite(facts[f"dot:{push.id}:{push.id}"])]
        weights = dict.fromkeys((push.id for push in self.pushes), 0.0)
        if good:
            by_name = {frozenset(map(int, name.split(":")[1:])): value for name, value in facts.items()}
            products = np.array([[by_name[frozenset((a.id, b.id))] for b in good] for a in good])
            own = self.weights(good, products)
        else:
            good, own = self.pushes, shares(self.pushes)
        weights |= {push.id: float(weight) for push, weight in zip(good, own, strict=True)}
        return [Apply(self.pushes, list(weights.values()))]

    def weights(self, pushes: list[Push], products: np.ndarray) -> Any:
        """Return the weight of each push."""
        raise NotImplementedError


@rule("aggregation", "krum")
class Krum(ByProducts):
    """The m pushes of lowest score; a score adds up the squared distances to the n - f - 2 nearest others."""

    def weights(self, pushes: list[Push], products: np.ndarray) -> Any:
        """Share the weight among the best; of equal scores the first is better."""
        n = len(pushes)
        squares = np.diag(products)
        distances = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0.0)
        nearest = max(n - self.own.faulty - 2, 1)
        scores = [sum(sorted(np.delete(distances[i], i).tolist())[:nearest]) for i in range(n)]
        best = sorted(range(n), key=scores.__getitem__)[: self.own.chosen]
        return [(i in best) / len(best) for i in range(n)]


@rule("aggregation", "geometric_median")
class GeometricMedian(ByProducts):
    """RFA, Alg. 2: Weiszfeld's iteration with distances of at least nu, from the mean over the samples."""

    #: the distance from a point that is nearly reached is what rounding leaves of larger numbers
    tolerance = 1e-4

    def weights(self, pushes: list[Push], products: np.ndarray) -> Any:
        """Iterate on weights: z = sum_i a_i v_i is at distance sqrt((e_i - a)' G (e_i - a)) from v_i."""
        weights = alphas = np.array(shares(pushes))
        for _ in range(self.own.iterations):
            away = np.eye(len(pushes)) - weights
            distances = np.sqrt(np.maximum([row @ products @ row for row in away], 0.0))
            betas = alphas / np.maximum(distances, self.own.smoothing)
            weights = betas / betas.sum()
        return weights


@rule("aggregation", "clipped_mean")
class ClippedMean(ByProducts):
    """Each push is shortened to the norm given, or to the median norm."""

    def weights(self, pushes: list[Push], products: np.ndarray) -> Any:
        """Multiply each share by min(1, most / norm)."""
        norms = [math.sqrt(max(square, 0.0)) for square in np.diag(products).tolist()]
        most = self.own.norm if self.own.norm > 0 else median(norms)
        by = [min(1.0, most / norm) if norm > 0 else 1.0 for norm in norms]
        return [share * one for share, one in zip(shares(pushes), by, strict=True)]


@rule("aggregation", "delayed_nesterov")
class DelayedNesterov(Rule):
    """Async Local-SGD, Alg. 3: each difference wholly; N pushes between two momenta, by default n."""

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Say how many pushes there are between two momenta."""
        every = self.own.momentum_every if self.own.momentum_every > 0 else c.num_workers
        return [Apply(pushes, [1.0 for _ in pushes], {"every": float(every)})]


@rule("aggregation", "elastic_centre")
class ElasticCentre(Rule):
    """EASGD, Alg. 1: the centre moves by alpha (w - x)."""

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Mix."""
        alpha = self.own.elastic_rate
        return [Apply(pushes, [alpha for _ in pushes], {"keep": 1.0 - alpha})]


def fading(push: Push, c: Cluster, exponent: float) -> float:
    """Return s(tau) = (1 + tau)^-a, where tau versions were made since the push was begun."""
    return math.exp(-exponent * math.log(1 + c.version - push.base_version))


@rule("aggregation", "fedasync")
class FedAsync(Rule):
    """FedAsync, Alg. 1: x <- (1 - a_t) x + a_t w with a_t = alpha s(tau)."""

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Mix."""
        (push,) = pushes
        share = self.own.mixing * fading(push, c, self.own.staleness_exponent)
        return [Apply(pushes, [share], {"keep": 1.0 - share})]


@rule("aggregation", "fedbuff")
class FedBuff(Rule):
    """FedBuff, Alg. 1: the mean of K differences, each times s(tau)."""

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Divide by K, or by the sum of the weights."""
        weights = [fading(push, c, self.own.staleness_exponent) for push in pushes]
        by = math.fsum(weights) if self.own.normalise else len(pushes)
        return [Apply(pushes, [weight / by for weight in weights])]


@rule("aggregation", "radial_outer")
class RadialOuter(Rule):
    """Decoupled DiLoCo: samples squared over steps, since the worker pushed the same fragment last."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.taken: dict[int, list[Push]] = {}

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Weigh by that, and name no tensor."""
        found = []
        for push in pushes:
            before = self.taken.setdefault(push.worker, [])
            ends = [i + 1 for i, old in enumerate(before) if old.fragment == push.fragment]
            own = [*before[max(ends, default=0) :], push]
            before.append(push)
            found.append(sum(p.samples for p in own) ** 2 / sum(p.steps for p in own))
        return [Apply(pushes, [each / sum(found) for each in found])]


@rule("aggregation", "two_levels")
class TwoLevels(Rule):
    """HALoS: what arrives between servers by the time of a push, then the push, and perhaps an update."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.since_merge: dict[int, int] = {}
        self.events: list[tuple[float, int, str, int]] = []  # by time, then as they were sent
        self.number = 0

    def due(self, now: float) -> list[tuple[str, int]]:
        """Return what has arrived."""
        found = sorted(each for each in self.events if each[0] <= now)
        self.events = [each for each in self.events if each[0] > now]
        for _, _, kind, region in found:
            if kind == "merge":
                self.since_merge[region] = 0
        return [(kind, region) for _, _, kind, region in found]

    def on_commit(self, pushes: list[Push], c: Cluster) -> Decisions:
        """Say all of it in order; the toy cluster's links take no time of their own."""
        (push,) = pushes
        region = push.worker // self.own.region_size
        happens = [*self.due(c.now), ("push", region)]
        self.since_merge[region] = self.since_merge.get(region, 0) + 1
        notes: Decisions = []
        if self.since_merge[region] == self.own.pushes_per_exchange:
            self.events += [(c.now, self.number, "global", region), (c.now, self.number + 1, "merge", region)]
            self.number += 2
            notes = [Note(f"region {region} sends its update, which takes 0 s each way")]
            happens += [("send", region), *self.due(c.now)]
        return [*notes, Apply(pushes, [1.0], {f"{i} {what}": r for i, (what, r) in enumerate(happens)})]
