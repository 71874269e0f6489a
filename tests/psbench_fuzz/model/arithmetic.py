"""Expected updates and workers' steps, as in the sources, in float64 and one line at a time.

Vectors are numpy arrays, one entry for each parameter. Nothing here is shared with the parts but their
hyper-parameters and declarations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from psbench.core import OwnSteps, Strategy
from psbench.core.answered_models import AnsweredSteps
from psbench.seeds import Streams

#: a float64 array, (entries,); `Any`, as are the hyper-parameters that it is multiplied by
ModelVector: TypeAlias = Any

#: of the optimizer, before milestones and shares
RATE = 0.25


@dataclass
class GivenPush:
    """A push of a commit: its payload, its weight, and its base version."""

    vector: ModelVector
    weight: float
    base: ModelVector
    worker: int = 0


class ModelSGD:
    """u <- m u + d, x <- x - lr u; with m = 0 plain steps, which leave u alone."""

    def __init__(self) -> None:
        self.u: ModelVector | None = None

    def step(self, x: ModelVector, direction: ModelVector, lr: float, momentum: float) -> ModelVector:
        """Return the next x."""
        if momentum == 0:
            return x - lr * direction
        self.u = direction if self.u is None else momentum * self.u + direction
        return x - lr * self.u


class ModelServer:
    """The servers' vector, and all that its updates remember."""

    def __init__(self, x: ModelVector, part: str, shape: Sequence[int] = ()) -> None:
        self.x, self.optimizer, self.shape = x, ModelSGD(), shape
        self.left: list[ModelVector] = []  # what the last exchange has left out of each push
        self.memory: dict[Any, Any] = {}  # of the aggregation's rule
        self.part = part

    def use(self, part: str) -> None:
        """Use an aggregation of that name, without the state of another."""
        if part != self.part:
            self.part, self.memory = part, {}

    def forget(self) -> None:
        """Reset the state of optimizer and aggregation."""
        self.optimizer, self.memory = ModelSGD(), {}

    def apply(
        self,
        part: Any,
        pushes: list[GivenPush],
        numbers: Mapping[str, float],
        lr: float,
        momentum: float,
        places: ModelVector | None,
    ) -> None:
        """Make the next version of all entries or of those in `places`."""
        update, self.left = UPDATES.get(part.name, weighted_sum), []
        whole, memory = self.x, self.memory
        if places is not None:
            self.x, self.memory = whole[places], memory.setdefault(tuple(places), {})
        moved = update(OneUpdate(self, part, pushes, numbers, lr, momentum))
        if places is not None:
            self.memory = memory
            moved, part_of_it = whole.copy(), moved
            moved[places] = part_of_it
        self.x = moved


@dataclass
class OneUpdate:
    """One update: `own` is the part."""

    model: ModelServer
    own: Any
    pushes: list[GivenPush]
    numbers: Mapping[str, float]
    lr: float
    momentum: float

    @property
    def x(self) -> ModelVector:
        return self.model.x

    @property
    def memory(self) -> dict[Any, Any]:
        """The state of the rule."""
        return self.model.memory

    @property
    def total(self) -> ModelVector:
        """The weighted sum of the pushes that weigh anything."""
        return sum((p.weight * p.vector for p in self.pushes if p.weight != 0), np.zeros_like(self.x))

    def along(self, direction: ModelVector) -> ModelVector:
        """Return the model after a step of the optimizer."""
        return self.model.optimizer.step(self.x, direction, self.lr, self.momentum)


def weighted_sum(u: OneUpdate) -> ModelVector:
    """Step along sum_i w_i v_i."""
    return u.along(u.total)


def mix(u: OneUpdate) -> ModelVector:
    """Move to keep x + sum_i w_i x_i."""
    return u.numbers["keep"] * u.x + u.total if u.numbers["keep"] else u.total


def exchange(u: OneUpdate) -> ModelVector:
    """Average models, or step along the mean gradient."""
    return mix(u) if u.own.aggregate == "parameters" else weighted_sum(u)


def block_momentum(u: OneUpdate) -> ModelVector:
    """AdaComm, eqs. 7-8: u <- beta u + G with G = (w - mean)/lr; w <- w - lr u."""
    block = (u.x - u.total) / u.lr
    u.memory["u"] = block + u.own.block_momentum * u.memory.get("u", 0.0)
    return u.x - u.lr * u.memory["u"]


