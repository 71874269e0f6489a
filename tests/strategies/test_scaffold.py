"""SCAFFOLD: its rounds in numpy, what it equals where nothing is corrected, and where unlike data lead."""

import least_squares
import numpy as np
import pytest
import torch
from least_squares import gradient, optimum, start
from threaded_run import ThreadedRun
from toybox import put_in, take_out

import psbench as ps
from psbench.core.log import Kind
from psbench.core.strategy import Strategy
from psbench.errors import ParameterError
from psbench.optimization.optimizer import SGD
from psbench.runs.execution import run as run_from
from psbench.runs.replaying import replay
from psbench.strategies.communication import CorrectedSGD
from psbench.testing import toy_experiment
from psbench.training.local_model import LocalModel
from psbench.training.trainer import StepResult

STEPS = 4
#: a rate at which models soon are where they end
FAST = 0.2


class Uncorrected(CorrectedSGD):
    """Never updates its control variate."""

    name = "scaffold_uncorrected"

    def payload(self, w, state, own):
        found = super().payload(w, state, own)
        state["control"] = torch.zeros_like(w)
        return found | {"control": state["control"]}


OWN = take_out("scaffold_")


@pytest.fixture(autouse=True)
def _known():
    put_in(OWN)
    yield
    take_out("scaffold_")


def scaffold(**parameters):
    return {"name": "scaffold", "local_steps": STEPS} | parameters


def unlike(strategy, **changes):
    return least_squares.experiment(strategy, **{"stop": {"updates": 5}} | changes)


def algorithm(x, rounds, lr, global_lr, workers=3):
    """Alg. 1 of the paper with S = N and option II, line by line; whole c_i+ - c_i travel as there."""
    c, own = np.zeros_like(x), [np.zeros_like(x) for _ in range(workers)]
    for _ in range(rounds):
        dy, dc = [], []
        for i in range(workers):
            y = x.copy()
            for _ in range(STEPS):
                y = y - lr * (gradient(i, y) - own[i] + c)
            new = own[i] - c + (x - y) / (STEPS * lr)
            dy.append(y - x)
            dc.append(new - own[i])
            own[i] = new
        x = x + global_lr * np.mean(dy, 0)
        c = c + np.mean(dc, 0)
    return x


@pytest.mark.parametrize("global_lr", [1.0, 0.5])
def test_rounds_are_those_of_the_paper(global_lr):
    spec = unlike(scaffold(global_lr=global_lr))
    expected = algorithm(start(spec), 5, 0.05, global_lr)
    np.testing.assert_allclose(ps.run(spec).parameters, expected, rtol=1e-5)


def test_it_ends_at_the_optimum_of_all_and_local_sgd_elsewhere():
    """Of quadratics local SGD ends where the workers' ways from one model cancel, which is computed, too."""
    own, plain = (
        ps.run(unlike({"name": name, "local_steps": STEPS}, lr=FAST, stop={"updates": 60})).parameters
        for name in ("scaffold", "local_sgd")
    )
    np.testing.assert_allclose(own, optimum(), atol=1e-5)
    # y_i - w_i = (1 - lr H_i)^K (x - w_i), where w_i is the worker's optimum
    hessians = [2 / 4 * x.T @ x for x in least_squares.X]
    shrunk = [np.eye(2) - np.linalg.matrix_power(np.eye(2) - FAST * h, STEPS) for h in hessians]
    own_optima = [np.linalg.solve(h, -gradient(i, np.zeros(2))) for i, h in enumerate(hessians)]
    fixed = np.linalg.solve(sum(shrunk), sum(s @ w for s, w in zip(shrunk, own_optima, strict=True)))
    np.testing.assert_allclose(plain, fixed, atol=1e-5)
    assert np.abs(fixed - optimum()).max() > 0.05


def test_without_control_variates_it_is_local_sgd():
    parts = {"consistency": "bsp", "aggregation": "control_variates"}
    bare = Strategy(**parts, communication={"name": "scaffold_uncorrected", "local_steps": STEPS})
    specs = [unlike(each) for each in (bare, {"name": "local_sgd", "local_steps": STEPS}, scaffold())]
    uncorrected, plain, corrected = (ps.run(spec).parameters for spec in specs)
    assert torch.equal(uncorrected, plain)
    assert not torch.equal(corrected, plain)


