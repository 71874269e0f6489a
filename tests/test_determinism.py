"""The same experiment gives the same log and the same model, wherever and whenever it runs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_files import is_rewritten
from torch import nn

from psbench import strategies
from psbench.backends.control import Control
from psbench.backends.simulated.simulation import Simulation
from psbench.clusters import StepTimes, make_cluster
from psbench.core.events import Join, Leave, SwitchRequested
from psbench.core.log import EventLog, Kind
from psbench.results.storage import read_log, write_log
from psbench.runs.execution import run
from psbench.seeds import Streams
from psbench.testing import ScriptedCluster, toy_experiment
from psbench.training.batches import Batches
from psbench.training.build import Workload

GOLDEN = Path(__file__).parent / "golden"

#: random step times, a failure, augmentation's and the model's chance: everything that draws
LIVELY = {
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [8]},
    "cluster": {
        "workers": 4,
        "speed": [1, 1, 0.5, 0.25],
        "step_time": "lognormal",
        "failures": [{"worker": 1, "at_s": 0.3, "rejoin_s": 0.6}],
        "joins": [{"worker": 3, "at_s": 0.2}],
    },
    "batch_size": 32,
    "stop": {"epochs": 1},
}
STRATEGIES = ["bsp", "asp", "k_bsp", "all_reduce", "strategy_switch"]

SCRIPT = """
import json, sys
from psbench.runs.execution import run
from psbench.testing import toy_experiment
settings = json.loads(sys.argv[1])
for name in json.loads(sys.argv[2]):
    done = run(toy_experiment(name, **settings))
    print(name, done.log.digest(), done.meta["params_digest"])