def one_bit_adam(u: OneUpdate) -> ModelVector:
    """1-bit Adam, Alg. 1: Adam without correction; then signs of each momentum, and of their mean."""
    own, b1, b2 = u.own, u.own.beta1, u.own.beta2
    m, v, lost = (u.memory.get(name, np.zeros_like(u.x)) for name in ("m", "v", "lost"))
    if u.numbers["version"] < own.freeze_step:
        m, v = b1 * m + (1 - b1) * u.total, b2 * v + (1 - b2) * u.total**2
    else:
        own_ms = [p.vector * (1 - b1) + b1 * m for p in u.pushes]
        u.model.left = [(own_m - signs(own_m)) / (1 - b1) for own_m in own_ms]
        s = sum(p.weight * signs(own_m) for p, own_m in zip(u.pushes, own_ms, strict=True)) + lost
        m, lost = np.where(v > 0, signs(s), 0.0), s - signs(s)
    u.memory.update(m=m, v=v, lost=lost)
    rate = u.lr
    return u.x - rate * (m / (np.sqrt(v) + own.adam_epsilon) + own.adam_weight_decay * u.x)


def signs(vector: ModelVector) -> ModelVector:
    """Return the root mean square, as a 32-bit float, with the sign of each entry."""
    scale = float(np.float32(np.linalg.norm(vector) / math.sqrt(len(vector))))
    return np.where(vector < 0, -scale, scale)


def power_sgd(u: OneUpdate) -> ModelVector:
    """PowerSGD, Alg. 1, for a single tensor, as a matrix; linear operations apply to the sum of pushes."""
    own, shape, version = u.own, u.model.shape, int(u.numbers["version"])
    if len(shape) < 2 or version < own.start_iter:
        return weighted_sum(u)
    (rows, columns), whole = shape, u.total.reshape(shape)
    rank = min(own.rank, rows, columns)
    if (rows + columns) * rank * own.min_compression_rate >= rows * columns:
        return weighted_sum(u)
    q = u.memory.get("q", np.zeros((columns, rank))) if own.warm_start else np.zeros((columns, rank))
    if not q.any(axis=0).all():
        drawn = Streams(own.first_draw).generator("power_sgd", 0, version).standard_normal((columns, rank))
        q = np.where(q.any(axis=0), q, drawn)
    p = orthogonal(whole @ orthogonal(q, own.epsilon), own.epsilon)
    u.memory["q"] = whole.T @ p
    out = (p @ u.memory["q"].T).ravel()
    if own.error_feedback:
        u.model.left = [push.vector - out for push in u.pushes]
    return u.along(out)


def orthogonal(matrix: ModelVector, epsilon: float) -> ModelVector:
    """Return the columns orthonormalised by Gram-Schmidt; dependent ones are 0."""
    found: list[ModelVector] = []
    for whole in matrix.T:
        column = whole
        for before in 2 * found:
            column = column - before * (before @ column)
        alone = np.linalg.norm(column) > 1e-6 * np.linalg.norm(whole)
        found.append(column * alone / (np.linalg.norm(column) + epsilon))
    return np.array(found).T


def robust(u: OneUpdate) -> ModelVector:
    """Step along the mean of each entry's values without the extreme ones; NaN counts as the greatest."""
    columns = np.sort(np.array([push.vector for push in u.pushes]), axis=0)
    count = len(columns)
    out = (count - 1) // 2 if u.own.name == "median" else math.floor(u.own.trim * count + 1e-9)
    return u.along(np.mean(columns[out : count - out], axis=0))


def delay_compensated(u: OneUpdate) -> ModelVector:
    """DC-ASGD, eq. 10: g + lambda g g (x - x_base), for the pushes of a commit in order."""
    for push in u.pushes:
        g, factor = push.vector, u.own.compensation
        if u.own.form == "adaptive":
            u.memory["ms"] = 0.95 * u.memory.get("ms", 0.0) + 0.05 * g**2
            factor = factor / np.sqrt(u.memory["ms"] + 1e-7)
        u.model.x = u.along(g + factor * g * g * (u.x - push.base))
    return u.x


