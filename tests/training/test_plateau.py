"""A rate that falls when evaluations stop improving: torch's rule, in runs of every kind."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import numpy as np
import pytest
import torch
from threaded_run import ThreadedRun

import psbench as ps
from psbench.backends.dask import tasks
from psbench.core.log import Kind
from psbench.errors import ParameterError, UnknownName
from psbench.optimization.schedule import Plateau
from psbench.runs.fork import Fork, fork
from psbench.runs.replaying import replay
from psbench.testing import toy_experiment

#: falls after 2, 4 and 6 evaluations, as no loss is half of the best; the first is better than none
SOON = {"name": "plateau", "patience": 0, "threshold": 0.5, "cooldown": 1, "gamma": 0.3}


def sgd(schedule: Any) -> dict[str, Any]:
    return {"name": "sgd", "lr": 0.1, "momentum": 0.5, "schedule": schedule}


def toy(strategy: Any = "bsp", schedule: Any = SOON, **changes: Any) -> ps.Experiment:
    return toy_experiment(strategy, optimizer=sgd(schedule), **{"stop": {"epochs": 7}, **changes})


def falls(log: Any) -> list[str]:
    notes = [log.text(number) for number in log.of_kind(Kind.NOTE)["text"]]
    return [note for note in notes if "the rate is multiplied" in note]


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize(
    ("patience", "cooldown", "threshold", "floor"),
    [(0, 0, 0.0, 0.0), (3, 0, 1e-4, 0.0), (1, 2, 0.05, 0.0), (2, 1, 0.01, 0.3), (0, 3, 0.1, 1.0)],
)
def test_the_factor_is_that_of_torch_after_every_evaluation(lower, patience, cooldown, threshold, floor):
    options = {"patience": patience, "cooldown": cooldown, "threshold": threshold}
    theirs = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        theirs, mode="min" if lower else "max", factor=0.7, min_lr=floor, eps=0, **options
    )
    part = Plateau(gamma=0.7, floor=floor, **options)
    ours, rng, seen = part.rule(lower), np.random.default_rng(3), set()
    for at in range(300):
        value = float((-at if lower else at) / 30 + 10 + rng.normal()) if at != 40 else float("nan")
        if at % 7 == 0:  # a resumed one goes on the same
            again = part.rule(lower)
            again.load_state_dict(json.loads(json.dumps(ours.state_dict())))
            ours = again
        before, said = ours.factor, ours.update({"val_loss": value})
        schedule.step(value)
        assert ours.factor == theirs.param_groups[0]["lr"]
        assert bool(said) == (ours.factor != before)
        seen.add(ours.factor)
    assert len(seen) > 2 or floor > 0.2


@pytest.mark.parametrize("strategy", ["bsp", "asp", {"name": "ssp", "staleness_bound": 2}, "all_reduce"])
def test_one_that_never_falls_is_a_constant_rate(strategy):
    never = ps.run(toy(strategy, {"name": "plateau", "patience": 10**6}))
    constant = ps.run(toy(strategy, None))
    assert never.log.rows().tobytes() == constant.log.rows().tobytes()
    assert torch.equal(never.parameters, constant.parameters)


def test_the_next_version_after_an_evaluation_has_the_lower_rate():
    """Whose falls are known beforehand equals a schedule by epoch that falls there, in every bit."""
    run = ps.run(toy())
    factors = [1.0, 1.0, 0.3, 0.3, 0.3 * 0.3, 0.3 * 0.3, 0.3 * 0.3 * 0.3]
    assert len(falls(run.log)) == 3
    assert falls(run.log)[0].startswith("val_loss has not improved for 1 evaluations: the rate")
    same = ps.run(toy(schedule=lambda epoch: factors[int(epoch + 1e-9)]))
    assert torch.equal(run.parameters, same.parameters)
    assert not torch.equal(run.parameters, ps.run(toy(schedule=None)).parameters)


def test_what_pushes_singly_has_its_share_of_the_lower_rate():
    run = ps.run(toy({"name": "asp", "lr_scaling": "by_share"}))
    assert len(falls(run.log)) == 3
    assert replay(run) == len(run.log)


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_which_way_is_better_is_the_metrics_own_word(better):
    """Of a value that rises with every call a plateau is seen only where the lower one is the better."""
    count = itertools.count(1)
    metrics = {"rising": {"function": lambda outputs, targets: float(next(count)), "better": better}}
    schedule = {"name": "plateau", "metric": "rising", "patience": 1, "threshold": 0}
    log = ps.run(toy(schedule=schedule, metrics=metrics)).log
    assert bool(falls(log)) == (better == "lower")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["bsp", "all_reduce"])
def test_a_live_run_is_the_simulated_one(strategy, monkeypatch):
    def late(*request: Any, answer: Any = tasks._answer) -> Any:
        time.sleep(0.05)  # steps take less; who does not wait has the old rate
        return answer(*request)

    monkeypatch.setattr(tasks, "_answer", late)
    experiment = toy(strategy)
    live = ThreadedRun(experiment.but(backend="dask"))
    outcome, simulated = live.run(), ps.run(experiment)
    # a ring adds up in another order
    rtol = 0.0 if strategy == "bsp" else 1e-5
    torch.testing.assert_close(outcome.parameters, simulated.parameters, rtol=rtol, atol=rtol / 10)
    assert falls(live.log) == falls(simulated.log) != []

    def places(log: Any) -> list[int]:  # the version that each evaluation was of
        return log.of_kind(Kind.EVALUATED)["version"].tolist()

    assert places(live.log) == places(simulated.log)


@pytest.mark.slow
def test_a_resumed_run_goes_on_bit_for_bit_and_decides_the_same_again(tmp_path):
    whole = ps.run(toy(checkpoint_every=1))
    for epochs in (1, 2, 3, 5):
        ps.run(toy(stop={"epochs": epochs}, checkpoint_every=1), folder=tmp_path / str(epochs))
        longer = ps.resume(tmp_path / str(epochs), {"stop.epochs": 7})
        assert torch.equal(longer.parameters, whole.parameters)
        assert falls(longer.log) == falls(whole.log) != []
        assert replay(longer) == len(longer.log)
    assert replay(whole) == len(whole.log)


def test_a_fork_has_the_rate_of_its_origin():
    """A change of speed that changes no update falls at the same evaluations."""
    origin = ps.run(toy())
    forked = ps.run(fork(origin, Fork(0.3, worker=2, speed=1.0)))
    assert falls(forked.log) == falls(origin.log)
    assert torch.equal(forked.parameters, origin.parameters)


def test_what_hears_of_no_evaluation_is_refused():
    for strategy in ("local_sgd", "diloco", "ad_psgd"):
        with pytest.raises(ParameterError, match="take local steps at this rate, and receive no"):
            toy(strategy)
    with pytest.raises(ParameterError, match=r"inner_optimizer.schedule: 'plateau'"):
        toy_experiment("local_sgd", inner_optimizer=sgd(SOON))
    with pytest.raises(UnknownName, match=r"metric of optimizer.schedule.metric.*did you mean 'loss'"):
        toy(schedule=SOON | {"metric": "los"})
    with pytest.raises(ParameterError, match="is a large 'f1' good or bad"):
        toy(schedule=SOON | {"metric": "f1"}, metrics={"f1": lambda outputs, targets: 0.5})
    with pytest.raises(ParameterError, match="timing_only: nothing is evaluated"):
        toy(timing_only=True)
    with pytest.raises(ParameterError, match="there is none in 7 epochs with evaluate_every = 8"):
        toy(evaluate_every=8)
    none = {"name": "mixture", "num_samples": 120, "num_features": 4, "num_classes": 3, "val_fraction": 0}
    with pytest.raises(ParameterError, match=r"optimizer.schedule needs validation data"):
        ps.run(toy(data=none))
