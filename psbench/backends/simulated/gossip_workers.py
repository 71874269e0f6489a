"""Workers without a server: each goes on from its own model, mixed with those of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from psbench.backends.checkpointing import named, under
from psbench.backends.local_steps import mean_model
from psbench.backends.simulated.local_workers import LocalWorkers, ReleaseArrival
from psbench.backends.simulated.transfers import Transfers
from psbench.backends.simulated.workers import Resources
from psbench.core import actions as act
from psbench.core.events import Push
from psbench.core.peer_to_peer import NeighbourMixing, PairMixing, sends_before_step
from psbench.core.strategy import Strategy
from psbench.core.worker_policy import Directive
from psbench.errors import WorkerLost
from psbench.training.mixing import Mixer, ModelVectors, consensus_distance


class GossipWorkers(LocalWorkers):
    """The workers of a composition without a server; see `Workers`.

    A worker's model changes when an exchange is decided, and the worker has it when all that it takes has
    arrived. A step is computed from the model as it was when the step began.
    """

    def __init__(
        self,
        composition: Strategy,
        resources: Resources,
        transfers: Transfers,
        residuals: dict[int, Tensor],
        **settings: Any,
    ) -> None:
        super().__init__(composition, resources, transfers, residuals, **settings)
        self._links = transfers.links
        self._sends_first = sends_before_step(self._composition.communication)
        self._mixer = Mixer(self._composition.aggregation, self._resources.workload.experiment.batch_size)
        #: what workers sent at each of their versions, until it cannot be asked for any more
        self._sent: dict[tuple[int, int], ModelVectors] = {}
        self._mixed: dict[int, ModelVectors] = {}  #: models that their workers are released with
        self._ready_s: dict[int, float] = {}  #: when those have arrived
        self._began_from: dict[int, Tensor] = {}  #: models that steps under way began from
        self._changes_meanwhile = isinstance(self._composition.aggregation, PairMixing)
        self._reaches_s = 0.0
        self._versions: dict[int, int] = {}  #: of each worker, as far as exchanges are performed

    # ---------------------------------------------------------------- exchanges

    def mix(self, mix: act.Mix, now: float) -> None:
        """Make models anew, all from the others as they were."""
        made = {worker: self._mixture(worker, row, mix) for worker, row in mix.rows.items()}
        for worker, row in mix.rows.items():
            if worker == self._initiator(mix):
                self._ready_s[worker] = self._arrived(mix, worker, row, now)
                if (model := made[worker]) is not None:
                    self._mixed[worker] = model
            elif (model := made[worker]) is not None:
                # its running statistics stay those of its steps
                self._workers[worker].model.parameters.copy_(model[0])
        self._versions |= mix.versions
        self._forget()

    def _initiator(self, mix: act.Mix) -> int:
        """Return who is released with its new model: the first; the other of a pair goes on meanwhile."""
        return next(iter(mix.rows))

    def _mixture(self, worker: int, row: Mapping[int, float], mix: act.Mix) -> ModelVectors | None:
        """Mix what others sent, or have now, with what the worker has now, running statistics included."""
        if self._trainer is None:
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
        model = self._workers[worker].model
        return model.parameters, model.buffers

    def _arrived(self, mix: act.Mix, worker: int, row: Mapping[int, float], now: float) -> float:
        """Return when a worker has all that its mixture takes."""
        others, version = [other for other in row if other != worker], mix.versions[worker] - 1
        if mix.sent:
            times = [self._links.arrival(other, version, worker, now) for other in others]
        elif mix.push >= 0:
            times = [self._links.both_ways(worker, other, now) for other in others]
        else:
            times = [self._links.send(other, worker, now) for other in others]
        return max([now, *times])

    def _send_model(self, worker: int, version: int, model: ModelVectors | None, now: float) -> None:
        """Send a model to the worker's neighbours, for their exchange of that number."""
        graph = self._resources.view.neighbourhood
        if graph is None or not isinstance(self._composition.aggregation, NeighbourMixing):
            return
        self._links.spread(worker, version, graph.receivers(worker), now)
        if model is not None:
            self._sent[worker, version] = model

    def _forget(self) -> None:
        view = self._resources.view
        # the engine's view is that at the end of the answer, whose exchanges are performed one by one
        oldest = min((self._versions.get(worker, 0) for worker in view.active), default=0)
        for worker, version in [key for key in self._sent if key[1] < oldest]:
            del self._sent[worker, version]
            self._links.forget(worker, oldest)

    # ---------------------------------------------------------------- from the engine

    def release(self, release: act.Release, reaches_s: float, now: float) -> None:
        """Let a worker continue when its mixture is there."""
        self._reaches_s = max(reaches_s, self._ready_s.pop(release.worker, reaches_s))
        super().release(release, self._reaches_s, now)

    def _vectors(self, release: act.Release) -> tuple[Tensor, ...]:
        """Return the worker's mixture; nothing if it goes on from its own model after a void step."""
        if self._trainer is None:
            return ()
        if (mixed := self._mixed.pop(release.worker, None)) is not None:
            return mixed
        if len(self._workers[release.worker].model.parameters):
            return ()
        if self._resources.view.committed:
            raise WorkerLost(f"worker {release.worker} comes back, and no worker is left that has a model")
        return self._server.parameters, self._server.buffers.clone()  # all begin with the same

    def _take(self, arrival: ReleaseArrival) -> Directive:
        directive = super()._take(arrival)
        worker = arrival.worker
        if self._changes_meanwhile and self._trainer is not None:
            self._began_from[worker.number] = worker.model.parameters.clone()
        if self._sends_first:
            own = worker.model
            model = None if self._trainer is None else (own.parameters.clone(), own.buffers.clone())
            self._send_model(worker.number, arrival.release.load, model, self._reaches_s)
        return directive

    def _push(self, worker: Any, overlapping: bool, now: float) -> None:
        version = worker.loop.version
        super()._push(worker, overlapping, now)
        if not self._sends_first:
            self._send_model(worker.number, version, self._carried.get(worker.number), now)

    def _step_model(self, worker: Any) -> Tensor:
        model: Tensor = self._began_from.get(worker.number, worker.model.parameters)
        return model

    def leave(self, worker: int) -> None:
        """Forget a worker; should it come back, it begins with another's model."""
        super().leave(worker)
        for held in (self._mixed, self._ready_s, self._began_from, self._mixer.states):
            held.pop(worker, None)
        for key in [key for key in self._sent if key[0] == worker]:
            del self._sent[key]

    # ---------------------------------------------------------------- the mean, and checkpoints

    def models(self) -> list[ModelVectors]:
        """Return the models of the workers that are in the run, in their order."""
        return [self._now(number) for number in self._present if len(self._workers[number].model.parameters)]

    def mean_model(self) -> ModelVectors | None:
        """Return the mean of the workers' models."""
        return mean_model(self.models())

    def measured(self) -> dict[str, float]:
        """Return the consensus distance, beside what is evaluated."""
        return consensus_distance([model[0] for model in self.models()])

    def checkpoint(
        self, worker: int, waits: bool, push: Push | None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return a worker's state, with its model also in the middle of a step: no other worker has it."""
        tensors, plain = super().checkpoint(worker, waits, push)
        own = self._workers.get(worker)
        if own is not None and self._trainer is not None:
            tensors |= named("model/", own.model.state_dict())
        if (mixed := self._mixed.get(worker)) is not None:
            tensors |= {"mixed/parameters": mixed[0], "mixed/buffers": mixed[1]}
        for (sender, version), model in self._sent.items():
            if sender == worker:
                tensors |= {f"sent/{version}/parameters": model[0], f"sent/{version}/buffers": model[1]}
        if (state := self._mixer.states.get(worker)) is not None:
            tensors |= named("mixing/", state.tensors())
        return tensors, plain | {"ready_s": self._ready_s.get(worker)}

    def restore(self, worker: int, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore what `checkpoint` returned."""
        super().restore(worker, tensors, plain)
        if "loop" not in plain and (model := under("model/", tensors)):
            self._enter(worker).model.load_state_dict(model)
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