"""


@pytest.mark.parametrize(
    "model", [{"name": "mlp", "hidden": [8]}, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))]
)
def test_the_starting_point_is_the_same_after_training(model):
    workload = Workload.build(toy_experiment("asp", data="digits", model=model, stop={"updates": 3}))
    start = workload.parameters
    Simulation(workload, EventLog(), Control()).run()
    assert not torch.equal(workload.model.parameters, start)
    assert torch.equal(workload.parameters, start)
    assert torch.equal(workload.server().parameters, start)


def in_a_process(hash_seed):
    command = [sys.executable, "-c", SCRIPT, json.dumps(LIVELY), json.dumps(STRATEGIES)]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.nightly  # the logs of tests/golden are of other processes too
def test_two_processes_give_the_same_logs_and_models():
    """With different seeds for the hashes of texts, so that an order of a set would show."""
    both = [in_a_process(seed) for seed in ("1", "2")]
    first, second = (process.communicate(timeout=240)[0].splitlines() for process in both)
    assert len(first) == len(STRATEGIES)
    assert first == second
    here = run(toy_experiment("bsp", **LIVELY))
    assert first[0] == f"bsp {here.log.digest()} {here.meta['params_digest']}"
    other = run(toy_experiment("bsp", **LIVELY, seed=1))
    assert other.log.digest() != here.log.digest()
    assert other.meta["params_digest"] != here.meta["params_digest"]


def test_a_run_neither_reads_nor_changes_global_random_state():
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = states()
    first = run(toy_experiment("asp", **LIVELY))
    assert states() == before
    random.seed(2)
    np.random.seed(2)
    torch.manual_seed(2)
    assert run(toy_experiment("asp", **LIVELY)).log.digest() == first.log.digest()


@pytest.mark.slow
def test_torch_threads_are_left_as_they_were():
    before = torch.get_num_threads()
    run(toy_experiment("bsp", threads=2))
    assert torch.get_num_threads() == before


class TestAddingAWorker:
    def test_changes_no_other_workers_step_times(self):
        def times(workers):
            profile = make_cluster({"workers": workers, "step_time": "lognormal"}).profile()
            draw = StepTimes(profile, Streams(0))
            return [[draw.next(worker, 8, 0.0) for _ in range(40)] for worker in range(workers)]

        few, more = times(3), times(4)
        assert more[:3] == few
        assert more[3] not in few

    def test_changes_no_other_workers_batches(self):
        shard = np.arange(50)

        def drawn(order):
            batches = {worker: Batches(shard, Streams(0), worker) for worker in order}
            return {worker: batches[worker].take(120).tolist() for worker in order}

        few, more = drawn([0, 1, 2]), drawn([3, 2, 1, 0])
        assert {worker: more[worker] for worker in few} == few
        assert len({tuple(batch) for batch in more.values()}) == 4

    def test_changes_no_other_workers_clock_under_asp(self):
        """Nobody waits for anybody and messages are free: the first three push when they did."""

        def pushes(workers):
            free = {"latency_s": 0, "bandwidth_mbit_s": 1e12, "server_bandwidth_mbit_s": 1e12}
            cluster = {"workers": workers, "step_time": "lognormal", **free}
            options = {"cluster": cluster, "batch_size": 4 * workers, "stop": {"seconds": 0.2}}
            log = run(toy_experiment("asp", timing_only=True, **options)).log.of_kind(Kind.PUSH)
            return {w: log["time_s"][log["worker"] == w] for w in range(3)}

        few, more = pushes(3), pushes(4)
        for worker in range(3):
            np.testing.assert_allclose(few[worker], more[worker], rtol=0, atol=1e-9)

    def test_streams_are_named_not_numbered(self):
        streams = Streams(0)
        first = streams.generator("shuffle", 0).integers(2**62)
        streams.generator("other").integers(2**62)
        assert streams.generator("shuffle", 0).integers(2**62) == first
        assert Streams(1).generator("shuffle", 0).integers(2**62) != first
        assert streams.generator("shuffle", 0, 1).integers(2**62) != first
        assert 0 <= streams.integer("model") < 2**63


def test_batches_take_each_sample_once_a_pass_whatever_their_size():
    source = Batches(np.arange(10, 20), Streams(0), worker=0)
    taken = np.concatenate([source.take(size) for size in (3, 4, 3, 7, 3)])
    assert sorted(taken[:10]) == sorted(taken[10:]) == list(range(10, 20))
    assert taken[:10].tolist() != taken[10:].tolist()
    assert Batches(np.arange(3), Streams(0), 0, ordered=True).take(7).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert len(Batches(np.arange(3), Streams(0), 0).take(100)) == 100


# -------------------------------------------------------------------- golden logs

CHANGES = [(6.5, Leave(1)), (9.25, Join(1)), (12.5, SwitchRequested())]
CASES = {
    "bsp": strategies.bsp(),
    "asp": strategies.asp(),
    "ssp": strategies.ssp(staleness_bound=2),
    "k_bsp": strategies.k_bsp(k=2),
    "k_bsp_on_arrival": strategies.k_bsp(k=2, cancel="on_arrival"),
    "k_batch_bsp": strategies.k_batch_bsp(k=2),
    "k_asp": strategies.k_asp(k=2),
    "k_batch_asp": strategies.k_batch_asp(k=3),
    "all_reduce": strategies.all_reduce(),
    "strategy_switch": strategies.strategy_switch(rule="manual", cost_s=1.5),
}


@pytest.mark.parametrize("name", CASES)
def test_golden_log(name):
    """Times are multiples of 1/4 s, so that no arithmetic of a CPU shows; look at a change as at code.

    PSBENCH_WRITE_GOLDEN=1 writes missing files, =all every file; `CHANGELOG.md` lists what changed, and why.
    """
    cluster = ScriptedCluster(CASES[name], [1, 1.25, 2, 4], changes=CHANGES, epochs=20)
    cluster.run(until=20)
    path = GOLDEN / f"{name}.json"
    if is_rewritten(path.exists()):
        write_log(cluster.log, path)
    golden = read_log(path).log
    assert golden.texts == cluster.log.texts
    assert golden.rows().tolist() == cluster.log.rows().tolist()
    assert golden.digest() == cluster.log.digest()


def test_every_golden_file_is_compared():
    assert {path.stem for path in GOLDEN.glob("*.json")} - {"pins"} == set(CASES)