def delayed_nesterov(u: OneUpdate) -> ModelVector:
    """Async Local-SGD, Alg. 3: momentum with every N-th push, and c times it with the others."""
    n, beta, lr = u.numbers["every"], u.own.outer_momentum, u.own.outer_lr
    c = u.own.momentum_between / n
    for push in u.pushes:
        taken = u.memory.setdefault("taken", [])  # since the last momentum
        taken.append(push.vector)
        if len(taken) == n:
            u.memory["m"] = beta * u.memory.get("m", 0.0) + sum(taken) / n
            u.memory["taken"] = []
            share = 1 - c * n + c
        else:
            share = c
        u.model.x = u.x - lr * (share * beta * u.memory.get("m", 0.0) + push.vector / n)
    return u.x


def dyn_sgd_versioned(u: OneUpdate) -> ModelVector:
    """Step by the change that this push makes to the mean of its stage."""
    (push,), stage = u.pushes, u.numbers["stage"]
    pushed = u.memory.setdefault(stage, [])
    before = np.mean(pushed, axis=0) if pushed else np.zeros_like(u.x)
    pushed.append(push.vector)
    now = np.mean(pushed, axis=0)
    if u.numbers["closes"]:
        for old in [other for other in u.memory if other <= stage]:
            del u.memory[old]
    return u.along(now - before if len(pushed) > 1 else now)


def outer(u: OneUpdate) -> ModelVector:
    """DiLoCo, Alg. 1; FedOpt, Alg. 2; see `Outer` for the optimizers and Nesterov's forms."""
    d, own, memory, zero = u.total, u.own, u.memory, np.zeros_like(u.x)
    v, s, beta = memory.get("v", zero), memory.get("s", zero), own.outer_momentum
    kind = own.outer_optimizer
    if kind == "plain":
        return u.x - own.outer_lr * d
    if kind == "nesterov" and own.nesterov_form == "average":
        return _averaging(u)
    if kind in ("nesterov", "heavy_ball"):
        v = memory["v"] = beta * v + d
        if kind == "nesterov" and own.nesterov_form == "blend":
            return u.x - own.outer_lr * (beta * v + (1 - beta) * d)
        return u.x - own.outer_lr * (d + beta * v if kind == "nesterov" else v)
    v = memory["v"] = beta * v + (1 - beta) * d
    beta2 = own.outer_second_momentum
    s = beta2 * s + (1 - beta2) * d**2 if kind == "adam" else s - (1 - beta2) * d**2 * np.sign(s - d**2)
    memory["s"] = s
    return u.x - own.outer_lr * v / (np.sqrt(s) + own.outer_epsilon)


def _averaging(u: OneUpdate) -> ModelVector:
    """Momentum look-ahead, as in rafey1104/async_diloco_pytorch bb76d72, server/async_server.py.

    `m_new = gamma * m_prev + (1 - gamma) * delta`; `current - lr * (gamma * m_new + delta)`.
    """
    gamma, delta = u.own.outer_momentum, u.total
    m_new = u.memory["m"] = gamma * u.memory.get("m", 0.0) + (1 - gamma) * delta
    return u.x - u.own.outer_lr * (gamma * m_new + delta)


def eager_outer(u: OneUpdate) -> ModelVector:
    """Eager DiLoCo: the mean of k workers' steps, with Nesterov's momentum."""
    mean, k = u.total, u.numbers["workers"]
    known = mean if "mean" not in u.memory else ((k - 1) * u.memory["mean"] + mean) / k
    u.memory["mean"] = mean
    v = u.memory["v"] = u.own.outer_momentum * u.memory.get("v", 0.0) + known
    return u.x - u.own.outer_lr * (known + u.own.outer_momentum * v)


