"""Expected cost of a run: measured, or else extrapolated from sizes and measured times."""

from __future__ import annotations

from typing import Any, NamedTuple

from psbench.experiment import Experiment
from psbench_papers.claim import Scale
from psbench_papers.schema import SetUp

#: milliseconds of a core for the gradient of an image of 32 x 32 pixels in batches of 16: cnn, alexnet and
#: resnet20 measured (runs of 8 workers, one thread), the others theirs times the ratio of multiplications
#: (0.65 million of lenet to 3.4 of cnn; 69, 126, 313 and 1,298 of resnet32, resnet56, vgg16 and resnet50 to
#: 41 of resnet20)
GRADIENT_MS = {
    **{"cnn": 0.65, "alexnet": 2.4, "resnet20": 5.3, "lenet": 0.12},
    **{"resnet32": 8.9, "resnet56": 16.0, "vgg16": 40.0, "resnet50": 168.0},
}
#: training images of data sets that no limit makes smaller
IMAGES = {"mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000, "folder": 50_000}


class Cost(NamedTuple):
    """CPU seconds of a run, and their sources; empty if measured."""

    seconds: float
    source: str = ""


def cost(setup: SetUp, scale: Scale, experiment: Experiment) -> Cost:
    """Return the expected cost of a run: measured, extrapolated, or 0 if neither is possible."""
    if scale in setup.seconds:
        return Cost(setup.seconds[scale])
    spec = experiment.spec()
    model, data = spec["model"]["name"], spec["data"]
    images = data.get("limit") or IMAGES.get(data["name"])
    if model not in GRADIENT_MS or images is None:
        return Cost(0.0, f"not known: {model} on {data['name']}")
    samples, most = _samples(experiment, spec["stop"], images)
    words = f"{most}{samples:,.0f} images x {GRADIENT_MS[model]:g} ms ({model})"
    return Cost(samples * GRADIENT_MS[model] / 1000, words)


def _samples(experiment: Experiment, stop: dict[str, Any], images: int) -> tuple[float, str]:
    """Return the maximum number of single-image gradients in a run, and its source."""
    if stop.get("epochs") is not None:
        return stop["epochs"] * images, ""
    cluster = experiment.cluster
    speeds = sum(machine.speed for machine in cluster.machines())
    return stop["seconds"] * speeds / cluster.seconds_per_sample, "at most "
