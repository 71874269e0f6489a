"""Weights of pushes as the sources define them; see the docstrings of the parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations_with_replacement
from statistics import fmean, median
from typing import Any, TypeAlias

import numpy as np

from psbench.core import Apply, Measure, Note, Push, Status
from psbench_fuzz.model.rule import Decisions, Rule, rule
from psbench_fuzz.model.view import ModelCluster

#: the weight of each push, and the numbers beside them
Weights: TypeAlias = tuple[list[float], dict[str, float]]
#: what weighs the pushes of a commit, given the part and the cluster
Weigh: TypeAlias = Callable[[Any, list[Push], ModelCluster], Weights]


def weighs(*names: str) -> Callable[[Weigh], Weigh]:
    """Register a function as the rule of aggregations without state and measurements."""

    def enter(weigh: Weigh) -> Weigh:
        @rule("aggregation", *names)
        class _Weighing(Rule):
            def on_commit(self, pushes: list[Push], c: ModelCluster) -> Decisions:
                return [Apply(pushes, *weigh(self.own, pushes, c))]

        return weigh

    return enter


def shares(pushes: list[Push]) -> list[float]:
    return [push.samples / sum(other.samples for other in pushes) for push in pushes]


@weighs("mean", "block_momentum", "outer", "look_ahead_outer", "control_variates")
def mean(own: Any, pushes: list[Push], c: ModelCluster) -> Weights:
    """Weigh gradients, models or differences by their samples."""
    return shares(pushes), {}


@weighs("power_sgd", "one_bit_adam")
def versioned(own: Any, pushes: list[Push], c: ModelCluster) -> Weights:
    """Weigh pushes by their samples, and pass the base version."""
    return shares(pushes), {"version": c.version}


@weighs("sum", "delay_compensated")
def total(own: Any, pushes: list[Push], c: ModelCluster) -> Weights:
    """Give each push weight 1."""
    return [1.0 for _ in pushes], {}


@weighs("last_write")
def last_write(own: Any, pushes: list[Push], c: ModelCluster) -> Weights:
    """Keep a block unless another writer begins it before its writer ends it; walk through all windows."""
    (push,) = pushes
    begin_s = {one.id: c.workers[one.worker].last_push_s for one in c.pending.values()}
    first, total = begin_s.pop(push.id), sum(size for _, size in c.layout)
    lost = {
        number: size
        for number, (_, size) in enumerate(c.layout)
        if any(0 <= other - first < (c.now - first) * size / total for other in begin_s.values())
    }
    return [1 - sum(lost.values()) / total], {f"lost:{number}": 1.0 for number in lost}


@weighs("heloco")
def arrival(own: Any, pushes: list[Push], c: ModelCluster) -> Weights:
    """Take a push with rho: `rho * corrected_block` (PanocularAI/torchft 0b0bae4, torchft/heloco.py)."""
    return [own.arrival_weight for _ in pushes], {}


@weighs("eager_outer")
def eager_outer(own: Any, pushes: list[Push], c: ModelCluster) -> Weights:
    """Weigh pushes equally, and pass their number."""
    return [1.0 / len(pushes) for _ in pushes], {"workers": len(pushes)}


@weighs("median", "trimmed_mean")
def alike(own: Any, pushes: list[Push], c: ModelCluster) -> Weights:
    """Weigh all alike (Yin et al.)."""
    return [1 / len(pushes) for _ in pushes], {}


@weighs("gradient_table")
def gradient_table(own: Any, pushes: list[Push], c: ModelCluster) -> Weights:
    """Give each push weight 1 (Ringleader ASGD), and pass whether the table is complete."""
    missing = {each.id for each in c.present} - {push.worker for push in pushes}
    return [1.0 for _ in pushes], {"begins": float(not missing)}


@rule("aggregation", "gradient_estimates")
class _GradientEstimates(Rule):
    """EF21: servers keep a worker's g_i while its pushes belong to consecutive releases."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.pushed: dict[int, int] = {}  # in the last commit, the release that each worker's push was of

    def on_commit(self, pushes: list[Push], c: ModelCluster) -> Decisions:
        goes_on = [p.worker for p in pushes if self.pushed.get(p.worker, -2) + 1 == p.ticket]
        self.pushed = {p.worker: p.ticket for p in pushes}
        return [Apply(pushes, shares(pushes), {f"knows {worker}": 1.0 for worker in goes_on})]


