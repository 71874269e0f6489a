"""Memory that a simulated run holds, against what its design promises.

Counted are the bytes of all live tensors, each storage once, and of the log, whenever the server is about
to make a version: that is when a push's gradient is there too. What a step holds while it is computed
(activations) is torch's own and not counted. The data have their list of the samples that the training loss
is taken over.
"""

from __future__ import annotations

import gc
import sys

import torch

from psbench.backends.control import Control
from psbench.backends.simulated.simulation import Simulation
from psbench.core.log import EventLog
from psbench.experiment import Experiment
from psbench.training.build import Workload
from tests.benchmarks.measure import Pictures, Row, Rows


def _tensor_bytes() -> int:
    storages = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor):
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def run() -> Rows:
    """Measure AlexNet (990 k parameters) on twelve workers."""
    experiment = Experiment(
        data=Pictures(),
        model="alexnet",
        cluster="hermes",
        strategy="asp",
        batch_size=24,
        stop={"updates": 60},
        evaluate_every=1e9,
        optimizer={"name": "sgd", "lr": 0.01},
    )
    gc.collect()
    before = _tensor_bytes()
    workload = Workload.build(experiment)
    log = EventLog()
    simulation = Simulation(workload, log, Control())
    vector = 4 * (workload.parameters.numel() + workload.buffers.numel())
    data = sum(
        t.nbytes
        for t in (workload.data.train_x, workload.data.train_y, workload.data.val_x, workload.data.val_y)
    )
    data += 8 * workload.evaluator().sample_size("train")
    worst, apply = (0.0, 0, 0), simulation.cluster.server.apply

    def counted(*given: object, **more: object) -> None:
        nonlocal worst
        held = _tensor_bytes() - before + sys.getsizeof(log._rows)
        versions = len(simulation.cluster.workers.exchange.snapshots)
        promised = vector * (versions + 3) + data + 40 * len(log)
        worst = max(worst, (held / promised, held, versions))
        apply(*given, **more)

    simulation.cluster.server.apply = counted
    simulation.run()
    ratio, held, versions = worst
    return [
        Row(
            "memory of a simulated run / parameters x (versions in flight + 3) + data + 40 bytes a row",
            f"{held / 2**20:.1f} MiB, {versions} versions",
            f"promised: {held / ratio / 2**20:.1f} MiB",
            ratio,
            1.0,
            lower_is_better=True,
        )
    ]
