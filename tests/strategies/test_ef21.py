"""EF21: Alg. 2 in numpy, what it equals without compression, and estimates that both ends keep."""

import least_squares
import numpy as np
import pytest
import torch
from least_squares import gradient, start
from threaded_run import ThreadedRun

import psbench as ps
from psbench.errors import ParameterError
from psbench.runs.execution import run as run_from
from psbench.testing import toy_experiment

LARGEST = {"name": "top_k", "ratio": 0.5, "error_feedback": False}  # one of two entries


def ef21(codec=LARGEST, **parameters):
    return {"name": "ef21", "codec": codec} | parameters


def unlike(strategy, **changes):
    return least_squares.experiment(strategy, **{"stop": {"updates": 8}} | changes)


def algorithm(x, rounds, lr=0.05, workers=3):
    """Alg. 2 of the paper with top-1, whose server keeps the mean of all g_i alone."""
    own = [np.zeros_like(x) for _ in range(workers)]
    mean = np.zeros_like(x)
    for _ in range(rounds):
        sent = []
        for i in range(workers):
            difference = gradient(i, x) - own[i]
            c = np.where(np.arange(2) == np.abs(difference).argmax(), difference, 0.0)
            own[i] = own[i] + c
            sent.append(c)
        mean = mean + np.mean(sent, axis=0)
        x = x - lr * mean
    return x


def test_rounds_are_those_of_the_paper():
    spec = unlike(ef21())
    np.testing.assert_allclose(ps.run(spec).parameters, algorithm(start(spec), 8), rtol=1e-5)


def test_without_compression_it_is_bsp():
    own, plain = (ps.run(unlike(each)).parameters for each in (ef21("none"), "bsp"))
    torch.testing.assert_close(own, plain)


def test_compressed_it_ends_at_the_optimum_and_bare_top_k_elsewhere():
    own, bare = (
        ps.run(unlike(each, lr=0.2, stop={"updates": 120})).parameters.numpy()
        for each in (ef21(), {"name": "bsp", "codec": LARGEST})
    )
    np.testing.assert_allclose(own, least_squares.optimum(), atol=1e-4)
    assert np.abs(bare - least_squares.optimum()).max() > 0.01


@pytest.mark.parametrize("codec", [LARGEST, "fp16"], ids=str)
def test_live_both_ends_have_the_estimates_of_virtual_time(codec):
    placement = {"name": "parameter_server", "servers": 2}
    changes = {"cluster": {"workers": 2, "step_time": "constant"}, "stop": {"updates": 5}}
    spec = toy_experiment(ef21(codec, placement=placement), **changes)
    live = ThreadedRun(spec.but(backend="dask")).run()
    assert live.error is None
    torch.testing.assert_close(live.parameters, ps.run(spec).parameters)


def test_a_run_goes_on_with_its_estimates(tmp_path):
    spec = unlike(ef21(), checkpoint_every=3.0)
    whole = ps.run(spec, folder=tmp_path / "run")
    again = run_from(spec, start=min((tmp_path / "run" / "checkpoints").glob("*.npz")))
    assert torch.equal(again.parameters, whole.parameters)
    assert again.log.digest() == whole.log.digest()


@pytest.mark.parametrize("back", [{}, {"rejoin_s": 0.35}], ids=["gone", "back"])
def test_who_leaves_takes_its_estimate_along(back):
    """One that comes back begins with differences from 0, at both ends."""
    failure = {"worker": 2, "at_s": 0.3} | back
    cluster = {"workers": 3, "step_time": "constant", "failures": [failure]}
    done = ps.run(unlike(ef21(), lr=0.2, cluster=cluster, stop={"updates": 120}))
    stay = slice(0, 3 if back else 2)
    x, y = least_squares.X[stay].reshape(-1, 2), least_squares.Y[stay].reshape(-1)
    np.testing.assert_allclose(done.parameters, np.linalg.lstsq(x, y, rcond=None)[0], atol=0.05)


def test_a_worker_back_before_the_next_version_begins_anew_at_both_ends():
    failure = {"worker": 0, "at_s": 0.013, "rejoin_s": 0.014}
    cluster = {"workers": 1, "step_time": "constant", "failures": [failure]}
    done = ps.run(unlike(ef21(), workers=1, lr=0.2, cluster=cluster, stop={"updates": 400}))
    expected = np.linalg.lstsq(least_squares.X[0], least_squares.Y[0], rcond=None)[0]
    np.testing.assert_allclose(done.parameters, expected, atol=0.05)


def test_what_it_cannot_do_is_refused():
    for other, says in (
        (
            {"codec": "top_k"},
            "the codec of gradient_differences would correct them again; set error_feedback",
        ),
        ({"aggregation": "mean"}, "mean would interpret as gradients; use aggregation 'gradient_estimates'"),
        ({"communication": "every_step", "codec": None}, "pushes under every_step are gradients"),
        ({"consistency": "asp"}, "asp has no barrier"),
    ):
        given = {name: value for name, value in other.items() if value is not None}
        with pytest.raises(ParameterError, match=says):
            ps.strategies.ef21(**given)
