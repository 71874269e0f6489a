"""Exchanges between simulated workers without a server: each mixes its model with other models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from psbench.backends.checkpointing import named, under
from psbench.backends.simulated.exchange import WorkersExchange
from psbench.backends.simulated.resources import Resources
from psbench.backends.simulated.transfers import Transfers
from psbench.core import actions as act
from psbench.core.events import Push
from psbench.core.peer_to_peer import NeighbourMixing, PairMixing, sends_before_step
from psbench.core.strategy import Strategy
from psbench.errors import WorkerLost
from psbench.training.local_model import LocalModel
from psbench.training.mixing import Mixer, ModelVectors, consensus_distance

#: so few models are kept without a search for those that no worker will ask for
_SMALL = 16


class PeerExchange(WorkersExchange):
    """Exchange between peers: a release delivers a mixture of models, and a push announces a new model.

    A worker's model changes when an exchange is decided, and the worker has it when all that it takes has
    arrived. A step is computed from the model as it was when the step began.

    Where messages to the coordinator take time (`link_time`), pairs meet as live ones do: each sends its
    model when it hears of the exchange, and one that computes at the end of its step.

    Parameters
    ----------
    composition : Strategy
    resources : Resources
    transfers : Transfers
        With links between peers.
    """

    def __init__(self, composition: Strategy, resources: Resources, transfers: Transfers) -> None:
        super().__init__()
        assert transfers.peers is not None
        self._resources, self._links, self._orders = resources, transfers.peers, transfers.links
        self._orders_take_time = resources.link_times is not None
        self._computes_until: dict[int, float] = {}
        self._computes = resources.trainer is not None
        self._by_neighbours = isinstance(composition.aggregation, NeighbourMixing)
        self._sends_first = sends_before_step(composition.communication)
        self._changes_meanwhile = isinstance(composition.aggregation, PairMixing)
        self._mixer = Mixer(composition.aggregation, resources.workload.experiment.batch_size)
        self._models: dict[int, LocalModel] = {}
        #: what workers sent at each of their versions, until it cannot be asked for any more
        self._sent: dict[tuple[int, int], ModelVectors] = {}
        self._searched_from = _SMALL  #: so many of these, or of their arrivals, are searched for old ones
        self._mixed: dict[int, ModelVectors] = {}  #: models that their workers are released with
        self._ready_s: dict[int, float] = {}  #: when those have arrived
        self._messages: dict[int, int] = {}  #: how many messages their processes handle for them
        self._began_from: dict[int, Tensor] = {}  #: models that steps under way began from
        self._versions: dict[int, int] = {}  #: of each worker, as far as exchanges are performed

    # ---------------------------------------------------------------- exchanges

    def mix(self, mix: act.Mix, now: float) -> None:
        """Mix models simultaneously, from their values before the exchange."""
        made = {worker: self._mixture(worker, row, mix) for worker, row in mix.rows.items()}
        waiting = mix.rows if mix.meet else [next(iter(mix.rows))]
        met_s = now
        if mix.meet:
            ordered_s = max(self._orders.answer(worker, now) for worker in mix.rows)
            met_s = self._links.ring(list(mix.rows), ordered_s)
        for worker, row in mix.rows.items():
            if worker in waiting:
                self._ready_s[worker] = met_s if mix.meet else self._arrived(mix, worker, row, now)
                if (model := made[worker]) is not None:
                    self._mixed[worker] = model
            elif (model := made[worker]) is not None:
                # its running statistics stay those of its steps
                self._models[worker].parameters.copy_(model[0])
        self._versions |= mix.versions
        self._forget()

    def _mixture(self, worker: int, row: Mapping[int, float], mix: act.Mix) -> ModelVectors | None:
        """Return the mixture of a worker's current model and the received models, with running statistics."""
        if not self._computes:
            return None
        version = mix.versions[worker] - 1
        models = [
            self._sent_by(other, version) if mix.sent and other != worker else self._now(other)
            for other in row
        ]
        return self._mixer.mix(worker, models, row)

    def _sent_by(self, worker: int, version: int) -> ModelVectors:
        if (worker, version) not in self._sent and worker not in self._resources.view.active:
            return self._now(worker)  # dropped by this answer, it is not released, which is when it sends
        return self._sent[worker, version]

    def _now(self, worker: int) -> ModelVectors:
        if worker in self._mixed:  # it is about to be released with that
            return self._mixed[worker]
        model = self._models[worker]
        return model.parameters, model.buffers

    def _arrived(self, mix: act.Mix, worker: int, row: Mapping[int, float], now: float) -> float:
        """Return when a worker has received all models of its mixture."""
        others, version = [other for other in row if other != worker], mix.versions[worker] - 1
        if mix.sent:
            times = [self._links.arrival(other, version, worker, now) for other in others]
        elif mix.push >= 0:
            times = [self._met(worker, other, now) for other in others]
        else:
            times = [self._links.send(other, worker, now) for other in others]
        # a pair's worker sends its own model, too
        self._messages[worker] = len(times) if mix.sent or mix.push < 0 else 2 * len(times)
        return max(now, self._links.taken_in(worker, times))

    def _met(self, worker: int, other: int, now: float) -> float:
        """Return when a worker has the model of a partner, which has the worker's."""
        if not self._orders_take_time:
            return self._links.both_ways(worker, other, now)
        heard_s, other_heard_s = (self._orders.answer(each, now) for each in (worker, other))
        free_s = self._links.goes_on(other, self._computes_until.get(other, now))
        return self._links.meet(worker, other, heard_s, max(other_heard_s, free_s))

    def _send_model(self, worker: int, version: int, model: ModelVectors | None, now: float) -> None:
        """Send a worker's model to its neighbours for the exchange of that number."""
        graph = self._resources.view.neighbourhood
        if graph is None or not self._by_neighbours:
            return
        self._links.spread(worker, version, graph.receivers(worker), now)
        if model is not None:
            self._sent[worker, version] = model

    def _forget(self) -> None:
        """Remove models and arrivals that no worker will request, once they may be half of all."""
        if max(len(self._sent), self._links.num_arrivals) < self._searched_from:
            return
        # the engine's view is that at the end of the answer, whose exchanges are performed one by one
        oldest = min((self._versions.get(worker, 0) for worker in self._resources.view.active), default=0)
        self._sent = {key: model for key, model in self._sent.items() if key[1] >= oldest}
        self._links.forget(oldest)
        self._searched_from = 2 * max(len(self._sent), self._links.num_arrivals, _SMALL)

    # ---------------------------------------------------------------- from one release to the next

    def ready_s(self, worker: int, reaches_s: float) -> float:
        """Return when the worker's mixture is complete."""
        own_s = self._links.process_s(worker, self._messages.pop(worker, 0))
        taken_s = max(reaches_s, self._links.sent_s(worker)) + own_s
        return max(taken_s, self._ready_s.pop(worker, taken_s))

    def model(self, release: act.Release) -> ModelVectors | tuple[()]:
        """Return the worker's mixture; None if it continues from its own model after a cancelled step."""
        if (mixed := self._mixed.pop(release.worker, None)) is not None:
            return mixed
        if len(self._models[release.worker].parameters):
            return ()
        if self._resources.view.committed:
            raise WorkerLost(f"worker {release.worker} returns, but no other worker has a model")
        server = self._resources.server
        return server.parameters, server.buffers.clone()  # all begin with the same

    def began(self, worker: int, version: int, at_s: float) -> None:
        """Send the neighbours the model at the start of a step, if the exchange uses it."""
        model = self._models[worker]
        if self._changes_meanwhile and self._computes:
            self._began_from[worker] = model.parameters.clone()
        if self._sends_first:
            own = (model.parameters.clone(), model.buffers.clone()) if self._computes else None
            self._send_model(worker, version, own, at_s)

    def free_s(self, worker: int, at_s: float) -> float:
        """Return when the worker has sent its model, if it does so before its step."""
        return max(at_s, self._links.sent_s(worker))

    def computes(self, worker: int, ends_s: float) -> None:
        """Record when a step ends, for whoever meets the worker meanwhile."""
        self._computes_until[worker] = ends_s

    def push(self, push: Push, payload: Tensor, buffers: Tensor) -> Callable[[], Tensor | None]:
        """Store the model after a step, which the push sends to neighbours."""
        self._carried[push.worker] = payload, buffers.clone()
        return lambda: payload

    def sends(self, push: Push, now: float) -> None:
        """Send the neighbours the model after a step, unless they have the model at its start."""
        if not self._sends_first:
            self._send_model(push.worker, push.base_version, self._carried.get(push.worker), now)

    def computes_from(self, worker: int, model: LocalModel) -> Tensor:
        """Return the model at the start of the step: a partner may have changed it since."""
        return self._began_from.get(worker, model.parameters)

    # ---------------------------------------------------------------- members

    def enter(self, worker: int, model: LocalModel) -> None:
        """Add a worker with an empty model of its own."""
        self._models[worker] = model

    def leave(self, worker: int) -> None:
        """Remove a worker; if it returns, it starts from another worker's model."""
        own = self._models, self._mixed, self._ready_s, self._messages, self._began_from
        for held in (*own, self._computes_until, self._mixer.states):
            held.pop(worker, None)
        for key in [key for key in self._sent if key[0] == worker]:
            del self._sent[key]

    def model_of(self, worker: int, model: LocalModel) -> ModelVectors:
        """Return the worker's current model, or the one of its pending release."""
        return self._now(worker)

    def measured(self, models: Sequence[ModelVectors]) -> dict[str, float]:
        """Return the consensus distance."""
        return consensus_distance([model[0] for model in models])

    # ---------------------------------------------------------------- checkpoints

    def checkpoint(self, worker: int, waits: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return a worker's state, with its model even during a step: no other worker has it."""
        tensors: dict[str, Tensor] = {}
        if self._computes and (own := self._models.get(worker)) is not None:
            tensors |= named("model/", own.state_dict())
        if (mixed := self._mixed.get(worker)) is not None:
            tensors |= {"mixed/parameters": mixed[0], "mixed/buffers": mixed[1]}
        for (sender, version), model in self._sent.items():
            if sender == worker:
                tensors |= {f"sent/{version}/parameters": model[0], f"sent/{version}/buffers": model[1]}
        if (state := self._mixer.states.get(worker)) is not None:
            tensors |= named("mixing/", state.tensors())
        pending = {"ready_s": self._ready_s.get(worker), "messages": self._messages.get(worker, 0)}
        return tensors, pending

    def restore(self, worker: int, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore the state from `checkpoint`, except the model."""
        if mixed := under("mixed/", tensors):
            self._mixed[worker] = mixed["parameters"], mixed["buffers"]
        sent = under("sent/", tensors)
        for version in {int(name.partition("/")[0]) for name in sent}:
            self._sent[worker, version] = sent[f"{version}/parameters"], sent[f"{version}/buffers"]
        if state := under("mixing/", tensors):
            self._mixer.load(worker, state)
        self._versions[worker] = self._resources.view.workers[worker].version
        if plain.get("ready_s") is not None:
            self._ready_s[worker] = plain["ready_s"]
            self._messages[worker] = plain.get("messages", 0)
