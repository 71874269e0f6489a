"""Base classes without a server: workers have their own models and mix them with others'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from psbench.core.aggregation import Aggregation
from psbench.core.arithmetic import Pushed, State, Step, Vector
from psbench.core.needs import Need
from psbench.core.own_steps import OwnSteps
from psbench.core.parts import Communication, Consistency, Placement

if TYPE_CHECKING:
    from psbench.core.compatibility import Composition


def _same_family(domain: str, is_met: Callable[[Any], bool]) -> Need:
    """Return the requirement that another part belongs to the same family."""
    why = "{part} is for workers that mix their own models without a server, but {other} is not"
    return Need(domain, is_met, why)


class PeerToPeer(Placement):
    """Every worker has its own model and exchanges it with neighbours; there is no server."""

    needs = (
        _same_family("aggregation", lambda a: isinstance(a, Mixing)),
        _same_family("communication", lambda m: isinstance(m, MixedSteps)),
        Need(
            "communication",
            lambda m: not m.is_encoded,
            "{part} mixes models, which codecs do not support",
            "set both codecs to 'none', or use placement 'parameter_server'",
        ),
    )

    def receivers(self, worker: int, exchange: int, num_workers: int) -> list[int]:
        raise NotImplementedError(f"{type(self).__name__} must define receivers")

    def senders(self, worker: int, exchange: int, num_workers: int) -> list[int]:
        """Return the workers whose models a worker receives at its given exchange."""
        raise NotImplementedError(f"{type(self).__name__} must define senders")

    def bytes_up(self, payload: int, num_workers: int) -> int:
        """Return 0: the exchange counts the bytes sent, by the neighbours that are present."""
        return 0

    def bytes_down(self, payload: int, num_workers: int) -> int:
        """Return 0: no model is sent down."""
        return 0


class Mixing(Aggregation):
    """A worker's model becomes a weighted sum of models, including its own; `on_commit` gives weights."""

    payload = "parameters"
    linear = True
    weighs_samples = False
    needs = (_same_family("placement", lambda p: isinstance(p, PeerToPeer)),)

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Take the weighted sum of the models, in the order of their workers; `x` is the worker's own."""
        x.copy_(step.sum(pushes))

    def update_buffers(self, buffers: Vector, pushes: Sequence[Pushed], step: Step) -> None:
        """Take the same sum of the running statistics."""
        buffers.zero_()
        for push in pushes:
            buffers.add_(push.buffers, alpha=push.weight)


class NeighbourMixing(Mixing):
    """The mixed models are those that a worker's neighbours sent at the same exchange."""

    needs = (
        Need(
            "consistency",
            lambda c: isinstance(c, WaitsForNeighbours),
            "{part} mixes the models that a worker's neighbours sent at the same exchange, but {other} "
            "does not wait for them",
        ),
    )


class PairMixing(Mixing):
    """A worker and one neighbour average their models at once, without waiting for each other."""

    needs = (
        Need(
            "consistency",
            lambda c: c.singly and c.waits_for == "none",
            "{part} lets each pair exchange independently, so {other} has no common version or clock to "
            "wait for",
        ),
    )


class GroupMixing(Mixing):
    """The workers of a group wait for each other, and all go on from the same mixture of their models."""

    needs = (
        Need(
            "consistency",
            lambda c: isinstance(c, FormsGroups),
            "{part} mixes the models of a group of waiting workers, but {other} forms no groups",
        ),
    )


class AnyPeers(PeerToPeer):
    """Any workers may exchange models: there is a link between every two of them."""

    def receivers(self, worker: int, exchange: int, num_workers: int) -> list[int]:
        """Return all others."""
        return [other for other in range(num_workers) if other != worker]

    senders = receivers


class FormsGroups(Consistency):
    """A commit takes the pushes of a group of workers, which are released together."""

    needs = (
        Need(
            "aggregation",
            lambda a: isinstance(a, GroupMixing),
            "{part} commits the pushes of groups, but {other} does not mix the models of groups",
        ),
        Need(
            "placement",
            lambda p: isinstance(p, AnyPeers),
            "{part} forms groups of any workers, but {other} has a graph or a server",
        ),
    )


class WaitsForNeighbours(Consistency):
    """A worker waits only for its neighbours in a graph."""

    singly = True
    needs = (
        Need(
            "aggregation",
            lambda a: isinstance(a, NeighbourMixing),
            "{part} waits for models from neighbours, but {other} uses none of them",
        ),
    )


class MixedSteps(OwnSteps):
    """A worker takes local steps and continues from a mixture of its model with others'."""

    #: whether a worker exchanges the model that its step begins with, which may travel meanwhile
    sends_first: ClassVar[bool] = False
    needs = (_same_family("placement", lambda p: isinstance(p, PeerToPeer)),)


def sends_before_step(communication: Communication) -> bool:
    """Return whether workers exchange models before their steps."""
    return isinstance(communication, MixedSteps) and communication.sends_first


def unfit_without_server(strategy: Composition, *, tolerance: bool, corruptions: bool) -> str:
    """Return why an experiment needs a common model that its workers lack; empty if it fits.

    `tolerance`: whether it ends when an update hardly moves the model; `corruptions`: whether workers send
    wrong vectors.
    """
    if not isinstance(strategy.placement, PeerToPeer):
        return ""
    parts = (strategy.consistency, strategy.aggregation, strategy.communication, strategy.stragglers)
    if measuring := [part.name for part in parts if part.measures]:
        return f"{measuring[0]}: measures a common model, but every worker has its own; use another part"
    if tolerance:
        return "stop.tolerance: there is no common model; stop by epochs, updates or target_accuracy"
    m = strategy.communication
    sent_by_step = isinstance(strategy.aggregation, NeighbourMixing) and not sends_before_step(m)
    if corruptions and not sent_by_step:
        return (
            "cluster.corruptions: only the results of steps are corrupted; use communication "
            "'step_then_mix' with consistency 'neighbours'"
        )
    return ""
