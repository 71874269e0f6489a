"""Base of communication parts whose workers take optimizer steps between two pushes."""

from __future__ import annotations

from typing import ClassVar

from psbench.core.arithmetic import State, Vector, WorkerStep
from psbench.core.needs import Need
from psbench.core.parts import Communication


class OwnSteps(Communication):
    """A worker has its own model and optimizer; the aggregation part defines the payload of its pushes.

    Its model; what its steps have moved it by since it received one; or, where gradients are exchanged, that
    of the last step, which the answer stands in for.
    """

    needs = (
        Need(
            "aggregation",
            lambda a: a.payload != "gradient" or a.reply != "model",
            "{part} takes local steps, which would be lost because {other} replies with the model",
            "use an aggregation whose payload is 'parameters' or 'difference', such as 'model_average'",
        ),
    )
    #: whether a worker that is sent the model resets the state of its own optimizer
    forgets_momentum: ClassVar[bool] = True

    @property
    def steps_by_itself(self) -> bool:
        """Always."""
        return True

    def begin(self, w: Vector, model: Vector, state: State, own: WorkerStep) -> None:
        """Continue from the model."""
        w.copy_(model)
        if self.forgets_momentum:
            own.forget()
        if own.kind == "difference":
            state.vector("received", model).copy_(model)

    def step(self, w: Vector, gradient: Vector, state: State, own: WorkerStep) -> None:
        """Step along the gradient; if gradients are exchanged, keep it until the answer is known."""
        if own.kind == "gradient":
            state["gradient"] = gradient
        else:
            own.move(gradient)

    def keep(self, w: Vector, state: State, own: WorkerStep) -> None:
        """Step along the worker's own gradient, if it was not exchanged."""
        if own.kind == "gradient":
            own.move(state["gradient"])

    def payload(self, w: Vector, state: State, own: WorkerStep) -> Vector:
        """Return the gradient, the displacement since the last model, or the worker's model."""
        if own.kind == "parameters":
            return w.clone()
        gradient: Vector = state["received"] - w if own.kind == "difference" else state["gradient"]
        return gradient

    def receive(self, w: Vector, answer: Vector, state: State, own: WorkerStep) -> None:
        """Step along the gradient that the exchange has brought."""
        own.move(answer)
