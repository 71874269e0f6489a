"""A toy experiment that runs in about 10 ms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psbench.experiment import Experiment


def toy_experiment(strategy: Any = "bsp", **changes: Any) -> Experiment:
    """Return an experiment of 96 samples, a linear model and three workers of speed 1, 1/2 and 1/4.

    Step times are constant and messages cost nothing, so a worker's step takes 5, 10 or 20 ms and worked
    examples come out in round numbers; the optimizer is plain SGD.

    Parameters
    ----------
    strategy : anything that `Experiment` takes as one
    **changes
        Other fields of the experiment, as `stop={"updates": 10}`.

    Examples
    --------
    >>> toy_experiment("asp", seed=3).num_workers
    3
    """
    from psbench.experiment import Experiment

    defaults: dict[str, Any] = {
        "data": {"name": "mixture", "num_samples": 120, "num_features": 4, "num_classes": 3},
        "model": "linear",
        "cluster": toy_cluster([1.0, 0.5, 0.25]),
        "optimizer": {"name": "sgd", "lr": 0.1},
        "batch_size": 12,
        "stop": {"epochs": 2},
    }
    return Experiment(**defaults | {"strategy": strategy} | changes)


def toy_cluster(speed: list[float], **changes: Any) -> dict[str, Any]:
    """Return the specification of a cluster with constant step times and nearly free messages.

    A step of 4 samples takes 5 ms at speed 1; a link carries a model of 60 bytes in less than a picosecond.
    """
    free = {"latency_s": 0.0, "bandwidth_mbit_s": 1e12, "server_bandwidth_mbit_s": 1e12}
    return {"workers": len(speed), "speed": speed, "step_time": "constant", **free, **changes}