@weighs("accumulated")
def accumulated(own: Any, pushes: list[Push], c: ModelCluster) -> Weights:
    """Weigh a worker's sum by its samples per step instead of by all its samples."""
    batches = [push.samples / push.steps for push in pushes]
    return [batch / math.fsum(batches) for batch in batches], {}


@weighs("worker_means")
def worker_means(own: Any, pushes: list[Push], c: ModelCluster) -> Weights:
    """Weigh each worker's mean alike, and the pushes within it by their samples: b / (W b_i)."""
    samples: dict[int, int] = {}
    for push in pushes:
        samples[push.worker] = samples.get(push.worker, 0) + push.samples
    return [push.samples / (len(samples) * samples[push.worker]) for push in pushes], {}


@weighs("model_average")
def model_average(own: Any, pushes: list[Push], c: ModelCluster) -> Weights:
    """Mix the mean of the models pushed into the model, as the share of the workers that they are of.

    All workers that have work to contribute make the whole model; newcomers have none.
    """
    working = {each.id for each in c.present if each.status is not Status.NEW}
    whole = working <= {push.worker for push in pushes} and not c.num_under_way
    share = 1.0 if whole else min(1.0, len(pushes) / len(c.active))
    return [share * each for each in shares(pushes)], {"keep": 1.0 - share}


@weighs("exchange")
def exchange(own: Any, pushes: list[Push], c: ModelCluster) -> Weights:
    """Average models, or gradients."""
    return (model_average if own.aggregate == "parameters" else mean)(own, pushes, c)


@weighs("dyn_sgd")
def dyn_sgd(own: Any, pushes: list[Push], c: ModelCluster) -> Weights:
    """Weigh a push by 1/d, where d is its staleness plus 1."""
    stale = [c.version - push.base_version for push in pushes]
    return [share / (one + 1) for share, one in zip(shares(pushes), stale, strict=True)], {}


@weighs("delayed_nesterov")
def delayed_nesterov(own: Any, pushes: list[Push], c: ModelCluster) -> Weights:
    """Give each difference weight 1; N pushes per momentum step, by default n (Async Local-SGD, Alg. 3)."""
    every = own.momentum_every if own.momentum_every > 0 else c.num_workers
    return [1.0 for _ in pushes], {"every": float(every)}


@weighs("elastic_centre")
def elastic_centre(own: Any, pushes: list[Push], c: ModelCluster) -> Weights:
    """Move the centre by alpha (w - x) (EASGD, Alg. 1)."""
    return [own.elastic_rate for _ in pushes], {"keep": 1.0 - own.elastic_rate}


def fading(own: Any, push: Push, c: ModelCluster) -> float:
    """Return s(tau) = (1 + tau)^-a, where tau is the staleness of the push."""
    return math.exp(-own.staleness_exponent * math.log(1 + c.version - push.base_version))


@weighs("fedasync")
def fedasync(own: Any, pushes: list[Push], c: ModelCluster) -> Weights:
    """Mix: x <- (1 - a_t) x + a_t w with a_t = alpha s(tau) (FedAsync, Alg. 1)."""
    (push,) = pushes
    share = own.mixing * fading(own, push, c)
    return [share], {"keep": 1.0 - share}


@weighs("fedbuff")
def fedbuff(own: Any, pushes: list[Push], c: ModelCluster) -> Weights:
    """Average K differences, each times s(tau), or normalised by the sum of s(tau) (FedBuff, Alg. 1)."""
    weights = [fading(own, push, c) for push in pushes]
    by = math.fsum(weights) if own.normalise else len(pushes)
    return [weight / by for weight in weights], {}


