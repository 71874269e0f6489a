"""Arithmetic of somebody's own: simulated, live on two servers, in replay, after a resume, in a fork."""

import json
import weakref

import numpy as np
import pytest
import torch
from strategies.aggregation.own_arithmetic import (
    OWN,
    DelayCompensated,
    DiLoCo,
    Elastic,
    ElasticSteps,
    Median,
    Steadied,
)
from threaded_run import ThreadedRun
from toybox import put_in, take_out
from vectors import how, pushed

import psbench as ps
from psbench.checkpoints.file import Checkpoint
from psbench.core import Aggregation, Apply, Strategy
from psbench.core.arithmetic import State
from psbench.core.log import Kind
from psbench.core.needs import NEEDS_SINGLE_PUSHES
from psbench.errors import ParameterError, UnknownName
from psbench.optimization.optimizer import SGD
from psbench.runs.execution import resume, run
from psbench.runs.fork import Fork, fork
from psbench.runs.replaying import replay
from psbench.strategies import local_sgd, make_strategy
from psbench.strategies.aggregation import DynSGDVersioned
from psbench.testing import toy_experiment
from psbench.training.build import Workload
from psbench.training.local_model import LocalModel
from psbench.training.memory import vectors_of_a_worker
from psbench.training.server import Server, kept_vectors
from psbench.training.trainer import StepResult

LOCAL = {"name": "local_sgd", "local_steps": 3}
STRATEGIES = {
    "own_median": {"consistency": "bsp", "aggregation": "own_median"},
    "own_dc_asgd": {"consistency": "asp", "aggregation": "own_dc_asgd"},
    "own_diloco": {"consistency": "bsp", "communication": LOCAL, "aggregation": "own_diloco"},
    "own_steadied": {"consistency": "asp", "aggregation": "own_steadied"},
    "own_easgd": {
        "consistency": "bsp",
        "communication": {"name": "own_elastic_steps", "local_steps": 3},
        "aggregation": "own_elastic",
    },
}


@pytest.fixture(autouse=True)
def _known():
    put_in(OWN)
    yield
    take_out("own_")


def experiment(name, servers=2, **changes):
    placement = {"name": "parameter_server", "servers": servers}
    settings = {"cluster": {"workers": 2, "step_time": "constant"}, "stop": {"updates": 12}, "batch_size": 8}
    return toy_experiment(STRATEGIES[name] | {"placement": placement}, **settings | changes)


# -------------------------------------------------------------------- formulas


def test_a_median_ignores_one_liar():
    server = Server(torch.zeros(2), torch.zeros(0), SGD(lr=0.5), 1, Median())
    server.apply(pushed([torch.tensor(v) for v in ([1.0, 2.0], [1.0, 4.0], [-900.0, 3.0])]))
    assert server.parameters.tolist() == [-0.5, -1.5]


def test_delay_compensation_by_hand():
    server = Server(torch.tensor([2.0]), torch.zeros(0), SGD(lr=0.1), 1, DelayCompensated(compensation=0.5))
    (push,) = pushed([torch.tensor([3.0])], base=torch.tensor([1.0]))
    server.apply([push])
    assert server.parameters.item() == pytest.approx(2 - 0.1 * (3 + 0.5 * 9 * (2 - 1)))


def test_outer_steps_of_a_constant_difference_are_a_geometric_sum():
    server = Server(torch.zeros(1), torch.zeros(0), SGD(), 1, DiLoCo(outer_lr=0.5))
    way = []
    for _ in range(200):
        before = server.parameters.item()
        server.apply(pushed([torch.ones(1)]), how(numbers={"round": 0.0}))
        way.append(before - server.parameters.item())
    assert way[0] == pytest.approx(0.5 * 1.9)
    assert way[-1] == pytest.approx(0.5 / (1 - 0.9), rel=1e-3)


def test_an_elastic_move_by_hand():
    server = Server(torch.tensor([1.0]), torch.zeros(0), SGD(), 1, Elastic(alpha=0.25))
    workers = [LocalModel(Strategy(**STRATEGIES["own_easgd"]), SGD()) for _ in range(2)]
    for model, start in zip(workers, (3.0, -5.0), strict=True):
        model.load(torch.tensor([start]), torch.zeros(0))
        model._part = ElasticSteps(alpha=0.25)
    server.apply(pushed([model.payload() for model in workers], [0.25, 0.25]))
    for model in workers:
        model.receive(server.aggregate)
    moved = [server.parameters.item(), *(model.parameters.item() for model in workers)]
    assert moved == [1 + 0.25 * (2 - 6), 3 - 0.25 * 2, -5 + 0.25 * 6]
    assert sum(moved) == 1 + 3 - 5


