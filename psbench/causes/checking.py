"""`check_cause`: what every cause must satisfy, checked on small runs."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from psbench.causes.cause import Cause
from psbench.causes.counterfactual import recompute
from psbench.causes.schedule import CannotAsk, Schedule
from psbench.experiment import Experiment
from psbench.runs.execution import run

#: pairs of small runs, each explained by the other
_PAIRS = (
    ({"strategy": "asp"}, {"strategy": "bsp"}),
    ({"strategy": "asp"}, {"strategy": "asp", "sharding": {"name": "dirichlet", "alpha": 0.2}}),
    ({"strategy": "bsp"}, {"strategy": "bsp", "optimizer": {"name": "sgd", "lr": 0.02}}),
    (
        {"strategy": "asp"},
        {"strategy": "asp", "optimizer": {"name": "sgd", "lr": 0.01, "weight_decay": 0.01}},
    ),
    ({"strategy": {"name": "asp", "codec": "top_k"}}, {"strategy": "asp"}),
    ({"strategy": "asp"}, {"strategy": "asp", "stop": {"epochs": 0.5}}),
)
_COMMON = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": [8]},
    "cluster": {"name": "homogeneous", "workers": 4},
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    "stop": {"epochs": 1},
    "processes": 1,
}


def check_cause(cause: type[Cause]) -> list[str]:
    """Check a cause on small runs; return the pairs of runs in which it replaced something.

    Replacing nothing must give the run's parameters bit for bit, and so must the cause taken from the run
    itself. A cause that says it does not differ must change nothing. In some pair of runs the cause must
    replace something.

    Raises
    ------
    AssertionError
        With what does not hold.
    """
    if not cause.name:
        raise AssertionError(f"{cause.__name__}: has no name")
    found = []
    for mine, other in _PAIRS:
        a, b = (Schedule.of(run(Experiment(**_COMMON | settings))) for settings in (mine, other))
        pair = f"{_words(mine)} against {_words(other)}"
        recorded = a.run.parameters
        assert recorded is not None
        if not torch.equal(_parameters(a, []), recorded):
            raise AssertionError(f"{pair}: with nothing replaced the schedule does not give the run")
        try:
            null, asked = cause(a, a), cause(a, b)
        except CannotAsk:
            continue
        if null.differs():
            raise AssertionError(f"{pair}: {cause.name}, taken from the run itself, claims to differ")
        if not torch.equal(_parameters(a, [null]), recorded):
            raise AssertionError(f"{pair}: {cause.name}, taken from the run itself, changes its model")
        replaced = _parameters(a, [asked])
        if not torch.equal(replaced, _parameters(a, [cause(a, b)])):
            raise AssertionError(f"{pair}: {cause.name} gives a different model each time")
        if asked.differs():
            found.append(pair)
        elif not torch.equal(replaced, recorded):
            raise AssertionError(f"{pair}: {cause.name} claims not to differ, but changes the model")
    if not found:
        raise AssertionError(f"{cause.name}: replaces nothing in any of the pairs of runs that were tried")
    return found


def _parameters(schedule: Schedule, causes: list[Cause]) -> torch.Tensor:
    found = recompute(schedule, causes).parameters
    assert found is not None
    return found


def _words(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