@rule("aggregation", "sparse_outer")
class _SparseOuter(Rule):
    """Each push with weight 1, or shortened to the median norm.

    From tplr-ai/templar c2397ac, src/tplr/compress.py: `clip_norm_val = torch.median(norms)` (line 535),
    which is the lower of two; `torch.clamp(clip_norm_val / (current_norm + 1e-8), max=1)` (line 555). That a
    norm is one of the whole push, where theirs is one of each tensor, is ours.
    """

    def on_commit(self, pushes: list[Push], c: ModelCluster) -> Decisions:
        self.taken = pushes
        if self.own.clip == "none":
            return [Apply(pushes, [1.0 for _ in pushes])]
        return [Measure("aggregation", {f"dot:{push.id}:{push.id}": None for push in pushes})]

    def on_measured(self, facts: dict[str, float], c: ModelCluster) -> Decisions:
        norms = [math.sqrt(facts[f"dot:{push.id}:{push.id}"]) for push in self.taken]
        middle = sorted(norms)[(len(norms) - 1) // 2]
        return [Apply(self.taken, [min(1.0, middle / each) if each else 1.0 for each in norms])]


@rule("aggregation", "staleness_weighted")
class _StalenessWeighted(Rule):
    """Divide the rate by the staleness of the push, or by the mean so far; never by less than 1."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.seen: list[int] = []

    def on_commit(self, pushes: list[Push], c: ModelCluster) -> Decisions:
        stale = [c.version - push.base_version for push in pushes]
        self.seen += stale
        if self.own.rate == "per_gradient":
            by = [float(max(1, one)) for one in stale]
        else:
            by = [max(1.0, fmean(self.seen)) if self.own.rate == "mean" else 1.0] * len(pushes)
        return [Apply(pushes, [share / one for share, one in zip(shares(pushes), by, strict=True)])]


@rule("aggregation", "dyn_sgd_versioned")
class _DynSGDVersioned(Rule):
    """The d-th push of a stage counts 1/d; a stage is closed when no worker can push in it."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.stages: list[int] = []  # of every push that belongs to an open one

    def on_commit(self, pushes: list[Push], c: ModelCluster) -> Decisions:
        (push,) = pushes
        stage = c.workers[push.worker].clock - 1
        self.stages.append(stage)
        weight = 1.0 / self.stages.count(stage)
        closed = all(each.clock > stage for each in c.present)
        if closed:
            self.stages = [other for other in self.stages if other > stage]
        return [Apply(pushes, [weight], {"stage": float(stage), "closes": float(closed)})]


@rule("aggregation", "loss_weighted")
class _LossWeighted(Rule):
    """The weights are 1/L of the model and of the worker's; the first push becomes the model."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.first, self.push = True, -1

    def on_commit(self, pushes: list[Push], c: ModelCluster) -> Decisions:
        (push,) = pushes
        if self.first:
            self.first = False
            return [Apply(pushes, [1.0], {"keep": 0.0})]
        self.push = push.id
        return [
            Measure("aggregation", {"model_loss": None, "candidate_loss": push.id}, self.own.loss_samples)
        ]

    def on_measured(self, facts: dict[str, float], c: ModelCluster) -> Decisions:
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
class _BoundedStep(Rule):
    """The factor is clip(C / distance squared, least, most), C given or the mean until now."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.pushes: list[Push] = []
        self.distances: list[float] = []

    def on_commit(self, pushes: list[Push], c: ModelCluster) -> Decisions:
        self.pushes = pushes
        needs: dict[str, int | None] = {
            f"distance_sq:{push.id}": push.id for push in pushes if push.base_version != c.version
        }
        return [Measure("aggregation", needs)] if needs else self.on_measured({}, c)

    def on_measured(self, facts: dict[str, float], c: ModelCluster) -> Decisions:
        own = self.own
        self.distances += facts.values()
        constant = getattr(own, "near", 0.0) or (fmean(self.distances) if self.distances else 0.0)
        weights = []
        for push, share in zip(self.pushes, shares(self.pushes), strict=True):
            distance = facts.get(f"distance_sq:{push.id}", 0.0)
            rate = constant / distance if distance > 0 else math.inf
            weights.append(share * min(max(rate, own.least), own.most))
        return [Apply(self.pushes, weights)]


class _ByProducts(Rule):
    """Weights from the scalar products of the finite pushes; other pushes have weight 0."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.pushes: list[Push] = []

    def on_commit(self, pushes: list[Push], c: ModelCluster) -> Decisions:
        self.pushes = pushes
        pairs = combinations_with_replacement([push.id for push in pushes], 2)
        return [Measure("aggregation", {f"dot:{one}:{other}": None for one, other in pairs})]

    def on_measured(self, facts: dict[str, float], c: ModelCluster) -> Decisions:
        """Weigh the finite pushes; if there is none, weigh all by their samples."""
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
        raise NotImplementedError


@rule("aggregation", "krum")
class _Krum(_ByProducts):
    """The m pushes of lowest score: the sum of squared distances to the n - f - 2 nearest others."""

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
class _GeometricMedian(_ByProducts):
    """RFA, Alg. 2: Weiszfeld's iteration with distances of at least nu, from the mean over the samples."""

    #: rounding of weights alone
    tolerance = 1e-6

    def weights(self, pushes: list[Push], products: np.ndarray) -> Any:
        """Iterate on weights: z = sum_i a_i v_i is at distance sqrt((e_i - a)' G (e_i - a)) from v_i.

        In fractions, as next to a push almost all digits of the products cancel.
        """
        alphas = [Fraction(push.samples, sum(each.samples for each in pushes)) for push in pushes]
        exact, nu = [[Fraction(each) for each in row] for row in products.tolist()], self.own.smoothing
        weights = [*map(float, alphas)]
        for _ in range(self.own.iterations):
            distances = []
            for i in range(len(pushes)):
                away = [(j == i) - Fraction(weight) for j, weight in enumerate(weights)]
                away[i] = sum(map(Fraction, weights[:i] + weights[i + 1 :]), Fraction(0))  # they come to 1
                form = sum(away[j] * away[k] * g for j, row in enumerate(exact) for k, g in enumerate(row))
                distances.append(math.sqrt(max(form, 0)))
            betas = [float(alpha) / max(nu, away) for alpha, away in zip(alphas, distances, strict=True)]
            weights = [beta / sum(betas) for beta in betas]
        return weights


@rule("aggregation", "clipped_mean")
class _ClippedMean(_ByProducts):
    """Each push is shortened to the norm given, or to the median norm."""

    def weights(self, pushes: list[Push], products: np.ndarray) -> Any:
        norms = [math.sqrt(max(square, 0.0)) for square in np.diag(products).tolist()]
        most = self.own.norm if self.own.norm > 0 else median(norms)
        by = [min(1.0, most / norm) if norm > 0 else 1.0 for norm in norms]
        return [share * one for share, one in zip(shares(pushes), by, strict=True)]


@rule("aggregation", "radial_outer")
class _RadialOuter(Rule):
    """Decoupled DiLoCo: samples squared over steps, since the worker pushed the same fragment last."""

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.taken: dict[int, list[Push]] = {}

    def on_commit(self, pushes: list[Push], c: ModelCluster) -> Decisions:
        found = []
        for push in pushes:
            before = self.taken.setdefault(push.worker, [])
            ends = [i + 1 for i, old in enumerate(before) if old.fragment == push.fragment]
            own = [*before[max(ends, default=0) :], push]
            before.append(push)
            found.append(sum(p.samples for p in own) ** 2 / sum(p.steps for p in own))
        return [Apply(pushes, [each / sum(found) for each in found])]


@rule("aggregation", "two_levels")
class _TwoLevels(Rule):
    """HALoS: messages between servers that arrive before a push, then the push, and perhaps an update.

    From utnslab/halos 4b5bf73, src/halos/simulation/exec_halos.py: a push counts one model version, and the
    K-th since the version that was merged last sends (lines 76-79); merging sets that version (line 89). The
    update arrives after one way (line 202), the global model after another (line 237).
    """

    def __init__(self, own: Any) -> None:
        super().__init__(own)
        self.since_merge: dict[int, int] = {}
        self.events: list[tuple[float, int, str, int]] = []  # by time, then as they were sent
        self.number = 0

    def due(self, now: float) -> list[tuple[str, int]]:
        found = sorted(each for each in self.events if each[0] <= now)
        self.events = [each for each in self.events if each[0] > now]
        for _, _, kind, region in found:
            if kind == "merge":
                self.since_merge[region] = 0
        return [(kind, region) for _, _, kind, region in found]

    def on_commit(self, pushes: list[Push], c: ModelCluster) -> Decisions:
        """List all messages in order; the toy cluster's links take no time."""
        (push,) = pushes
        region = push.worker // self.own.region_size
        new = sorted({w // self.own.region_size for w in [*c.active, push.worker]} - {*self.since_merge})
        happens = [*self.due(c.now), *[("begin", each) for each in new], ("push", region)]
        self.since_merge.update(dict.fromkeys(new, 0))
        self.since_merge[region] += 1
        notes: Decisions = []
        if self.since_merge[region] == self.own.pushes_per_exchange:
            self.events += [(c.now, self.number, "global", region), (c.now, self.number + 1, "merge", region)]
            self.number += 2
            notes = [Note(f"region {region} sends its update, which takes 0 s each way")]
            happens += [("send", region), *self.due(c.now)]
        return [*notes, Apply(pushes, [1.0], {f"{i} {what}": r for i, (what, r) in enumerate(happens)})]
