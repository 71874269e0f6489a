"""Gradient descent: the iterates of NumPy, the solution of scikit-learn, the stop rule of MLlib."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from toybox import at_night
from vectors import pushed

from psbench.checkpoints.file import Checkpoint
from psbench.errors import ParameterError
from psbench.runs.execution import run
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.build import Workload

#: clouds that overlap, so that the likelihood has a maximum; 96 samples are for training
OVERLAPPING = {"name": "mixture", "num_samples": 120, "num_features": 4, "num_classes": 3, "separation": 2.0}
LR, CLASSES, FEATURES = 0.5, 3, 4
#: four partitions of 24 samples each, so that a mini-batch of 96 is the data set
FOUR = toy_cluster([1.0, 0.5, 0.25, 1.0])


def descent(strategy, batch_size=96, **changes):
    defaults = {
        "data": OVERLAPPING,
        "model": "logistic",
        "cluster": FOUR,
        "evaluate_every": 1e9,
        "optimizer": {"name": "sgd", "lr": LR},
        "stop": {"updates": 40},
    }
    return toy_experiment(strategy, batch_size=batch_size, **defaults | changes)


def samples(experiment):
    data = Workload.build(experiment).data
    return data.train_x.double().numpy(), data.train_y.numpy()


def matrices(parameters):
    """Split a flat vector into weights (3, 4) and biases (3,)."""
    weights, biases = np.split(np.asarray(parameters, dtype=np.float64), [CLASSES * FEATURES])
    return weights.reshape(CLASSES, FEATURES), biases


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def iterates(x, labels, updates):
    """Return w_0 .. w_updates of softmax regression by plain gradient descent, in NumPy alone."""
    x = np.hstack([x, np.ones((len(x), 1))])
    wanted = np.eye(CLASSES)[labels]
    w = np.zeros((CLASSES, FEATURES + 1))
    found = [w]
    for _ in range(updates):
        w = w - LR * (softmax(x @ w.T) - wanted).T @ x / len(x)
        found.append(w)
    return [np.concatenate([w[:, :-1].ravel(), w[:, -1]]) for w in found]


def converged_after(found, tolerance):
    """Return the first update at which MLlib's GradientDescent would end."""
    moves = [np.linalg.norm(b - a) / max(np.linalg.norm(b), 1) for a, b in pairwise(found)]
    return next(number for number, move in enumerate(moves, start=1) if move < tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["map_reduce", "bsp", "all_reduce"])
def test_every_version_is_that_of_numpy(strategy, tmp_path):
    """Batch = data set: an update is an epoch, so that a checkpoint is written of every version."""
    done = run(descent(strategy, checkpoint_every=1, stop={"updates": 12}), folder=tmp_path)
    ours = [Checkpoint.load(Path(path)).tensors["parameters"] for path in done.meta["checkpoints"]]
    theirs = iterates(*samples(done.experiment), 12)[1:]
    assert len(ours) == 12
    np.testing.assert_allclose(np.stack(ours), np.stack(theirs), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_map_reduce_and_a_parameter_server_make_the_same_models():
    """The thesis' counts agree too: 317, 3104 and 72 mini-batches under GD, whichever system."""
    rule = {"tolerance": 1e-3, "updates": 400}
    jobs, server = (run(descent(name, stop=rule)) for name in ("map_reduce", "bsp"))
    assert torch.equal(jobs.parameters, server.parameters)
    assert jobs.summary()["updates"] == server.summary()["updates"]


def test_mini_batches_make_other_models_than_gradient_descent():
    """The tests above can fail."""
    whole, part = (run(descent("map_reduce", batch_size=b, stop={"epochs": 5})) for b in (96, 12))
    assert not torch.allclose(whole.parameters, part.parameters, rtol=1e-2)


@pytest.mark.slow
def test_it_converges_to_the_solution_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression  # takes a second, of every process that collects this

    done = run(descent("bsp", stop={"tolerance": 1e-7, "updates": 5000}))
    assert done.meta["reason"] == "an update moved the model by less than 1e-07"
    x, labels = samples(done.experiment)
    theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(x, labels)
    weights, biases = matrices(done.parameters)
    # scores may be shifted together: from zero the descent stays where they sum to zero
    np.testing.assert_allclose(weights, theirs.coef_ - theirs.coef_.mean(axis=0), atol=2e-3)
    np.testing.assert_allclose(biases, theirs.intercept_ - theirs.intercept_.mean(), atol=2e-3)
    np.testing.assert_allclose(softmax(x @ weights.T + biases), theirs.predict_proba(x), atol=5e-4)


# -------------------------------------------------------------------- MLlib's stop rule


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "tolerance"), [("bsp", 0.3), ("bsp", 1e-3), ("map_reduce", 0.1), ("all_reduce", 1e-2)]
)
def test_it_ends_at_the_very_update_that_numpy_names(strategy, tolerance):
    done = run(descent(strategy, stop={"tolerance": tolerance, "updates": 400}))
    expected = converged_after(iterates(*samples(done.experiment), 400), tolerance)
    assert done.summary()["updates"] == expected
    assert done.meta["status"] == "finished"
    assert done.meta["reason"] == f"an update moved the model by less than {tolerance:g}"


