"""Scenes: short runs of scripted strategies, which together exercise most actions of a driver.

A scripted strategy answers pushes by a list, in turn, whatever the cluster does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psbench.testing.scripted_parts import (
    LATER_S,
    LastGradient,
    NextNumber,
    Scripted,
    StandStill,
    Telling,
    Votes,
)

if TYPE_CHECKING:
    from psbench.experiment import Experiment

_SPEED = (1.0, 0.5, 0.25)  # a step of the fastest takes 5 ms
_UPDATES = 40


@dataclass(frozen=True)
class Scene:
    """A scripted strategy on a small cluster.

    Attributes
    ----------
    name : str
    strategy : anything that `Experiment` takes as one
    leaves : tuple of (worker, seconds)
        The worker that fails, and when, if one does; it is back after `LATER_S`.
    """

    name: str
    strategy: Any
    leaves: tuple[int, float] | None = None

    @property
    def back_s(self) -> float:
        """Time at which the failed worker returns."""
        assert self.leaves is not None
        return self.leaves[1] + LATER_S

    def experiment(self) -> Experiment:
        """Return the scene's experiment: three workers, a model of 15 parameters."""
        from psbench.testing.toys import toy_cluster, toy_experiment

        failures = []
        if self.leaves is not None:
            worker, at_s = self.leaves
            failures = [{"worker": worker, "at_s": at_s, "rejoin_s": self.back_s}]
        cluster = toy_cluster([*_SPEED], failures=failures)
        return toy_experiment(
            self.strategy, cluster=cluster, stop={"updates": _UPDATES, "epochs": 50}, processes=1
        )

    @property
    def step_s(self) -> list[float]:
        return [0.005 / speed for speed in _SPEED]


def _scripted(*lines: str, **parts: Any) -> dict[str, Any]:
    return {"name": "scripted", "consistency": Scripted(script=lines), **parts}


SCENES = (
    Scene("workers that do not wait", "asp"),
    Scene("a barrier", "bsp"),
    Scene("a bound of the staleness", {"name": "ssp", "staleness_bound": 1}),
    Scene("pushes that are discarded", _scripted("commit", "discard", "hold", "commit", "discard")),
    Scene("work that is cancelled", _scripted("commit", "hold", "cancel")),
    Scene(
        "a worker that is dropped and readmitted", _scripted("commit", "commit", "commit", "drop", "commit")
    ),
    Scene("numbers that are measured", _scripted("commit", "measure", "discard")),
    Scene("a worker that fails", _scripted("commit", "commit", "hold"), leaves=(1, 0.052)),
    Scene("a barrier, and a worker that fails", "bsp", leaves=(2, 0.052)),
    Scene(
        "rounds of two steps that are cancelled",
        _scripted("commit", "hold", "cancel", communication=LastGradient(steps=2)),
    ),
    Scene(
        "rounds that end by an order",
        {"name": "told", "consistency": Telling(), "communication": LastGradient(steps=0)},
    ),
    Scene("votes", {"name": "votes", "consistency": "bsp", "communication": Votes()}),
    Scene("All-Reduce", "all_reduce"),
    Scene(
        "gossip",
        {
            "name": "numbers",
            "consistency": "neighbours",
            "aggregation": NextNumber(),
            "communication": StandStill(),
            "placement": "gossip",
        },
    ),
    Scene(
        "a switch",
        {
            "name": "strategy_switch",
            "first": "bsp",
            "second": "asp",
            "rule": {"name": "after", "fraction": 0.04, "whole_epochs": False},
        },
    ),
)