def two_levels(u: OneUpdate) -> ModelVector:
    """HALoS, from the authors' code alone: utnslab/halos 4b5bf73, src/halos.

    Delayed Nesterov, opt.py, lines 93-109, with c = 0, B = buffer_size, and lr that examples/run_halos.sh
    (lines 19-20) multiplies by B: delta += grad; at every B-th step m = beta m + delta / B and p -= lr (beta
    m + grad / B), delta = 0; else p -= lr grad / B. Sending, simulation/exec_halos.py, lines 91-99:
    latest_merged_param - param. Merging, ps.py, lines 66-69: p *= 1 - merge_weight; p += merge_p
    merge_weight; then the merged model is kept (exec_halos.py, lines 87-88). Every server loads the same
    model (ps.py, line 14). That a region which joins later begins with the global model is ours.
    """
    own, x = u.own, u.x
    regions: dict[int, dict[str, ModelVector]] = u.memory.setdefault("regions", {})

    def stepped(
        p: ModelVector, grad: ModelVector, whose: Any, rates: tuple[float, float, int]
    ) -> ModelVector:
        (scaled, beta, size), held = rates, u.memory.setdefault(whose, {"t": 0, "m": 0.0, "delta": 0.0})
        lr, held["delta"] = scaled * size, held["delta"] + grad
        held["t"] += 1
        if held["t"] % size:
            return p - lr * (grad / size)
        held["m"] = beta * held["m"] + held["delta"] / size
        held["delta"] = 0.0
        return p - lr * (beta * held["m"] + grad / size)

    for key, value in u.numbers.items():
        kind, r = key.split()[1], int(value)
        server = regions.setdefault(r, {"p": x, "merged": x} if kind == "begin" else {})
        if kind == "push":
            rates = own.region_lr, own.region_momentum, own.region_every
            server["p"] = stepped(server["p"], u.pushes[0].vector, r, rates)
        elif kind == "send":
            server["update"] = server["merged"] - server["p"]
        elif kind == "global":
            rates = own.global_lr, own.global_momentum, own.global_every
            x = server["global"] = stepped(x, server["update"], "global", rates)
        elif kind == "merge":
            server["p"] = server["p"] * (1 - own.merging) + server["global"] * own.merging
            server["merged"] = server["p"]
    return x


def radial_outer(u: OneUpdate) -> ModelVector:
    """Decoupled DiLoCo, for a single tensor."""
    v, beta = u.memory.get("v", np.zeros_like(u.x)), u.own.outer_momentum
    weights, found = [push.weight for push in u.pushes], [push.vector for push in u.pushes]
    mean = sum(w * d for w, d in zip(weights, found, strict=True))
    norms = [float(np.linalg.norm(d)) for d in found]
    units = [d / n if n else d for d, n in zip(found, norms, strict=True)]
    u_mean = sum(w * e for w, e in zip(weights, units, strict=True))
    size = float(np.linalg.norm(u_mean))
    if u.own.merge == "radial" and size >= 1e-12:
        mean = u_mean / size * sum(w * n for w, n in zip(weights, norms, strict=True))
    v = u.memory["v"] = beta * v + mean
    return u.x - u.own.outer_lr * (mean + beta * v)


def heloco(u: OneUpdate) -> ModelVector:
    """HeLoCo for a single tensor, from the authors' code alone: PanocularAI/torchft 0b0bae4.

    torchft/heloco.py, block_correct (lines 125-160), in its names, with its defaults (lines 98-103):
    cos_b = delta m / (safe_d safe_m); conf_b = norm_d / (norm_d + kappa norm_m + eps). HeLoCoOptimizer.step
    (lines 89-90): `m.mul_(mu).add_(G, alpha=1.0 - mu)`, `p.add_(-(G + mu * m), alpha=lr)`.
    """
    (push,), mu, m = u.pushes, u.own.outer_momentum, u.memory.get("m", np.zeros_like(u.x))
    delta, eps = push.vector, 1e-8
    norm_d, norm_m = float(np.linalg.norm(delta)), float(np.linalg.norm(m))
    if norm_d >= eps and norm_m >= eps:
        u_hat, v_hat = delta / norm_d, m / norm_m
        cos_b, conf_b = float(u_hat @ v_hat), norm_d / (norm_d + 3.0 * norm_m + eps)
        if cos_b < 0.0:
            beta_b = min(0.5 * (-cos_b) * conf_b, 0.5)
            delta = delta - beta_b * cos_b * norm_d * v_hat
        elif cos_b < 0.2:
            lambda_b = min(1.0 * (1.0 - cos_b) * conf_b, 1.0)
            u_mix = (1.0 - lambda_b) * u_hat + lambda_b * v_hat
            delta = norm_d * u_mix / np.linalg.norm(u_mix)
    g = push.weight * delta  # rho * corrected_block
    m = u.memory["m"] = mu * m + (1.0 - mu) * g
    return u.x - u.own.outer_lr * (g + mu * m)


def last_write(u: OneUpdate) -> ModelVector:
    """Step along the gradient, of which the only tensor may be lost."""
    return u.along(u.pushes[0].vector * ("lost:0" not in u.numbers))