def test_small_models_are_measured_against_one():
    """max(||w||, 1): relative to the norm itself, 0.07 after the first update, it would not end there."""
    done = run(descent("bsp", optimizer={"name": "sgd", "lr": 0.1}, stop={"tolerance": 0.2, "updates": 9}))
    assert done.summary()["updates"] == 1
    assert 0 < float(done.parameters.norm()) < 0.2


def test_a_rule_that_is_met_sooner_ends_the_run_sooner():
    done = run(descent("bsp", stop={"tolerance": 1e-3, "updates": 7}))
    assert done.meta["reason"] == "7 updates are done"


def test_without_it_nothing_is_measured():
    server = Workload.build(descent("bsp")).server()
    server.apply(pushed([torch.ones(15)]))
    assert server.movement == float("inf")


def test_the_movement_of_one_update_by_hand():
    server = Workload.build(descent("bsp")).server()
    server.measures_movement = True
    server.parameters.copy_(torch.tensor([3.0, 4.0] + [0.0] * 13))
    server.apply(pushed([torch.tensor([6.0, 0.0] + [0.0] * 13)]))  # lr 0.5: to (0, 4)
    assert server.movement == 3 / 4
    server.apply(pushed([torch.tensor([0.0, 7.5] + [0.0] * 13)]))  # to (0, 0.25), whose norm is below 1
    assert server.movement == 3.75


@pytest.mark.parametrize("strategy", ["all_reduce", "strategy_switch", {"name": "bsp", "servers": 2}])
def test_live_it_takes_one_process_that_has_the_whole_model(strategy):
    settings = {"stop": {"tolerance": 0.01, "epochs": 5}, "optimizer": {"name": "sgd", "momentum": 0.9}}
    descent(strategy, **settings)
    with pytest.raises(ParameterError, match="has the whole model; use a parameter server with"):
        descent(strategy, backend="dask", **settings)


def test_nothing_moves_where_only_time_passes():
    with pytest.raises(ParameterError, match="timing_only: there is no model"):
        descent("bsp", stop={"tolerance": 0.01}, timing_only=True)


@pytest.mark.slow
@pytest.mark.dask
@pytest.mark.parametrize("strategy", ["map_reduce", *at_night("bsp")])
def test_a_live_run_ends_at_the_same_update(strategy, scheduler):
    settings = {"cluster": toy_cluster([1.0, 1.0]), "stop": {"tolerance": 0.03, "updates": 200}}
    live = run(descent(strategy, backend="dask", scheduler=scheduler, **settings))
    virtual = run(descent(strategy, **settings))
    assert live.meta["reason"] == "an update moved the model by less than 0.03"
    assert live.summary()["updates"] == virtual.summary()["updates"]
    assert torch.equal(live.parameters, virtual.parameters)