@pytest.mark.slow
def test_an_outer_step_of_1_without_momentum_is_local_sgd():
    plain = DiLoCo(outer_lr=1.0, outer_momentum=0.0)
    ours, theirs = (
        run(toy_experiment(local_sgd(local_steps=3, aggregation=part), stop={"updates": 12}))
        for part in (plain, "model_average")
    )
    torch.testing.assert_close(ours.parameters, theirs.parameters, rtol=1e-5, atol=1e-6)


# -------------------------------------------------------------------- everywhere


@pytest.mark.parametrize("name", STRATEGIES)
def test_slices_make_the_version_of_one_server(name):
    one, three = (run(experiment(name, servers)) for servers in (1, 3))
    assert torch.equal(one.parameters, three.parameters)


def test_a_live_run_on_two_servers_has_the_bits_of_virtual_time():
    done = experiment("own_easgd")
    live = ThreadedRun(done).run()
    assert live.error is None
    assert np.array_equal(live.parameters.numpy(), run(done).parameters.numpy())


@pytest.mark.parametrize("servers", [1, 2])
def test_live_a_worker_that_pushed_alone_is_answered_alone(servers):
    strategy = STRATEGIES["own_easgd"] | {"consistency": "asp"}
    strategy["placement"] = {"name": "parameter_server", "servers": servers}
    done = toy_experiment(strategy, cluster={"workers": 1, "step_time": "constant"}, stop={"updates": 6})
    live = ThreadedRun(done).run()
    assert live.error is None
    assert np.array_equal(live.parameters.numpy(), run(done).parameters.numpy())


@pytest.mark.slow
def test_sums_over_all_entries_do_not_depend_on_the_number_of_servers():
    """Alone, so that the live run has the virtual one's order; with tensors that borders of slices cut."""
    alone = {"cluster": {"workers": 1, "step_time": "constant"}, "stop": {"updates": 8}}
    found = [measured(run(experiment("own_steadied", servers, **alone)).log) for servers in (1, 2, 3)]
    live = ThreadedRun(experiment("own_steadied", 2, **alone)).run()
    assert live.error is None
    assert found[0] == found[1] == found[2] == measured(live.log)
    first, last = found[0][0], found[0][-1]
    assert (first["dot:last:last"], first["dot:0:x"] != 0) == (0, True)
    assert last["dot:last:last"] > 0
    tensors = [last[name] for name in last if name.startswith("dot:7:7:")]
    assert len(tensors) == 2
    assert min(tensors) > 0


def measured(log):
    return [json.loads(log.texts[row]) for row in log.of_kind(Kind.MEASURED)["text"]]


def test_replays_and_forks():
    done = run(experiment("own_steadied"))
    assert replay(done) == len(done.log)
    other = run(fork(done.experiment, Fork(at_s=done.meta["time_s"] / 2, worker=1, speed=0.5)))
    assert other.log.digest() != done.log.digest()


@pytest.mark.parametrize("name", ["own_median", "own_diloco", "own_easgd"])
def test_a_resumed_run_goes_on_from_vectors_and_numbers(name, tmp_path):
    whole = run(experiment(name, checkpoint_every=0.1))
    run(experiment(name, checkpoint_every=0.1, stop={"updates": 7}), folder=tmp_path)
    again = resume(tmp_path, {"stop": {"updates": 12}})
    assert torch.equal(again.parameters, whole.parameters)


def test_a_resumed_run_has_the_versions_that_pushes_started_from(tmp_path):
    run(experiment("own_dc_asgd", checkpoint_every=0.1, stop={"updates": 7}), folder=tmp_path)
    assert resume(tmp_path, {"stop": {"updates": 12}}).meta["reason"] == "12 updates are done"


def test_a_checkpoint_names_the_part(tmp_path):
    done = run(experiment("own_diloco", checkpoint_every=0.1), folder=tmp_path)
    saved = Checkpoint.load(done.meta["checkpoints"][-1]).tensors
    assert saved["aggregation/own_diloco/velocity"].shape == saved["parameters"].shape
    assert saved["aggregation/own_diloco/rounds"].dtype == torch.float64


def test_a_ring_takes_what_is_linear_and_refuses_the_rest():
    ring = {"placement": "all_reduce"}
    ours = run(toy_experiment(STRATEGIES["own_diloco"] | ring, stop={"updates": 6}))
    assert torch.isfinite(ours.parameters).all()
    with pytest.raises(ParameterError, match="sums pushes in transit, but own_median needs each"):
        ps.Experiment(strategy=STRATEGIES["own_median"] | ring)


@pytest.mark.parametrize(
    ("part", "vectors"),
    [(Median, 0), (DelayCompensated, 0), (DiLoCo, 1), (Steadied, 1), (DynSGDVersioned, 1)],
)
def test_the_memory_that_is_forecast_counts_a_parts_vectors(part, vectors):
    assert kept_vectors(part()) == vectors
    settings = {"aggregation": part(), "communication": "local_sgd" if part is DiLoCo else "every_step"}
    consistency = "asp" if NEEDS_SINGLE_PUSHES in part.needs else "bsp"
    workload = Workload.build(toy_experiment(Strategy(consistency=consistency, **settings)))
    assert workload.entry_bytes == 4 * (1 + workload.experiment.optimizer.tensors + vectors)


