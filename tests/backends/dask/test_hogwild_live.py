"""Live Hogwild: workers write into one model in the host's memory, and count what is lost."""

from types import SimpleNamespace

import pytest
import torch
from threaded_run import ThreadedRun

import psbench as ps
from psbench.backends.dask import machines
from psbench.backends.dask.machines import check_one_host
from psbench.backends.dask.server.shared_model import SharedModel, SharedSlice
from psbench.core.log import Kind
from psbench.errors import BackendError, ParameterError
from psbench.results.run import Run
from psbench.training.build import Workload

pytestmark = pytest.mark.usefixtures("one_torch_thread")

TINY = {
    "data": "digits",
    "batch_size": 48,
    "seed": 3,
    "backend": "dask",
    "optimizer": {"name": "sgd", "lr": 0.1},
}


def experiment(workers=3, write_s=0.0, **changes):
    given = TINY | {"cluster": {"workers": workers}, "stop": {"epochs": 2}} | changes
    return ps.Experiment(strategy=ps.strategies.hogwild(write_s=write_s), **given)


def test_live_one_worker_has_the_bits_of_plain_sgd_and_loses_nothing():
    spec = experiment(1)
    found = ThreadedRun(spec).run()
    assert found.error is None
    expected = ps.run(spec.but(strategy="bsp", backend="simulated"))
    assert torch.equal(found.parameters, expected.parameters)
    assert found.outcome.facts["lost_updates"] == {"written": expected.summary()["updates"], "lost": 0.0}


def test_live_several_workers_train_one_model():
    """All updates are in the one model, but for those that the counters beside it have lost."""
    found = ThreadedRun(experiment(3)).run()
    assert found.error is None
    evaluations = found.log.evaluations()
    assert evaluations[-1]["val_loss"] < 0.7 * evaluations[0]["val_loss"]
    lost = found.outcome.facts["lost_updates"]
    assert lost["written"] >= len(found.log.of_kind(Kind.APPLY)["time_s"])  # some may be written at the end
    assert 0 <= lost["lost"] < lost["written"]
    assert not found.log.of_kind(Kind.PUSH)["bytes"].any()


@pytest.mark.nightly
def test_processes_share_the_memory_and_the_saved_run_says_so(tmp_path):
    done = ps.run(experiment(2))
    lost = done.summary()["lost_updates"]
    assert lost["written"] >= done.summary()["updates"]
    done.save(tmp_path / "run")
    assert Run.load(tmp_path / "run").summary()["lost_updates"] == lost


def test_what_another_process_writes_over_is_counted_as_lost():
    """Worker 0 reads a number, worker 1 increments it, and worker 0 writes what it has read, and one."""
    spec = experiment(2)
    workload = Workload.build(spec)
    server = workload.server()
    state = {"parameters": server.parameters, "buffers": server.buffers}
    composition = spec.strategy
    own = SharedSlice(state, workload.optimizers[0], 48, composition, workload.streams, 0)
    own.share(2)
    entries = len(server.parameters)
    first, second = (SharedModel.attach(own.answer(0, 1, 0, False, -1), entries, 2) for _ in range(2))
    assert torch.equal(first.parameters, server.parameters)
    read = first.increments.clone()
    second.parameters[0] = 5.0
    second.wrote(1)
    first.increments.copy_(read + 1)
    first.writes[0] += 1
    assert own.server.parameters[0] == 5.0
    assert own.facts() == {"lost_updates": {"written": 2, "lost": 1.0}}
    own.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"write_s": 0.001}, "set write_s: 0"),
        ({"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}}, "use 'sgd' without momentum"),
        ({"optimizer": "adam"}, "use 'sgd' without momentum"),
        ({"recovery": {"replicas": 1}}, "cannot be replicated, as workers change its model"),
        ({"stop": {"updates": 9, "tolerance": 0.1}}, "no process of 'hogwild' has the whole model"),
    ],
    ids=str,
)
def test_what_cannot_be_shared_is_refused_before_any_work(changes, words):
    with pytest.raises(ParameterError, match=words):
        ps.run(experiment(**changes))


def test_workers_on_two_hosts_and_running_statistics_are_refused(monkeypatch):
    placed = {"coordinator": "tcp://a:1", "worker 0": "tcp://a:1", "worker 1": "tcp://b:1"}
    memory = {"tcp://a:1": ("a", 1), "tcp://b:1": ("b", 1)}
    monkeypatch.setattr(machines, "ask", lambda *_, of, limits: {each: memory[each] for each in of})
    workload = Workload.build(experiment(2))
    check_one_host(None, workload, placed | {"worker 1": "tcp://a:1"}, is_local=False)
    check_one_host(None, Workload.build(experiment(2).but(strategy="asp")), placed, is_local=False)
    with pytest.raises(BackendError, match="share the memory of one host, and they would be on a, b"):
        check_one_host(None, workload, placed, is_local=False)
    normed = SimpleNamespace(experiment=experiment(2), model=SimpleNamespace(num_buffers=2))
    with pytest.raises(ParameterError, match="running statistics"):
        check_one_host(None, normed, placed, is_local=True)
