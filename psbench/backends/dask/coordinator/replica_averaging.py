"""Workers' own models where they drift apart: the model that a person would take away is their mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from psbench.backends.dask.protocol.roles import worker_name
from psbench.backends.dask.protocol.transport import ServerSocket
from psbench.backends.dask.server.store import State, Then


@dataclass
class _Poll:
    """Models that were asked for."""

    expected: set[int]
    models: dict[int, State] = field(default_factory=dict)
    waiting: list[Then] = field(default_factory=list)

    @property
    def mean(self) -> State:
        """The mean in worker order; empty if nobody has a model."""
        models = [self.models[worker] for worker in sorted(self.models)]
        models = [model for model in models if len(model["parameters"])]
        if not models:
            return {}
        rest = models[1:]
        return {
            name: sum((model[name] for model in rest), first.clone()) / len(models)
            for name, first in models[0].items()
        }


class ReplicaAveraging:
    """Asks workers for their models, between two steps or as they take their next release.

    The latter are the models of one moment: after what the release told each to do, and before its next
    step.

    Parameters
    ----------
    hub : Hub
    numbers : iterator of int
        Numbers for requests that nobody had before in this run.
    """

    def __init__(self, hub: ServerSocket, numbers: Iterator[int]) -> None:
        self._hub, self._numbers = hub, numbers
        self._polls: dict[int, _Poll] = {}
        self._last = -1

    def ask(self, workers: Iterable[int], released: Iterable[int] = ()) -> int:
        """Ask workers for their models; those about to be `released` send them as they go on."""
        self._polls = {tag: poll for tag, poll in self._polls.items() if poll.expected}
        tag = self._last = next(self._numbers)
        going = set(released)
        poll = self._polls[tag] = _Poll({*workers, *going})
        for worker in sorted(poll.expected):
            order = {"do": "model", "tag": tag, "with_release": worker in going}
            if not self._hub.tell(worker_name(worker), order):
                poll.expected.discard(worker)
        return tag

    def mean(self, tag: int, then: Then) -> None:
        """Call `then` with the mean of the models that were asked for last, at once or when all are there."""
        self._polls[tag].waiting.append(then)
        self._settle(tag)

    def answer(self, worker: int, tag: int, model: State) -> None:
        """Take a worker's model."""
        poll = self._polls.get(tag)
        if poll is not None and worker in poll.expected:
            poll.expected.discard(worker)
            poll.models[worker] = model
            self._settle(tag)

    def leave(self, worker: int) -> None:
        """Wait no longer for a worker."""
        for tag in list(self._polls):
            self._polls[tag].expected.discard(worker)
            self._settle(tag)

    def _settle(self, tag: int) -> None:
        poll = self._polls[tag]
        if poll.expected:
            return
        if tag != self._last:
            del self._polls[tag]
        waiting, poll.waiting = poll.waiting, []
        for then in waiting:
            then(poll.mean)
