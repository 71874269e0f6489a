"""Situations to begin with: each is one press in the panel, and an experiment like any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psbench.experiment import Experiment

_FOUR = {"name": "custom", "workers": 4}
_SHORT = {"epochs": 20}


@dataclass(frozen=True)
class Preset:
    """A situation: its name, what the button says, what one should look for, and what differs in it."""

    name: str
    title: str
    about: str
    values: dict[str, Any]

    def experiment(self) -> Experiment:
        """Return the experiment."""
        usual = {"name": self.title, "stop": _SHORT, "strategy": {"name": "ssp", "staleness_bound": 3}}
        return Experiment(**usual | self.values)

    def plain(self) -> dict[str, str]:
        """Return what the page draws."""
        return {"name": self.name, "title": self.title, "about": self.about}


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "slow_worker",
            "one slow worker",
            "Four workers, one of them at a third of the speed: who waits for it, and for how long?",
            {"cluster": {**_FOUR, "speed": [1, 1, 1, 0.33]}},
        ),
        Preset(
            "slow_network",
            "a slow network",
            "Links of 10 Mbit/s: how much of the time is spent on sending and receiving?",
            {"cluster": {**_FOUR, "speed": [1, 1, 1, 1], "bandwidth_mbit_s": 10.0}, "strategy": "bsp"},
        ),
        Preset(
            "different_data",
            "data that differs",
            "Every worker has only some of the classes: what becomes of the accuracy when no worker waits?",
            {
                "cluster": {**_FOUR, "speed": [1, 1, 1, 0.33]},
                "sharding": "labels_per_worker",
                "strategy": "asp",
            },
        ),
        Preset(
            "dying_worker",
            "a worker that dies",
            "Worker 2 is lost after one second and comes back after three: who notices?",
            {
                "cluster": {
                    **_FOUR,
                    "speed": [1, 1, 1, 1],
                    "failures": [{"worker": 2, "at_s": 1.0, "rejoin_s": 3.0}],
                },
                "strategy": "bsp",
            },
        ),
    )
}


def with_own_name(experiment: Experiment) -> Experiment:
    """Return the experiment without the name of a situation that it no longer is.

    A situation is a cluster and how the data is divided; every strategy may be tried in it.
    """
    for preset in PRESETS.values():
        if experiment.name == preset.title:
            own = preset.experiment()
            same = experiment.cluster == own.cluster and experiment.sharding == own.sharding
            return experiment if same else experiment.but(name="")
    return experiment
