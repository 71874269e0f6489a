"""Slow checks of an experiment: whether its data exists, and the distribution of labels."""

from __future__ import annotations

from functools import cache
from typing import Any

from psbench.clusters.scheduler import check_port
from psbench.core.part import REGISTRY
from psbench.errors import PsbenchError, SpecError
from psbench.experiment import Experiment
from psbench.runs.execution import run
from psbench.training.build import Workload
from psbench_widgets.check import place_of

#: why 2 s: a scheduler in the same network answers in milliseconds, and the user is waiting
ANSWER_WITHIN_S = 2.0


def probe(experiment: Experiment) -> dict[str, Any]:
    """Return the information beside the controls: `errors`, `disabled` models, labels per worker."""
    found: dict[str, Any] = {"errors": {}, "disabled": {}}
    if experiment.scheduler is not None:
        try:
            check_port(experiment.scheduler, ANSWER_WITHIN_S)
        except SpecError as error:
            found["errors"]["rest"] = str(error)
    try:
        workload = Workload.build(experiment)
    except PsbenchError as error:
        found["errors"][_place(error)] = str(error)
        return found
    found["disabled"]["model"] = _models(workload.data.input_shape, workload.data.task)
    facts = workload.facts()
    return found | {
        name: facts[name] for name in ("classes", "label_counts", "dataset_size", "num_parameters")
    }


@cache
def warm_up() -> None:
    """Take one step in a toy run, once per process.

    The first step of a process loads parts of torch that take seconds; a user who presses Run should not
    wait for them.
    """
    toy = {"name": "mixture", "num_samples": 64}
    cluster = {"name": "homogeneous", "workers": 2}
    run(
        Experiment(
            data=toy, model="logistic", cluster=cluster, strategy="bsp", stop={"updates": 1}, batch_size=8
        )
    )


def _place(error: PsbenchError) -> str:
    place = place_of(str(error))
    return "data" if place == "rest" and not isinstance(error, SpecError) else place


def _models(shape: tuple[int, ...], task: str) -> dict[str, str]:
    """Return the models that cannot take samples of that shape or learn such targets, and why."""
    found = {}
    for name, model in REGISTRY["model"].items():
        try:
            model().check_input(shape)  # pyrefly: ignore[missing-attribute]
            model().check_task(task)  # pyrefly: ignore[missing-attribute]
        except SpecError as error:
            found[name] = str(error)
    return found