def sparse_outer(u: OneUpdate) -> ModelVector:
    """SparseLoCo: mean of each entry over the workers that sent it, or over all workers (Alg. 1).

    From tplr-ai/templar c2397ac, src/tplr/compress.py, lines 472-474: scatter_reduce_ of all values that were
    sent, with "mean" and include_self=False. That a 0 which is sent counts as not sent is ours.
    """
    sent = sum((push.vector != 0).astype(float) for push in u.pushes)
    by = np.maximum(sent, 1) if u.own.combine == "mean_of_senders" else len(u.pushes)
    return u.x - u.own.outer_lr * u.total / by


def control_variates(u: OneUpdate) -> ModelVector:
    """SCAFFOLD, Alg. 1, lines 16 and 17, with S = N: x <- x + eta_g mean (y_i - x), and c is the mean c_i."""
    models, controls = np.sum([p.weight * p.vector.reshape(2, -1) for p in u.pushes], axis=0)
    u.memory["control"] = controls
    return (1 - u.own.global_lr) * u.x + u.own.global_lr * models


def gradient_estimates(u: OneUpdate) -> ModelVector:
    """EF21: g is the mean of all g_i; the g_i of a restarted worker is its message."""
    before = {w: g for w, g in u.memory.items() if f"knows {w}" in u.numbers}
    u.memory.clear()
    u.memory.update({p.worker: before.get(p.worker, 0.0) + p.vector for p in u.pushes})
    return u.along(sum(p.weight * u.memory[p.worker] for p in u.pushes))


def gradient_table(u: OneUpdate) -> ModelVector:
    """Ringleader ASGD: x <- x - lr/n sum_i G_i/b_i; the table is a list of each worker's gradients."""
    if u.numbers["begins"]:
        u.memory.clear()
    for push in u.pushes:
        u.memory.setdefault(push.worker, []).append(push.vector)
    return u.along(np.mean([np.mean(gradients, axis=0) for gradients in u.memory.values()], axis=0))


def fedbuff(u: OneUpdate) -> ModelVector:
    """FedBuff: x <- x - lr sum_i w_i D_i."""
    return u.x - u.own.outer_lr * u.total


#: what rounding may make of vectors, as a share of the largest entry: of 1-bit Adam's scales, 32-bit floats,
#: a momentum that differs in its last bit may have the next, and a residual multiplies that
ROUNDING = {"one_bit_adam": 1e-5}
#: the update of each aggregation part
UPDATES: dict[str, Callable[[OneUpdate], ModelVector]] = {
    **dict.fromkeys(("model_average", "loss_weighted", "elastic_centre", "fedasync"), mix),
    "exchange": exchange,
    "block_momentum": block_momentum,
    "one_bit_adam": one_bit_adam,
    "power_sgd": power_sgd,
    **dict.fromkeys(("median", "trimmed_mean"), robust),
    "delay_compensated": delay_compensated,
    "delayed_nesterov": delayed_nesterov,
    "dyn_sgd_versioned": dyn_sgd_versioned,
    "control_variates": control_variates,
    "gradient_estimates": gradient_estimates,
    "gradient_table": gradient_table,
    "outer": outer,
    "look_ahead_outer": _averaging,
    "eager_outer": eager_outer,
    "radial_outer": radial_outer,
    "heloco": heloco,
    "two_levels": two_levels,
    "last_write": last_write,
    "sparse_outer": sparse_outer,
    "fedbuff": fedbuff,
    **dict.fromkeys(("mean", "sum", "accumulated", "staleness_weighted", "dyn_sgd"), weighted_sum),
    "worker_means": weighted_sum,
    **dict.fromkeys(("bounded_step", "bounded_step_by_mean"), weighted_sum),
    **dict.fromkeys(("krum", "geometric_median", "clipped_mean"), weighted_sum),
}


