"""Who keeps the model, as the conductor sees it: how a placement performs the engine's actions.

A keeper decides nothing. It sends letters, and holds what has arrived until an action names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from psbench.backends.partition import Partition, gather
from psbench.core import actions as act
from psbench.core.events import Push
from psbench.training.server import Server

#: a model and, if asked for, its optimizer's tensors as `optimizer/...`
State: TypeAlias = dict[str, Tensor]
Then: TypeAlias = Callable[[State], None]
ThenNumber: TypeAlias = Callable[[float], None]

OPTIMIZER = "optimizer/"


class ParameterStore(Protocol):
    """What the conductor asks of a placement."""

    def take(self, push: Push, payload: Tensor | None) -> None:
        """Hold what came with a push until it is applied or discarded."""

    def apply(self, apply: act.Apply) -> None:
        """Make the next version."""

    def release(self, release: act.Release, samples: int) -> None:
        """Let a worker go on, with steps of so many samples."""

    def discard(self, push: Push) -> None:
        """Drop what came with a push."""

    def gather(self, optimizer: bool, then: Then) -> None:
        """Call `then` with the current version's state, at once or when it has arrived."""

    def record(self, keys: Sequence[tuple[int, int]], then: Then) -> None:
        """Call `then` with all that a checkpoint holds of the current version, and of those pushes."""

    @property
    def wire(self) -> dict[str, int]:
        """How many models and aggregates were written with chance of their own."""

    def payload(self, push: Push, then: Then) -> None:
        """Call `then` with what a push carries: parameters (or a gradient) and buffers."""

    def hold(self, version: int, in_use: Iterable[int]) -> None:
        """Remember the current version, for distances from it, and forget those not in use."""

    def distance_sq(self, push: Push, then: ThenNumber) -> None:
        """Call `then` with the squared distance from the current version to the one a push started from."""

    @property
    def movement(self) -> float:
        """How far the last update moved the model, if that is measured; see `Server.movement`."""

    def answer(self, sender: str, plain: dict[str, object], payload: Tensor | None) -> None:
        """Take what a keeper's own request brought."""

    def forget(self, worker: int) -> None:
        """Know no longer what a worker holds that has gone, or begins anew."""

    def leave(self, worker: int) -> None:
        """Do without a worker that is dead."""


def update_of(apply: act.Apply) -> dict[str, Any]:
    """Return how an update is to be made, its weights aside; see `Server.apply`."""
    return {
        "lr_scale": apply.lr_scale,
        "epoch": apply.epoch,
        "rule": apply.rule,
        "keep": apply.keep,
        "momentum_scale": apply.momentum_scale,
    }


def state_of(server: Server, optimizer: bool) -> State:
    """Return a copy of a server's model, and of its optimizer's tensors if wanted."""
    state = {"parameters": server.parameters, "buffers": server.buffers}
    if optimizer:
        state |= {OPTIMIZER + name: value for name, value in server.optimizer_state().items()}
    return {name: value.detach().clone() for name, value in state.items()}


def restore(server: Server, state: State) -> None:
    """Set a server to a state; without an optimizer's tensors it begins anew with them."""
    server.parameters.copy_(state["parameters"])
    server.buffers.copy_(state["buffers"])
    own = {n.removeprefix(OPTIMIZER): t for n, t in state.items() if n.startswith(OPTIMIZER)}
    server.load_optimizer_state(own)


def without_optimizer(state: State) -> State:
    """Return the model alone."""
    return {name: value for name, value in state.items() if not name.startswith(OPTIMIZER)}


def cut(state: State, part: Partition, first: bool) -> State:
    """Return one server's slice of a state; buffers stay with the first."""
    length = len(state["parameters"])
    own = {n: part.of(t) if t.dim() == 1 and len(t) == length else t for n, t in state.items()}
    return own | {"buffers": state["buffers"] if first else state["buffers"][:0]}


def join(parts: list[State], own: Sequence[Partition]) -> State:
    """Put the servers' slices of a state together again."""
    first = parts[0]
    length = len(first["parameters"])
    return {
        name: gather([part[name] for part in parts], own)
        if not name.startswith("buffers") and value.dim() == 1 and len(value) == length
        else value
        for name, value in first.items()
    }