@pytest.mark.parametrize(
    ("strategy", "vectors"),
    [
        ({"consistency": "asp"}, 0),
        ({"consistency": "bsp"}, 1),  # all have pushed
        (local_sgd(), 2 + 1),  # model and momentum of the worker's own
        ("diloco", 2 + 1 + 1),  # the model that it received
        ("eager_diloco", 2 + 4 + 1),  # agreed, velocity, own share, others' mean
        ("selsync", 2 + 1),
        ("power_sgd", 1 + 1),  # what the aggregate lacks
        ("double_squeeze", 1 + 1),  # what its signs have lost
        ("d_psgd", 2 + 1 + 1),  # the gradient that waits for the mixture
        (STRATEGIES["own_easgd"], 2 + 1),
    ],
)
def test_it_counts_what_workers_keep_and_what_they_have_sent(strategy, vectors):
    composition = Strategy(**strategy) if isinstance(strategy, dict) else make_strategy(strategy)
    assert vectors_of_a_worker(composition, 1) == vectors


def test_the_state_begins_anew_under_another_part():
    server = Server(torch.zeros(1), torch.zeros(0), SGD(), 1, DiLoCo())
    server.apply(pushed([torch.ones(1)]), how(numbers={"round": 3.0}))
    assert dict(server.state) == {"velocity": torch.ones(1), "rounds": 4.0}
    server.use(DiLoCo(outer_lr=0.1))
    assert "velocity" in server.state  # the same part goes on
    server.use(Median())
    assert not server.state


# -------------------------------------------------------------------- the state


def test_a_state_refuses_what_no_backend_could_carry():
    state = State(torch.zeros(3))
    with pytest.raises(ValueError, match=r"'m': has shape \(2,\).*expected \(3,\)"):
        state["m"] = torch.zeros(2)
    with pytest.raises(ValueError, match="float64"):
        state["m"] = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(TypeError, match="'m': is a list"):
        state["m"] = [0.0, 0.0, 0.0]


def test_a_state_is_not_changed_with_the_model_or_a_push():
    class Keeps(Median):
        name = ""

        def update(self, x, pushes, state, step):
            state["model"], state["pushed"] = x, pushes[0].vector
            state["pushed"].add_(1.0)
            x.add_(1.0)

    server = Server(torch.zeros(1), torch.zeros(0), SGD(), 1, Keeps())
    (push,) = pushed([torch.zeros(1)])
    server.apply([push])
    assert (server.state["model"].item(), push.vector.item()) == (0.0, 0.0)


# -------------------------------------------------------------------- what does not exist


def test_what_does_not_exist_is_refused_when_the_strategy_is_made():
    class Odd(Median):
        name = "own_odd"
        payload = "difference_"

    take_out("own_odd")
    with pytest.raises(UnknownName, match=r"payload of aggregation 'own_odd' .*did you mean 'difference'\?"):
        Strategy(consistency="bsp", aggregation=Odd())

    class Models(Aggregation):
        name = "own_models"
        payload = "parameters"

        def on_commit(self, pushes, view):
            return [Apply(pushes, [1.0] * len(pushes))]

    take_out("own_models")
    with pytest.raises(ParameterError, match=r"own_models receives models, .*; override 'update'"):
        Strategy(consistency="bsp", communication=LOCAL, aggregation=Models())


def test_a_plain_push_is_copied_nowhere(monkeypatch):
    """The gradient of a step is what travels, and what travelled is what the optimizer steps along."""
    worker, gradient, along = LocalModel(make_strategy("asp"), SGD(lr=0.1)), torch.ones(3), []
    worker.load(torch.zeros(3), torch.zeros(0))
    worker.stepped(StepResult(gradient, torch.zeros(0), 0.0), 4, 0.0)
    sent = worker.payload()
    server = Server(torch.zeros(3), torch.zeros(0), SGD(lr=0.1), 4)
    monkeypatch.setattr(server._update, "step", lambda direction, lr: along.append(direction))
    server.apply(pushed([sent]))
    assert [sent.data_ptr(), along[0].data_ptr()] == [gradient.data_ptr()] * 2


def test_a_server_holds_no_push_once_it_is_applied():
    """It held all pushes of a version until the next: as many models as there are workers."""
    own = Server(torch.zeros(2), torch.zeros(0), SGD(lr=1.0, momentum=0.0), 8)
    vectors = [torch.ones(2), torch.full((2,), 3.0)]
    held = [weakref.ref(vector) for vector in vectors]
    own.apply(pushed(vectors, [0.5, 0.5]))
    vectors.clear()
    assert own.parameters.tolist() == [-2.0, -2.0]
    assert [ref() for ref in held] == [None, None]
