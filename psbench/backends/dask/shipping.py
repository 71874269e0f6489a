"""Transfer of data that a process cannot load itself: Python objects, and each worker's own data set."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np
from distributed import Client, Future

from psbench.backends.dask.protocol.roles import EVALUATOR, worker_name
from psbench.backends.dask.rpc import ask_scheduler
from psbench.data.shipment import Shipment
from psbench.experiment import Experiment
from psbench.training.build import Workload
from psbench.training.dry_run import trial_rows


def bare(experiment: Experiment) -> Experiment:
    """Return an experiment without data and shardings that are sent separately."""
    if not _travels(experiment):
        return experiment
    return experiment.but(data=experiment.data.bare(), sharding=experiment.sharding.bare())


def _travels(experiment: Experiment) -> bool:
    return experiment.data.travels or experiment.sharding.travels


class Shipping:
    """The data of one run in transit: once to each process, by Dask's own serialisation, in memory.

    A worker is sent its shard, and the validation set only if the strategy reads a loss on it; all samples if
    the strategy has workers train on those of others. The evaluator has all samples. Every process has the
    first few for the trial step. Data that processes load by its name is not sent.

    Attributes
    ----------
    experiment : Experiment
        The experiment without the objects that are sent apart.
    """

    def __init__(self, client: Client, workload: Workload, placed: dict[str, str]) -> None:
        self._client, self._workload, self._placed = client, workload, placed
        self._travels = _travels(workload.experiment)
        self.experiment = bare(workload.experiment)
        self._sent: list[Future] = []

    def to(self, role: str, go_on: Callable[[], None] = lambda: None) -> Future | None:
        """Send a role's process its data; return its task's argument, None if the process loads the data.

        `go_on` is called often, and raises to give up.
        """
        if not self._travels:
            return None
        limits = self._workload.experiment.connection
        sent: Future = ask_scheduler(self._client, self.begin(role), limits=limits, go_on=go_on)
        return sent

    def begin(self, role: str) -> Callable[[], Awaitable[Future | None]]:
        """Return a function that sends a role's process its data like `to`, in Dask's event loop."""
        where, data = [self._placed[role]], self._for(role) if self._travels else None

        async def send() -> Future | None:
            if data is None:
                return None
            sent: Future = await self._client.scatter(data, workers=where, hash=False)
            self._sent.append(sent)
            return sent

        return send

    def end(self) -> None:
        """Release the sent data."""
        for sent in self._sent:
            sent.release()
        self._sent.clear()

    def _for(self, role: str) -> Shipment:
        data, shards = self._workload.data, tuple(self._workload.shards)
        groups = self._workload.groups
        if role == EVALUATOR:
            return Shipment.of(data, shards, None, None, groups)
        few = trial_rows(len(data.train_y))
        nothing = np.arange(0)
        workers = {worker_name(worker): worker for worker in range(len(shards))}
        if role not in workers:
            return Shipment.of(data, shards, few, nothing, groups)
        compositions = self._workload.experiment.strategy.compositions
        validates = any("test_loss" in composition.reads for composition in compositions)
        everything = any(composition.communication.shares_samples for composition in compositions)
        own = None if everything else np.concatenate([few, shards[workers[role]]])
        return Shipment.of(data, shards, own, None if validates else nothing, groups)
