"""The live runs of a validation: executed in turns, stored in a folder, and read again for evaluation."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from psbench.core.typed_data import FileData, read_json, typed
from psbench.errors import DataError, in_short
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.runs.execution import run as run_experiment
from psbench.system.files import write_text
from psbench.twin.links import MeasuredLinks
from psbench.twin.probe import measured_links, probes_of, with_stamps

#: machines that are emulated by waiting, so that cores that others use matter less: seconds at speed 1
SLOW_MACHINES: Mapping[str, Any] = {
    **{"name": "custom", "seconds_per_step": 0.015, "seconds_per_sample": 5e-4, "paces_live_runs": True},
    "step_time": {"name": "lognormal", "sigma": 0.2, "correlation": 0.3},
}
#: speeds of four of them, and of two kinds of which there are two, four and eight
_SPEEDS, _KINDS = (1.0, 1.0, 0.9, 0.6), (1.0, 0.7)
#: what is fitted, and what is predicted without having been fitted
FITTED = ("bsp", "asp")
LEFT_OUT: Mapping[str, Any] = {
    "ssp": {"name": "ssp", "staleness_bound": 3},
    "k-sync": {"name": "k_bsp"},
    "backup workers": {"name": "backup_workers"},
    "local SGD": {"name": "local_sgd", "local_steps": 4},
    "All-Reduce": {"name": "all_reduce"},
    "Strategy-Switch": {"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.5}},
    "DBS-SGD": {"name": "dbs_sgd"},
}
#: what is run with more workers than were fitted
SCALED = ("bsp", "ssp")
#: of the record; another one is refused
_VERSION = 1
#: training samples of digits
DIGITS = 1438


@dataclass(frozen=True)
class Sizes:
    """Sizes of an experiment: batches of a run, live repeats in turns, seeds of a prediction, workers.

    `scaled` are the numbers of workers that are fitted, and last the one that is predicted from each.
    """

    batches: int = 150
    repeats: int = 2
    seeds: int = 10
    workers: int = 4
    scaled: tuple[int, ...] = (2, 4, 8)


@dataclass
class Recorded:
    """Live runs by purpose, and the state of the machine.

    Attributes
    ----------
    runs : dict of name to list of Run
        `fit`: probes; `live/ssp`: repeats; `fit of 2/2` and `of 8/ssp`: of two kinds of machines.
    failed : dict of name to str
        Why runs were not obtained.
    load : float
        The machine's load before, by `os.getloadavg` over its cores.
    links : MeasuredLinks or None
        The links between workers, where machines are given; those of emulated ones are of no concern.
    """

    runs: dict[str, list[Run]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    load: float = 0.0
    seconds: float = 0.0
    emulated: bool = True
    links: MeasuredLinks | None = None

    def save(self, folder: str | Path) -> None:
        """Write all runs to a folder, and then the index file."""
        for name, runs in self.runs.items():
            for number, run in enumerate(runs):
                run.save(Path(folder) / name / str(number), overwrite=True)
        self.save_facts(folder)

    def add(self, name: str, run: Run, folder: str | Path | None) -> None:
        """Add a run, and write it to the folder immediately: the next one may fail after an hour."""
        runs = self.runs.setdefault(name, [])
        runs.append(run)
        if folder is not None:
            run.save(Path(folder) / name / str(len(runs) - 1), overwrite=True)
            self.save_facts(folder)

    def save_facts(self, folder: str | Path) -> None:
        """Write the index file of a folder of runs."""
        counts = {name: len(runs) for name, runs in self.runs.items()}
        facts = {"version": _VERSION, "runs": counts, "failed": self.failed, "load": self.load}
        facts |= {"seconds": self.seconds, "emulated": self.emulated, "links": self.links}
        write_text(Path(folder) / "twin.json", json.dumps(facts, indent=1))

    @classmethod
    def read(cls, folder: str | Path) -> Recorded:
        """Read a folder written by `save`.

        Raises
        ------
        DataError
            If it is no such folder, of another version, or a run is missing.
        """
        folder = Path(folder)
        file = folder / "twin.json"
        plain = typed(dict[str, Any], read_json(file), file)
        if (version := plain.get("version")) != _VERSION:
            raise DataError(f"{file}: version: must be {_VERSION}, got {in_short(version)}")
        facts = typed(_Facts, plain, file)
        for name, count in facts.runs.items():
            there = len([*(folder / name).iterdir()]) if (folder / name).is_dir() else 0
            if count > there:
                raise DataError(
                    f"{file}: runs.{name}: declares {count} runs, but {folder / name} has {there}"
                )
        if "fit" not in facts.runs:
            raise DataError(f"{file}: runs: has no runs called fit, to which the cluster is fitted")
        runs = {
            name: [Run.load(folder / name / str(number)) for number in range(count)]
            for name, count in facts.runs.items()
        }
        return cls(runs, dict(facts.failed), facts.load, facts.seconds, facts.emulated, facts.links)


class _Facts(FileData):
    """The index file of a record: the number of runs by name, and the state of the machine."""

    version: int
    runs: dict[str, PositiveInt]
    failed: dict[str, str]
    load: float
    seconds: float
    emulated: bool
    links: MeasuredLinks | None


def emulated(workers: int, kinds: bool = False) -> Experiment:
    """Return an experiment with digits and a small network on machines emulated by waiting.

    With `kinds`, of two kinds in turn, so that few are of the same kinds as many.
    """
    speed = [(_KINDS if kinds else _SPEEDS)[each % (2 if kinds else 4)] for each in range(workers)]
    cluster = {**SLOW_MACHINES, "workers": workers, "speed": speed}
    return Experiment(strategy="bsp", cluster=cluster, data="digits", batch_size=32 * workers, backend="dask")


def planned(experiment: Experiment, name: str, batches: int) -> Experiment:
    """Return the live run of a strategy."""
    epochs = max(4.0, batches * experiment.batch_size / DIGITS)
    return experiment.but(
        strategy=LEFT_OUT.get(name, {"name": name}),
        stop={"epochs": epochs},
        evaluate_every=1.0,
        backend="dask",
    )


def record(
    experiment: Experiment | None = None,
    sizes: Sizes | None = None,
    on_step: Callable[[str], None] = lambda text: None,
    folder: str | Path | None = None,
) -> Recorded:
    """Run everything live, in turns, so that disturbances of the machine affect all strategies equally.

    Every run has a seed of its own. Strategies that shared one would share the draws of the machines that are
    emulated, and their errors would be one error, counted once for each strategy.

    Parameters
    ----------
    experiment : Experiment or None
        Whose model, data and machines; without one, machines that are emulated (`SLOW_MACHINES`).
    sizes : Sizes or None
    on_step : callable
        Called with what begins, in words.
    folder : path or None
        Each run is written there as soon as it has ended.

    Raises
    ------
    ParameterError, BackendError
    """
    return _Recorder(experiment, sizes or Sizes(), on_step, folder).record()


class _Recorder:
    def __init__(
        self,
        experiment: Experiment | None,
        sizes: Sizes,
        on_step: Callable[[str], None],
        folder: str | Path | None,
    ) -> None:
        self._given, self._sizes, self._say, self._folder = experiment, sizes, on_step, folder
        self._found = Recorded(emulated=experiment is None)
        self._seed = 0 if experiment is None else experiment.seed

    def record(self) -> Recorded:
        found, sizes, began = self._found, self._sizes, time.monotonic()
        found.load = os.getloadavg()[0] / (os.cpu_count() or 1)
        experiment = self._given or emulated(sizes.workers)
        # before and after the others: a machine whose load changes is measured as it was on average
        self._probe("fit", experiment, with_peers=True)
        if self._given is not None and experiment.num_workers > 1 and "fit" in found.runs:
            self._say("links between workers")
            model_bytes = found.runs["fit"][0].meta["model_bytes"]
            found.links = measured_links(experiment.but(backend="dask"), model_bytes=model_bytes)
        for _ in range(sizes.repeats):
            for name in (*FITTED, *LEFT_OUT):
                self._live(f"live/{name}", planned(experiment, name, sizes.batches))
        self._probe("fit", experiment, with_peers=True)
        if self._given is None and sizes.scaled:
            *few, many = sizes.scaled
            for _ in range(sizes.repeats):
                for workers in few:
                    self._probe(f"fit of {workers}", emulated(workers, kinds=True))
                for name in SCALED:
                    more = planned(emulated(many, kinds=True), name, sizes.batches)
                    self._live(f"of {many}/{name}", more)
        found.seconds = time.monotonic() - began
        if self._folder is not None:
            found.save_facts(self._folder)
        return found

    def _probe(self, name: str, experiment: Experiment, *, with_peers: bool = False) -> None:
        for probe in probes_of(experiment, self._sizes.batches, with_peers=with_peers):
            self._live(name, with_stamps(probe))

    def _live(self, name: str, experiment: Experiment) -> None:
        self._seed += 1
        self._say(f"live: {experiment.title}, {experiment.num_workers} workers, seed {self._seed}")
        try:
            run = run_experiment(experiment.but(seed=self._seed))
        except DataError as error:
            self._found.failed[name] = str(error)
        else:
            self._found.add(name, run, self._folder)
