"""Preset situations: each is one button in the panel, and a plain experiment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psbench.errors import DataError, PsbenchError
from psbench.experiment import Experiment

_FOUR = {"name": "custom", "workers": 4}
_SHORT = {"epochs": 20}


@dataclass(frozen=True)
class Preset:
    """A preset: its name, its card's title and question, a description, and its settings."""

    name: str
    title: str
    question: str
    about: str
    values: dict[str, Any]

    def experiment(self) -> Experiment:
        usual = {"name": self.title, "stop": _SHORT, "strategy": {"name": "ssp", "staleness_bound": 3}}
        return Experiment(**usual | self.values)

    def plain(self) -> dict[str, str]:
        """Return the data that the page draws."""
        return {"name": self.name, "title": self.title, "question": self.question, "about": self.about}


#: in the working folder, where `psbench calibrate` writes it
PROFILE = Path("profile.yaml")


@dataclass(frozen=True)
class MeasuredPreset(Preset):
    """The machines that `psbench calibrate` has measured, in virtual time."""

    def experiment(self) -> Experiment:
        """Return the experiment.

        Raises
        ------
        DataError
            If nothing was measured yet, or the file cannot be used.
        """
        from psbench.twin import Calibration

        if not PROFILE.is_file():
            raise DataError(
                f"{PROFILE}: is not in this folder; measure yours with `psbench calibrate` (about a minute), "
                "or copy an existing profile into it"
            )
        strategy = {"name": "ssp", "staleness_bound": 3}
        return Calibration.read(PROFILE).experiment_of(strategy).but(name=self.title, stop=_SHORT)


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "slow_worker",
            "one slow worker",
            "who waits, and how long?",
            "Four workers, one of them at a third of the speed: who waits for it, and for how long?",
            {"cluster": {**_FOUR, "speed": [1, 1, 1, 0.33]}},
        ),
        Preset(
            "slow_network",
            "a slow network",
            "how long do messages take?",
            "Links of 10 Mbit/s: how much of the time is spent on sending and receiving?",
            {"cluster": {**_FOUR, "speed": [1, 1, 1, 1], "bandwidth_mbit_s": 10.0}, "strategy": "bsp"},
        ),
        Preset(
            "different_data",
            "data that differs",
            "whose data is lost?",
            "Every worker has only some of the classes: how does the accuracy change if no worker waits?",
            {
                "cluster": {**_FOUR, "speed": [1, 1, 1, 0.33]},
                "sharding": "labels_per_worker",
                "strategy": "asp",
            },
        ),
        Preset(
            "dying_worker",
            "a worker that dies",
            "who notices?",
            "Worker 2 fails after one second and returns after three: which workers wait for it?",
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


MEASURED = MeasuredPreset(
    "my_cluster",
    "my own machines",
    "how fast would they be?",
    "The machines measured by psbench calibrate: how long would another strategy take on them?",
    {},
)
#: all that the panel offers
SITUATIONS: dict[str, Preset] = {**PRESETS, MEASURED.name: MEASURED}


def with_own_name(experiment: Experiment) -> Experiment:
    """Return the experiment without a preset's name once it no longer matches the preset.

    A situation is a cluster and how the data is divided; every strategy may be tried in it.
    """
    for preset in SITUATIONS.values():
        if experiment.name == preset.title:
            try:
                own = preset.experiment()
            except PsbenchError:  # the file of what was measured has gone meanwhile
                return experiment.but(name="")
            same = experiment.cluster == own.cluster and experiment.sharding == own.sharding
            return experiment if same else experiment.but(name="")
    return experiment
