"""The interface of a parameter store: how the coordinator executes actions under a placement.

A store decides nothing. It sends messages, and keeps what has arrived until an action names it. The
stores are `parameter_server`, and without a server `all_reduce` and `gossip`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, TypeAlias

from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.messages import (
    HoldVersion,
    NumberReply,
    PushKey,
    RingVerdict,
    StateReply,
)
from psbench.backends.partition import Partition, gather
from psbench.core import actions as act
from psbench.core.events import Push
from psbench.core.migration import Ranges
from psbench.errors import ProtocolError
from psbench.optimization.piecewise import of_one_form
from psbench.training.server import OPTIMIZER, Server, copies_under

Then: TypeAlias = Callable[[StateDict], None]
ThenCheckpoint: TypeAlias = Callable[[StateDict, dict[str, int]], None]
ThenNumber: TypeAlias = Callable[[float], None]
#: what answers a store's own requests
StoreReply: TypeAlias = StateReply | NumberReply | RingVerdict

_MODEL = ("parameters", "buffers")
#: codec counters of a store without codecs
NO_CODEC_COUNTERS = {"draws": -1, "aggregates": 0}


def key_of(push: Push) -> PushKey:
    """Return the key of a push, by which every process names it."""
    return push.worker, push.ticket


class ParameterStore:
    """A parameter store: the coordinator's requests to a placement.

    What stands here is done without servers: payloads stay with the workers, so that little is to be done for
    them, and what only servers have is refused.
    """

    kind: ClassVar[str]  #: in messages

    @property
    def waiting(self) -> Collection[PushKey]:
        """The pushes with stored payloads: arrived, and neither applied nor discarded."""
        return ()

    @property
    def awaits_replies(self) -> bool:
        return False

    def arrived(self, push: Push) -> None:
        """Record a push with its payload on the servers or workers."""

    def apply(self, apply: act.Apply) -> None:
        """Make the next version."""

    def release(self, release: act.Release, samples: int) -> None:
        """Release a worker, with steps of `samples` samples."""
        raise NotImplementedError

    def discard(self, key: PushKey) -> None:
        """Drop the payload of a push."""

    def gather(self, states: bool, then: Then) -> None:
        """Call `then` with the current version's state, at once or on arrival."""
        raise NotImplementedError

    def checkpoint(self, keys: Sequence[PushKey], then: ThenCheckpoint) -> None:
        """Call `then` with a checkpoint of the current version and of the given pushes.

        Its other argument says how many models (`draws`) and `aggregates` stochastic codecs have encoded.
        """
        self.gather(True, lambda state: then(state, dict(NO_CODEC_COUNTERS)))

    def payload(self, push: Push, then: Then) -> None:
        """Call `then` with the payload of a push: parameters (or a gradient) and buffers."""
        raise self._refusal()

    def hold(self, order: HoldVersion) -> None:
        """Keep the current version for distances, and drop others."""

    def distance_sq(self, push: Push, then: ThenNumber) -> None:
        """Call `then` with the squared distance from the current version to the one a push started from."""
        raise self._refusal()

    def products(
        self, names: Sequence[str], pending: Mapping[int, Push], then: Callable[[str, float], None]
    ) -> None:
        raise self._refusal()

    def loads(self, then: Callable[[list[float]], None]) -> None:
        """Call `then` with the seconds that each server was busy serving since this was asked last."""
        raise self._refusal()

    def reassign(self, ranges: Ranges, then: Callable[[], None]) -> None:
        """Move entries to their new servers, and call `then`; no message may be in transit."""
        raise self._refusal()

    def ask_movement(self, then: ThenNumber) -> None:
        """Call `then` with the distance of the last update; see `Server.movement`.

        What an update moves is measured from the first call on.
        """
        raise self._refusal()

    def _refusal(self) -> ProtocolError:
        return ProtocolError(f"{self.kind} has no servers and no common model")

    def reply(self, sender: str, reply: StoreReply) -> None:
        """Handle the answer to a request of this store or of an earlier one."""

    def forget(self, worker: int) -> None:
        """Forget which model a worker holds: it has gone, or restarts."""

    def leave(self, worker: int, ticket: int) -> None:
        """Remove a dead worker, given its last ticket."""
        raise NotImplementedError

    def join(self, worker: int) -> None:
        """Include a worker that was dead or missing; it has no model yet."""
        raise NotImplementedError


def state_of(server: Server, states: bool) -> StateDict:
    """Return a copy of a server's model, and of its optimizer's state if `states`."""
    found = server.tensors()
    kept = found if states else {name: found[name] for name in _MODEL}
    return {name: value.detach().clone() for name, value in kept.items()}


def model_of(state: StateDict) -> StateDict:
    return {name: state[name] for name in _MODEL}


def slice_of(state: StateDict, part: Partition, first: bool) -> StateDict:
    length = len(state["parameters"])
    own = {n: part.of(t) if t.dim() == 1 and len(t) == length else t for n, t in state.items()}
    return own | {"buffers": state["buffers"] if first else state["buffers"][:0]}


def join(parts: list[StateDict], own: Sequence[Partition]) -> StateDict:
    """Return the state that the servers' slices were cut from."""
    parts = _of_one_form(parts)
    first = parts[0]
    length = len(first["parameters"])
    return {
        name: gather([part[name] for part in parts], own)
        if not name.startswith("buffers") and value.dim() == 1 and len(value) == length
        else value
        for name, value in first.items()
    }


def _of_one_form(parts: list[StateDict]) -> list[StateDict]:
    """Return states whose optimizers have the same tensors, although some entries took fewer steps."""
    optimizers = [copies_under(OPTIMIZER, part) for part in parts]
    own = of_one_form(optimizers, [len(part["parameters"]) for part in parts])
    return [
        {name: value for name, value in part.items() if not name.startswith(OPTIMIZER)}
        | {OPTIMIZER + name: value for name, value in state.items()}
        for part, state in zip(parts, own, strict=True)
    ]