def test_one_worker_is_plain_sgd():
    one = ps.run(unlike(scaffold(), workers=1))
    plain = ps.run(unlike("bsp", workers=1, stop={"updates": 5 * STEPS}))
    torch.testing.assert_close(one.parameters, plain.parameters)


def test_both_vectors_travel_both_ways_and_a_ring_adds_them_up():
    done, plain = (ps.run(toy_experiment(name, stop={"updates": 3})) for name in ("scaffold", "local_sgd"))
    for kind in (Kind.PUSH, Kind.RELEASE):
        sent, other = (each.log.of_kind(kind)["bytes"] for each in (done, plain))
        assert (sent == 2 * other).all()
    assert replay(done) == len(done.log)
    ring = ps.run(toy_experiment(scaffold(placement="all_reduce"), stop={"updates": 3}))
    torch.testing.assert_close(
        ring.parameters, ps.run(toy_experiment(scaffold(), stop={"updates": 3})).parameters
    )


@pytest.mark.parametrize("placement", ["parameter_server", "all_reduce"])
def test_a_live_run_has_the_same_model(placement):
    changes = {"cluster": {"workers": 2, "step_time": "constant"}, "stop": {"updates": 4}}
    spec = toy_experiment(scaffold(placement=placement), **changes)
    live = ThreadedRun(spec.but(backend="dask")).run()
    assert live.error is None
    torch.testing.assert_close(live.parameters, ps.run(spec).parameters)


def test_a_run_goes_on_with_its_control_variates(tmp_path):
    spec = unlike(scaffold(), stop={"updates": 9}, checkpoint_every=6.0)
    whole = ps.run(spec, folder=tmp_path / "run")
    found = sorted((tmp_path / "run" / "checkpoints").glob("*.npz"))
    for path in (found[0], found[-1]):
        again = run_from(spec, start=path)
        assert torch.equal(again.parameters, whole.parameters)
        assert again.log.digest() == whole.log.digest()


def test_who_leaves_or_comes_leaves_control_variates_with_their_mean():
    """The mean of those that stay is the global one: they come to their own optimum, with or without it."""
    gone = unlike(scaffold(), lr=FAST, stop={"updates": 120}, cluster=failing())
    left = np.linalg.lstsq(least_squares.X[:2].reshape(-1, 2), least_squares.Y[:2].reshape(-1), rcond=None)
    np.testing.assert_allclose(ps.run(gone).parameters, left[0], atol=1e-5)
    back = unlike(scaffold(), lr=FAST, stop={"updates": 120}, cluster=failing(rejoin_s=1.0))
    np.testing.assert_allclose(ps.run(back).parameters, optimum(), atol=1e-5)


def test_who_comes_late_takes_its_first_steps_uncorrected():
    """It begins with the global control variate as its own."""
    model = LocalModel(ps.strategies.scaffold(local_steps=1), SGD(lr=1.0, momentum=0.0))
    model.load(torch.tensor([5.0, 6.0, 1.0, -2.0]), torch.zeros(0))  # x and c
    model.stepped(StepResult(torch.tensor([1.0, 1.0]), torch.zeros(0), 0.0), 4, 0.0)
    assert model.payload().tolist() == [4.0, 5.0, 1.0, 1.0]


def failing(**changes):
    cluster = {"workers": 3, "step_time": "constant"}
    return cluster | {"failures": [{"worker": 2, "at_s": 0.5} | changes]}


def test_a_residual_of_one_vector_is_not_added_to_two():
    before = {"name": "local_sgd", "local_steps": 2, "codec": {"name": "top_k", "ratio": 0.3}}
    rule = {"name": "after", "fraction": 0.5}
    switch = {"name": "strategy_switch", "first": before, "second": scaffold(), "rule": rule}
    done = ps.run(toy_experiment(switch, stop={"epochs": 4}))
    assert len(done.log.of_kind(Kind.HANDOVER)["row"]) == 1
    notes = [done.log.text(number) for number in done.log.of_kind(Kind.NOTE)["text"]]
    assert any("pushes now carry parameters and control" in note for note in notes)


def test_halves_of_it_are_refused_by_themselves():
    for other, says in (
        ({"communication": "local_sgd"}, "but local_sgd sends none; use communication 'corrected_sgd'"),
        ({"aggregation": "model_average"}, "model_average sends none; use aggregation 'control_variates'"),
        ({"consistency": "asp"}, "control_variates treats a commit as the work of all workers"),
    ):
        with pytest.raises(ParameterError, match=says):
            ps.strategies.scaffold(**other)
