"""Parts as a reader of the README writes them, one algorithm in each cell, after the imports of the first."""

from math import prod

from pydantic import PrivateAttr
from toybox import take_out

from psbench.core import Aggregation, Apply, Measure, parameter
from psbench.core.needs import NEEDS_BARRIER, NEEDS_SINGLE_PUSHES
from psbench.strategies.communication import LocalSGD

# %% median


class Median(Aggregation):
    """The median of each entry: what one worker sends cannot take the model anywhere alone."""

    name = "own_median"
    needs = (NEEDS_BARRIER,)

    def on_commit(self, pushes, view):
        return [Apply(pushes, [1.0 / len(pushes)] * len(pushes))]

    def update(self, x, pushes, state, step):
        step.move(step.stack(pushes).median(dim=0).values)


# %% dc_asgd


class DelayCompensated(Aggregation):
    """DC-ASGD (Zheng et al. 2017): a stale gradient is corrected by how far the model has moved since."""

    name = "own_dc_asgd"
    needs_base = True
    compensation: float = parameter(0.04, "lambda", ge=0)

    def on_commit(self, pushes, view):
        return [Apply(pushes, [1.0] * len(pushes))]

    def update(self, x, pushes, state, step):
        for push in pushes:
            gradient = push.vector
            step.move(gradient + self.compensation * gradient * gradient * (x - push.base))


# %% diloco


class DiLoCo(Aggregation):
    """The mean of what workers' local steps did, as the gradient of an outer Nesterov step."""

    name = "own_diloco"
    payload = "difference"
    needs = (NEEDS_BARRIER,)
    linear = True
    outer_lr: float = parameter(0.7, "rate of the outer step", gt=0)
    outer_momentum: float = parameter(0.9, "its momentum", ge=0, lt=1)

    def on_commit(self, pushes, view):
        return [Apply(pushes, [1.0 / len(pushes)] * len(pushes), {"round": float(view.version)})]

    def update(self, x, pushes, state, step):
        mean, velocity = step.sum(pushes), state.vector("velocity")
        velocity.mul_(self.outer_momentum).add_(mean)
        state["rounds"] = step.numbers["round"] + 1
        x.sub_(mean + self.outer_momentum * velocity, alpha=self.outer_lr)


# %% easgd


class Elastic(Aggregation):
    """EASGD (Zhang et al. 2015), the centre: w_i and x move towards each other by the same amount."""

    name = "own_elastic"
    payload = "parameters"
    reply = "answer"
    alpha: float = parameter(0.2, "share of the distance", ge=0, le=1)

    def on_commit(self, pushes, view):
        return [Apply(pushes, [self.alpha] * len(pushes))]

    def update(self, x, pushes, state, step):
        before = x.clone()
        for push in pushes:
            x.add_(push.vector - before, alpha=push.weight)
        step.reply(before)


class ElasticSteps(LocalSGD):
    """EASGD, the worker: it goes on from its own model, which the centre's draws nearer."""

    name = "own_elastic_steps"
    alpha: float = parameter(0.2, "share of the distance", ge=0, le=1)

    def receive(self, w, answer, state, own):
        w.sub_(w - answer, alpha=self.alpha)


# %% steadied


class Steadied(Aggregation):
    """Turns the part of a gradient that goes against the last one around; by the cosine of each tensor."""

    name = "own_steadied"
    measures = ("dot",)
    needs = (NEEDS_SINGLE_PUSHES,)

    _asked: int = PrivateAttr(-1)

    def on_commit(self, pushes, view):
        (push,) = pushes
        self._asked = push.id
        names = [f"dot:{push.id}:last", "dot:last:last", f"dot:{push.id}:x"]
        names += [f"dot:{push.id}:{push.id}:{tensor}" for tensor in range(len(view.layout))]
        return [Measure("aggregation", dict.fromkeys(names))]

    def on_measured(self, facts, view):
        against, last = facts[f"dot:{self._asked}:last"], facts["dot:last:last"]
        turned = against / last if against < 0 else 0.0
        return [Apply([view.pending[self._asked]], [1.0], {"turned": turned})]

    def update(self, x, pushes, state, step):
        (push,) = pushes
        direction = push.vector - step.numbers["turned"] * state.vector("last")
        step.move(direction)
        state["last"] = direction


# %% tempered


class Tempered(Aggregation):
    """The mean of each entry, taken back by how far the gradients are from it: two sums, and no `update`."""

    name = "own_tempered"

    def on_commit(self, pushes, view):
        return [Apply(pushes, [1.0 / len(pushes)] * len(pushes))]

    def sums(self, shapes, version):
        return [sum(map(prod, shapes))] * 2

    def exchange(self, mine, state, shapes, numbers):
        mean = yield mine
        variance = yield (mine - mean).square()
        return {"vector": mean / (1.0 + variance)}


# %%
#: known by name while `put_in(OWN)`
OWN = take_out("own_")
