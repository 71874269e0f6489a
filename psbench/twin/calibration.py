"""What was measured of some machines, as a file: a cluster for the simulator, and where it holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from psbench.clusters import make_cluster
from psbench.errors import DataError, ParameterError
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.seeds import Streams
from psbench.specfile import read_yaml
from psbench.system.files import atomic_write
from psbench.twin.between_runs import between_runs
from psbench.twin.codecs import NO_CODING, Coding, codecs_of, coding_for, with_codec
from psbench.twin.exchanges import exchanges_of
from psbench.twin.fit import IN_COMPANY, Fitted, MeasuredLink, fit

#: of the file's format; another one is refused
VERSION = 1
_KEYS = ("psbench_profile", "cluster", "holds_for", "fitted", "not_identified", "remarks", "experiment")
#: half-width of a 90 % interval in standard deviations
_Z90 = 1.645
#: what a prediction may not change, as it was not measured
_FIXED = ("data", "model", "loss", "device", "threads")


@dataclass(frozen=True)
class Calibration:
    """A fitted cluster, and where it holds.

    Attributes
    ----------
    cluster : dict
        A specification of a cluster, which the simulator takes.
    workers : int
        How many were probed.
    samples : (int, int)
        The smallest and the largest batch of a worker that was probed.
    dataset_size : int, samples
    fitted : dict of name to Fitted
    unknown, remarks : tuple of str
        What the runs did not identify, with its bound; how the fit was made.
    experiment : dict
        The specification that was run.
    codecs : dict of name to Coding
        What the codecs of the runs take, each with its parameters.
    beyond : int
        How many workers more these are than were measured; see `of_workers`.
    between_runs : float
        By how much a run's seconds deviate from its twin's beyond the luck of seeds; see `between_runs`.
    """

    cluster: Mapping[str, Any]
    workers: int
    samples: tuple[int, int]
    dataset_size: int
    fitted: Mapping[str, Fitted]
    unknown: tuple[str, ...]
    remarks: tuple[str, ...]
    experiment: Mapping[str, Any]
    between_runs: float = 0.0
    codecs: Mapping[str, Coding] = field(default_factory=dict)
    beyond: int = 0

    @classmethod
    def of(cls, runs: Sequence[Run], link: MeasuredLink | None = None) -> Calibration:
        """Fit a cluster to runs of one experiment under several strategies.

        Raises
        ------
        ParameterError, DataError
            See `psbench.twin.fit.fit`.
        """
        found = fit(runs, link)
        samples = [exchanges_of(run.log).samples for run in runs]
        spec = runs[0].experiment.spec()
        for key in _FIXED:
            for run in runs[1:]:
                if run.experiment.spec().get(key) != spec.get(key):
                    raise ParameterError(
                        f"calibrate: the runs differ in their {key}; give runs of one experiment"
                    )
        limits = min(int(each.min()) for each in samples), max(int(each.max()) for each in samples)
        strategies = ", ".join(f"{run.experiment.title} ({len(run.log)} rows)" for run in runs)
        deviation, free = between_runs(
            runs,
            lambda each: with_codec(found.cluster, found.codecs.get(codecs_of(each), NO_CODING)),
        )
        if free:
            found.remarks.append(
                f"between runs: they deviate from their twins by {deviation:.1%}, beside seeds ({free} free)"
            )
        else:
            found.unknown.append(
                "between runs: each probe was run once, so bands lack what differs from one to the next"
            )
        remarks = (f"runs: {strategies}", *found.remarks)
        return cls(
            cluster=found.cluster,
            workers=found.cluster["workers"],
            samples=limits,
            dataset_size=runs[0].meta["dataset_size"],
            fitted=found.fitted,
            unknown=tuple(found.unknown),
            remarks=remarks,
            experiment=spec,
            between_runs=_four(deviation),
            codecs=found.codecs,
        )

    def to_yaml(self, path: Path) -> None:
        """Write the file; what is there is replaced when all is written."""
        codecs = {name: each._asdict() for name, each in self.codecs.items()}
        plain = {
            "psbench_profile": VERSION,
            "holds_for": {
                "workers": self.workers,
                "samples_of_a_worker": list(self.samples),
                "samples_of_the_data": self.dataset_size,
            },
            "not_identified": list(self.unknown),
            "remarks": list(self.remarks),
            "fitted": {name: _plain(each) for name, each in self.fitted.items()},
            "between_runs": self.between_runs,
            **({"codecs": codecs} if codecs else {}),
            "cluster": dict(self.cluster),
            "experiment": {key: value for key, value in self.experiment.items() if key not in _NOT_KEPT},
        }
        text = yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=120)
        with atomic_write(path) as file:
            file.write(text.encode())

    @classmethod
    def read(cls, path: str | Path) -> Calibration:
        """Read a file of `to_yaml`.

        Raises
        ------
        SpecError, DataError
            If it cannot be read, is no such file, or is of another version.
        """
        plain = read_yaml(Path(path))
        version = plain.get("psbench_profile")
        if version is None:
            raise DataError(f"{path}: is no profile of `psbench calibrate` (it has no psbench_profile)")
        if version != VERSION:
            raise DataError(
                f"{path}: is a profile of version {version!r}, and this is {VERSION}; calibrate again"
            )
        if missing := [key for key in _KEYS if key not in plain]:
            raise DataError(f"{path}: has no {missing[0]!r}; is it cut off?")
        try:
            low, high = plain["holds_for"]["samples_of_a_worker"]
            fitted = {name: _fitted(each) for name, each in plain["fitted"].items()}
            sizes = int(plain["holds_for"]["workers"]), int(plain["holds_for"]["samples_of_the_data"])
            deviation = float(plain.get("between_runs", 0.0))  # profiles of before have none
            codecs = {name: Coding(**each) for name, each in plain.get("codecs", {}).items()}
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: {error} is missing or no number; calibrate again") from None
        make_cluster(plain["cluster"])
        return cls(
            cluster=plain["cluster"],
            workers=sizes[0],
            samples=(low, high),
            dataset_size=sizes[1],
            fitted=fitted,
            unknown=tuple(plain["not_identified"]),
            remarks=tuple(plain["remarks"]),
            experiment=plain["experiment"],
            between_runs=deviation,
            codecs=codecs,
        )

    def experiment_of(self, strategy: Any, settings: Mapping[str, Any] | None = None) -> Experiment:
        """Return the experiment in virtual time, on this cluster, under another strategy.

        Raises
        ------
        ParameterError
            With the reason, if it is outside of what was measured.
        SpecError
            If it cannot be at all.
        """
        settings = dict(settings or {})
        workers = settings.pop("cluster.workers", self.workers)
        for path in settings:
            if path.partition(".")[0] in (*_FIXED, "cluster", "backend"):
                raise ParameterError(f"predict: {path} is not what was measured; calibrate with it")
        if not isinstance(workers, int) or not 1 <= workers <= self.workers:
            raise ParameterError(
                f"predict: {self.workers} workers were measured, not {workers!r}; calibrate with so many"
            )
        spec = {key: value for key, value in self.experiment.items() if key not in _NOT_KEPT}
        cluster = self.of_workers(workers).cluster
        changes = {"strategy": strategy, "cluster": cluster}
        experiment = Experiment.from_spec(spec | changes, settings, where="profile")
        self._check(experiment)
        return experiment.but(cluster=self.of_workers(workers).cluster_for(experiment))

    def cluster_for(self, experiment: Experiment) -> dict[str, Any]:
        """Return the cluster on which an experiment's strategy is predicted: with what its codecs take.

        Raises
        ------
        ParameterError
            If that was not measured.
        """
        return with_codec(self.cluster, coding_for(experiment.strategy.compositions, self.codecs))

    def drawn(self, seed: int) -> Calibration:
        """Return it with speeds and times drawn from what the measurement leaves open, for a seed.

        So a band over seeds has in it what is not known of each worker, and by how much one run differs from
        the next, and not the variation within a run alone. With more workers than were measured a message is
        later by the company of those more: of how many depends on the strategy, from none to all of them.
        """
        rng, slower = Streams(seed).generator("calibration"), []
        for worker in range(self._probed):
            fitted = self.fitted.get(f"step of worker {worker}, s")
            share = 0.0 if fitted is None else (fitted.high - fitted.low) / (2 * _Z90 * fitted.value)
            slower.append(max(0.1, 1.0 + share * float(rng.standard_normal())))
        # workers that stand for the same measured one are as much slower as that
        whole = math.exp(self.between_runs * float(rng.standard_normal()))
        speed = [
            each / slower[worker % self._probed] / whole for worker, each in enumerate(self.cluster["speed"])
        ]
        cluster = {**self.cluster, "speed": speed}
        more = 0.0
        if self.beyond and (fitted := self.fitted.get(IN_COMPANY)):
            error = (fitted.high - fitted.value) / _Z90
            slope = max(0.0, fitted.value + error * float(rng.standard_normal()))
            more = self.beyond * slope * float(rng.random())
        if "seconds" in (links := self.cluster.get("link_time", {})):
            cluster["link_time"] = {
                **links,
                "seconds": [[each * whole + more for each in end] for end in links["seconds"]],
            }
        if service := self.cluster.get("service"):
            cluster["service"] = {name: each * whole for name, each in service.items()}
        codecs = {name: Coding(*(each * whole for each in own)) for name, own in self.codecs.items()}
        return replace(self, cluster=cluster, codecs=codecs)

    @property
    def _probed(self) -> int:
        """How many workers have a step in `fitted`."""
        return max(1, sum(name.startswith("step of worker") for name in self.fitted))

    def of_workers(self, workers: int) -> Calibration:
        """Return it for so many workers: the first of them, or, beyond them, all in turn again."""
        places = [each % self.workers for each in range(workers)]
        links = self.cluster["link_time"]
        if "seconds" in links:
            ends = links["seconds"]
            both = [*(ends[each] for each in places), *(ends[self.workers + each] for each in places)]
            links = {**links, "seconds": both}
        speed = [self.cluster["speed"][each] for each in places]
        cluster = {**self.cluster, "workers": workers, "speed": speed, "link_time": links}
        beyond = self.beyond + max(0, workers - self.workers)
        return replace(self, cluster=cluster, workers=workers, beyond=beyond)

    def _check(self, experiment: Experiment) -> None:
        low, high = self.samples
        share = experiment.batch_size / experiment.num_workers
        if not low <= share <= high:
            raise ParameterError(
                f"predict: a worker's batch of {share:g} samples was not measured, {low} to {high} were"
            )
        for each in experiment.strategy.compositions:
            if each.placement.peer_to_peer or each.placement.stateless_workers:
                raise ParameterError(f"predict: exchanges under {each.placement.name!r} were not measured")


#: of the experiment that was run, what a prediction replaces
_NOT_KEPT = (
    "strategy",
    "cluster",
    "backend",
    "scheduler",
    "connection",
    "recovery",
    "name",
    "checkpoint_every",
    "stop",
    "evaluate_every",
)


def _four(value: float) -> float:
    return float(f"{value:.4g}")


def _plain(fitted: Fitted) -> dict[str, Any]:
    value, low, high = (float(f"{each:.4g}") for each in fitted[:3])
    return {"value": value, "between": [low, high], "from": fitted.source}


def _fitted(plain: Mapping[str, Any]) -> Fitted:
    low, high = map(float, plain["between"])
    return Fitted(float(plain["value"]), low, high, str(plain["from"]))
