"""Requests for the workers' own models, and their mean, where these models diverge between averages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.protocol.messages import SendModel
from psbench.backends.dask.protocol.roles import worker_name
from psbench.backends.local_steps import mean_model
from psbench.training.mixing import consensus_distance

#: takes a mean model, and the distances of the models from it
ThenMean: TypeAlias = Callable[[StateDict, dict[str, float]], None]


@dataclass
class _Request:
    """A pending request for models."""

    #: workers that have not sent their models and are not lost; disjoint from `models`
    expected: set[int]
    #: the models that have come, by worker
    models: dict[int, StateDict] = field(default_factory=dict)
    #: called with the mean once no model is expected; empty from then on
    waiting: list[ThenMean] = field(default_factory=list)

    @property
    def mean(self) -> StateDict:
        """The mean in worker order; empty if no worker has a model."""
        models = [self.models[worker] for worker in sorted(self.models)]
        mean = mean_model([(model["parameters"], model["buffers"]) for model in models])
        return {} if mean is None else {"parameters": mean[0], "buffers": mean[1]}

    @property
    def spread(self) -> dict[str, float]:
        """The distances of the models from their mean, by name."""
        vectors = (model["parameters"] for model in self.models.values())
        return consensus_distance([vector for vector in vectors if len(vector)])


class ModelRequests:
    """Requests models from workers, between two steps or with their next release.

    The latter are the models of one moment: after what the release ordered each to do, and before its next
    step.

    Parameters
    ----------
    out : Outbox
    numbers : iterator of int
        Numbers for requests, unique in this run.
    """

    def __init__(self, out: Outbox, numbers: Iterator[int]) -> None:
        self._out, self._numbers = out, numbers
        #: requests with models to come, and the last one, by tag
        self._requests: dict[int, _Request] = {}
        self._last: int | None = None

    def ask(self, released: Iterable[int] = ()) -> int:
        """Start a request; workers about to be `released` send their models with the release."""
        self._requests = {tag: request for tag, request in self._requests.items() if request.expected}
        tag = self._last = next(self._numbers)
        request = self._requests[tag] = _Request({*released})
        for worker in sorted(request.expected):
            self._out.send(worker_name(worker), SendModel(tag, with_release=True))
        return tag

    def ask_more(self, tag: int, workers: Iterable[int]) -> None:
        """Request the current models of more workers."""
        request = self._requests[tag]
        for worker in sorted({*workers} - request.expected - request.models.keys()):
            request.expected.add(worker)
            self._out.send(worker_name(worker), SendModel(tag, with_release=False))

    def mean(self, tag: int, then: ThenMean) -> None:
        """Call `then` with the mean of the requested models, now or when all have arrived.

        Its other argument is their consensus distance, by its name.
        """
        self._requests[tag].waiting.append(then)
        self._settle(tag)

    def answer(self, worker: int, tag: int, model: StateDict) -> None:
        """Add a worker's model to its request."""
        request = self._requests.get(tag)
        if request is not None and worker in request.expected:
            request.expected.discard(worker)
            request.models[worker] = model
            self._settle(tag)

    def leave(self, worker: int, tag: int | None = None) -> None:
        """Stop waiting for a worker; with a tag, in that request only."""
        for each in list(self._requests) if tag is None else [tag]:
            self._requests[each].expected.discard(worker)
            self._settle(each)

    def _settle(self, tag: int) -> None:
        request = self._requests[tag]
        if request.expected:
            return
        if tag != self._last:
            del self._requests[tag]
        waiting, request.waiting = request.waiting, []
        for then in waiting:
            then(request.mean, request.spread)