class ModelWorker:
    """A worker's state, and its expected pushes: see the docstrings of the communication parts."""

    def __init__(self, composition: Strategy, momentum: float) -> None:
        self.m: Any = composition.communication
        self.kind, self.momentum = composition.aggregation.payload, momentum
        self.own_steps = isinstance(self.m, OwnSteps)
        self.own, self.optimizer = np.zeros(0), ModelSGD()
        self.received = self.last = self.own
        self.steps: list[tuple[ModelVector, int]] = []  # gradients and samples that no push has carried
        self.pushed: dict[tuple[int, ...], ModelVector] = {}  # of fragments, until their answers
        self.exchanges = False  # whether its push is what an elastic answer belongs to
        self.orders: Mapping[str, Any] = {}
        self.x = self.v = self.share = self.own  # of an eager worker
        self.mean: ModelVector | None = None
        self.lr = 0.0  # of the last step
        self.names = composition.aggregation.sends
        self.answer: dict[str, ModelVector] = {}  # what came with the last model
        self.control: ModelVector | None = None  # c_i of SCAFFOLD
        self.estimate: ModelVector = 0.0  # g_i of EF21

    def load(self, x: ModelVector, places: ModelVector | None) -> None:
        """Continue from a model, or from a fragment of one."""
        if places is not None:
            alpha, self.own, self.received = self.m.mixing, self.own.copy(), self.received.copy()
            mixed = alpha * self.own[places] + (1 - alpha) * x
            if getattr(self.m, "takes", "mixture") == "change":
                mixed = self.own[places] + x - self.pushed.pop(tuple(places))
            self.own[places], self.received[places] = mixed, x
            return
        x, *others = x.reshape(1 + len(self.names), -1)
        self.answer = dict(zip(self.names, others, strict=True))
        if self.control is None:  # as the global one, which leaves the mean of all as it is
            self.control = self.answer.get("control")
        self.x, self.v, self.mean = x, np.zeros_like(x), None
        if self.m.name == "elastic" and self.exchanges:  # x is the centre after its move towards the worker
            alpha = self.m.elastic_rate
            before = (x - alpha * self.own) / (1 - alpha)
            self.own = x = self.own - alpha * (self.own - before)
        elif self.m.overlaps and not self.own_steps:  # w_answer - lr (gradients since the push)
            self.own = x - self.lr * sum((g for g, _ in self.steps), np.zeros_like(x))
        else:
            self.own, self.steps = x, []
        self.received, self.exchanges = x, False
        if getattr(self.m, "forgets_momentum", False):
            self.optimizer = ModelSGD()

    def receive(self, answer: ModelVector) -> None:
        """Step along the aggregate in place of the last own gradient, or take a region's model."""
        if isinstance(self.m, AnsweredSteps):
            self.load(answer, None)
            return
        if self.m.name != "eager":
            self.own = self.optimizer.step(self.own, answer, self.lr, self.momentum)
            return
        if self.mean is None:
            self._outer(answer)
        self.mean = answer

    def _outer(self, known: ModelVector) -> None:
        self.v = self.m.outer_momentum * self.v + known
        self.own = self.x = self.x - self.m.outer_lr * (known + self.m.outer_momentum * self.v)

    def stepped(self, gradient: ModelVector, samples: int, lr: float) -> None:
        """Take a step's gradient, and its rate."""
        self.lr = lr
        self.steps.append((gradient, samples))
        if self.m.overlaps and not self.own_steps:
            self.own = self.own - lr * gradient
        elif self.own_steps and self.kind == "gradient":
            self.last = gradient  # it steps when it knows along which
        elif self.own_steps:
            if self.control is not None:
                gradient = gradient - self.control + self.answer["control"]
            self.own = self.optimizer.step(self.own, gradient, lr, self.momentum)

    def keep(self) -> None:
        """Keep the last step, which is not exchanged."""
        if self.own_steps and self.kind == "gradient":
            self.own = self.optimizer.step(self.own, self.last, self.lr, self.momentum)

    def payload(self, places: ModelVector | None) -> ModelVector:
        """Return the payload of a push."""
        if places is not None:
            self.steps, self.pushed[tuple(places)] = [], self.own[places]
            return self.received[places] - self.own[places]
        if self.m.name == "eager":
            self.steps = []
            difference = self.x - self.own
            if self.mean is not None:
                self._outer(self.mean + (difference - self.share) / self.orders["workers"])
            self.share = difference
            return difference
        steps, self.steps, self.exchanges = self.steps, [], True
        if self.m.overlaps:
            return np.sum([gradient for gradient, _ in steps], axis=0)
        if self.control is not None:  # option II, which for plain steps is the mean of their gradients
            self.control = np.mean([gradient for gradient, _ in steps], axis=0)
            return np.concatenate([self.own, self.control])
        if self.kind == "parameters":
            return self.own
        if self.kind == "difference":
            return self.received - self.own
        if self.own_steps:
            return self.last
        return sum(n * gradient for gradient, n in steps) / sum(n for _, n in steps) - self.estimate

    def sent(self, arrived: ModelVector) -> None:
        """Record the decoded part of a push: EF21, g_i <- g_i + C(gradient - g_i)."""
        self.estimate = self.estimate + arrived
