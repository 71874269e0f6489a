"""Aggregations as somebody writes them who has the README: what they compute is theirs."""

from psbench.core import Aggregation, Apply, parameter


class Median(Aggregation):
    """The median of each entry: what one worker sends cannot take the model anywhere alone."""

    name = "own_median"
    needs_barrier = True

    def on_commit(self, pushes, view):
        return [Apply(pushes, [1.0 / len(pushes)] * len(pushes))]

    def update(self, x, pushes, state, step):
        step.move(step.stack(pushes).median(dim=0).values)


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


class DiLoCo(Aggregation):
    """The mean of what workers' local steps did, as the gradient of an outer Nesterov step."""

    name = "own_diloco"
    payload = "difference"
    needs_barrier = True
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
