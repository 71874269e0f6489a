"""A live asynchronous run, MLP on digits, two workers, against Ray, TensorFlow and one process."""

from __future__ import annotations

import time

import torch

from psbench.core.log import Kind
from psbench.experiment import Experiment
from psbench.training.build import Workload
from tests.benchmarks.live import has, peer, peer_python, steps_a_second
from tests.benchmarks.measure import Row, Rows, Skipped, in_turns

STEPS, BATCH, SIZES = 1500, 32, (64, 64, 10)


def _experiment() -> Experiment:
    return Experiment(
        data="digits",
        model="mlp",
        strategy="asp",
        backend="dask",
        batch_size=2 * BATCH,
        cluster={"name": "homogeneous", "workers": 2},
        stop={"updates": STEPS},
        evaluate_every=1e9,
        optimizer={"name": "sgd", "lr": 0.01, "momentum": 0.9},
    )


def _single_process() -> float:
    """Return the steps a second of a bare loop over the same model and data."""
    workload = Workload.build(_experiment())
    module, data = workload.model.module, workload.data
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    began = time.perf_counter()
    for step in range(STEPS):
        where = torch.arange(step * BATCH, (step + 1) * BATCH) % len(data.train_y)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(data.train_x[where]), data.train_y[where]).backward()
        optimizer.step()
    return STEPS / (time.perf_counter() - began)


def run() -> Rows:
    """Measure all that are installed in turns."""
    torch.set_num_threads(1)
    python = peer_python()
    peers = {
        "Ray's parameter server": ("ray", "ray_server.py", 7.0, 10.0),
        "TensorFlow's ParameterServerStrategy": ("tensorflow", "tensorflow_server.py", 10.0, 15.0),
    }
    found = {name: given for name, given in peers.items() if has(python, given[0])}
    programs = [
        lambda program=program: peer(python, program, (STEPS // 2, BATCH, *SIZES))
        for _, program, *_ in found.values()
    ]
    ours, single, *others = in_turns(
        [lambda: steps_a_second(_experiment(), Kind.PUSH), _single_process, *programs], 2
    )
    what = "live ASP, MLP on digits, 2 workers, steps/s"
    words = f"{ours:,.0f} steps/s"
    rows: Rows = [
        Row(f"{what} / {name}", words, f"{theirs:,.0f} steps/s", ours / theirs, *given[2:])
        for (name, given), theirs in zip(found.items(), others, strict=True)
    ]
    rows += [
        Skipped(f"{what} / {name}", f"{given[0]} is not installed for {python}")
        for name, given in peers.items()
        if name not in found
    ]
    return [
        *rows,
        Row(
            f"{what} / one process without a server", words, f"{single:,.0f} steps/s", ours / single, 1.0, 1.5
        ),
    ]
