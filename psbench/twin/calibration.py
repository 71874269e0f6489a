"""Measurements of machines as a file: a cluster for the simulator, and its range of validity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveInt, model_validator
from scipy import stats

from psbench.clusters import make_cluster
from psbench.core.collective import Collective, Jobs
from psbench.core.peer_to_peer import AnyPeers, PeerToPeer
from psbench.core.typed_data import FileData, typed
from psbench.errors import DataError, ParameterError, naming
from psbench.experiment import Experiment
from psbench.percents import percent
from psbench.results.run import Run
from psbench.seeds import Streams
from psbench.specfile import dump_yaml, read_yaml
from psbench.system.files import write_text
from psbench.twin.between_runs import (
    BesideTwins,
    beside_twins,
    between_runs,
    between_sizes,
    kind_of,
    kinds_of,
    not_reproduced,
)
from psbench.twin.codecs import NO_CODING, Coding, codecs_of, coding_for, with_codec
from psbench.twin.exchanges import exchanges_of
from psbench.twin.fit import fit
from psbench.twin.fitted import AT_ONCE, HOP, RUN_TO_RUN, SPREAD, Fitted, company_of, latency_of, rate_of
from psbench.twin.links import MeasuredLinks, Waits, without_vectors
from psbench.twin.peer_fit import has_server
from psbench.twin.peers import Peers
from psbench.twin.size_classes import Z90

#: of the file's format; another one is refused
VERSION = 1
#: fractional part of the golden ratio, whose multiples are spread evenly between 0 and 1 (Weyl)
_GOLDEN = 0.6180339887498949
#: what a prediction may not change, as it was not measured
_FIXED = ("data", "model", "loss", "device", "threads")


class _HoldsFor(FileData):
    """Range of the measurements: workers, and the smallest and largest batch of a worker."""

    workers: PositiveInt
    samples_of_a_worker: tuple[PositiveInt, PositiveInt]
    samples_of_the_data: PositiveInt


class _Number(FileData):
    """A fitted number."""

    value: float
    between: tuple[float, float]
    source: str = Field(alias="from")


class _Links(FileData):
    """Latencies to and from the servers, for each worker."""

    model_config = ConfigDict(extra="allow")

    seconds: list[list[float]]


class _Cluster(FileData):
    """Entries of a fitted cluster that a prediction changes; validated as a cluster."""

    model_config = ConfigDict(extra="allow")

    workers: PositiveInt
    speed: list[float]
    link_time: _Links
    step_time: dict[str, Any]
    latency_s: float | list[float]
    server_bandwidth_mbit_s: float


class _Profile(FileData):
    """A file written by `Calibration.to_yaml`."""

    psbench_profile: int
    holds_for: _HoldsFor
    not_identified: tuple[str, ...]
    remarks: tuple[str, ...]
    fitted: dict[str, _Number]
    between_runs: NonNegativeFloat = 0.0
    between_sizes: NonNegativeFloat = 0.0
    codecs: dict[str, Coding] = {}
    waits: Waits | None = None
    peers: Peers | None = None
    not_reproduced: str = ""
    cluster: _Cluster
    experiment: dict[str, Any]

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        workers = self.holds_for.workers
        found = self.cluster.workers, len(self.cluster.speed), len(self.cluster.link_time.seconds)
        if found != (workers, workers, 2 * workers):
            raise ValueError(f"cluster: must have the {workers} workers of holds_for")
        if self.waits is not None and {*map(len, self.waits)} != {workers}:
            raise ValueError(f"waits: must be those of the {workers} workers of holds_for")
        if self.peers is not None and len(self.peers.seconds) != 2 * workers:
            raise ValueError(f"peers: must have reports and orders of the {workers} workers of holds_for")
        if self.peers is not None and not all(self.peers.seconds):
            raise ValueError("peers.seconds: a worker has no measurement")
        if not all(self.cluster.link_time.seconds):
            raise ValueError("cluster.link_time.seconds: one direction of a link has no measurement")
        return self


@dataclass(frozen=True)
class Calibration:
    """A fitted cluster, and its range of validity.

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
    between_runs, between_sizes : float
        By how much a run's seconds deviate from its twin's beyond the luck of seeds, and by how much with
        each doubling of the workers that were measured; see `between_runs.py`.
    not_reproduced : str
        Why predictions are refused: the probe that the fitted cluster reproduces worst, with the likely
        reason; empty if it reproduces all.
    waits : Waits or None
        What models' messages wait, where links were timed.
    peers : Peers or None
        What messages take where workers talk to each other, if a probe tells.
    doublings : float
        How often the workers are doubled, or halved, from those that were measured; see `of_workers`.
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
    between_sizes: float = 0.0
    codecs: Mapping[str, Coding] = field(default_factory=dict)
    not_reproduced: str = ""
    doublings: float = 0.0
    waits: Waits | None = None
    peers: Peers | None = None

    @classmethod
    def of(
        cls, runs: Sequence[Run], links: MeasuredLinks | None = None, others: Sequence[Run] = ()
    ) -> Calibration:
        """Fit a cluster to runs of one experiment under several strategies.

        `others`, of other numbers of workers, tell by how much it errs for more than it is fitted to.

        Raises
        ------
        ParameterError, DataError
            See `psbench.twin.fit.fit`.
        """
        found = fit(runs, links)
        samples = [exchanges_of(run.log).samples for run in runs]
        spec = runs[0].experiment.spec()
        for key in _FIXED:
            for run in runs[1:]:
                if run.experiment.spec().get(key) != spec.get(key):
                    raise ParameterError(
                        f"calibrate: the runs differ in their {key}; give runs of one experiment"
                    )
        costs = runs[0].experiment.cluster.costs
        priced = {} if costs is None else {"costs": costs.facts(found.cluster["workers"])}
        limits = min(int(each.min()) for each in samples), max(int(each.max()) for each in samples)
        strategies = ", ".join(f"{run.experiment.strategy.name} ({len(run.log)} rows)" for run in runs)
        measured = cls(
            cluster={**found.cluster, **priced},
            workers=found.cluster["workers"],
            samples=limits,
            dataset_size=runs[0].meta["dataset_size"],
            fitted=found.fitted,
            unknown=tuple(found.unknown),
            remarks=(f"runs: {strategies}", *found.remarks),
            experiment=spec,
            codecs=found.codecs,
            waits=found.waits,
            peers=found.peers,
        )
        return measured._compared_with(runs, others, measured._left_out(runs, links))

    def _cluster_of(self, each: Experiment, seed: int) -> dict[str, Any]:
        """Return the drawn cluster of a probe's twin."""
        own = self.of_workers(each.num_workers).drawn(seed)
        return with_codec(own._links_for(each), self.codecs.get(codecs_of(each), NO_CODING))

    def _left_out(self, runs: Sequence[Run], links: MeasuredLinks | None) -> list[BesideTwins]:
        """Return each kind of probe with a server beside twins whose messages are fitted without it."""
        kinds = [same for same in kinds_of(runs) if has_server(same[0])]
        if len(kinds) < 2 or min(map(len, kinds)) < 2:
            return []
        found = list[BesideTwins]()
        for same in kinds:
            without = fit(runs, links, left_out=kind_of(same[0]))
            own = replace(
                self, cluster=without.cluster, fitted=without.fitted, waits=without.waits, peers=without.peers
            )
            found += beside_twins(same, own._cluster_of)
        return found

    def _compared_with(
        self, runs: Sequence[Run], others: Sequence[Run], left_out: Sequence[BesideTwins]
    ) -> Calibration:
        """Return a copy with the deviations of runs from their twins, also for other cluster sizes."""
        probes = beside_twins(runs, self._cluster_of)
        deviation, free = between_runs(probes, left_out)
        by_size = between_sizes(others, self.workers, self._cluster_of)
        remarks, unknown = list(self.remarks), list(self.unknown)
        if free:
            remarks.append(
                f"between runs: they deviate from their twins by {percent(deviation, 1)}, "
                f"beside seeds ({free} free)"
            )
            remarks += [
                f"probes: {each.runs[0].experiment.strategy.name} without its own messages in the fit: "
                f"{percent(each.error, 1, '+')}"
                for each in left_out
            ]
        else:
            unknown.append(
                "between runs: each probe was run once, so bands lack what differs from one to the next"
            )
        return replace(
            self,
            between_runs=_four(deviation),
            between_sizes=_four(by_size),
            not_reproduced=not_reproduced(probes, self.fitted),
            remarks=tuple(remarks),
            unknown=tuple(unknown),
        )

    def to_yaml(self, path: str | Path | None = None) -> str:
        """Return the profile as YAML, and write it to a file atomically.

        Raises
        ------
        SpecError
            If it cannot be written.
        """
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
            **({"between_sizes": self.between_sizes} if self.between_sizes else {}),
            **({"codecs": codecs} if codecs else {}),
            **({} if self.waits is None else {"waits": _in_lists(self.waits)}),
            **({} if self.peers is None else {"peers": self.peers.plain()}),
            **({"not_reproduced": self.not_reproduced} if self.not_reproduced else {}),
            "cluster": dict(self.cluster),
            "experiment": {key: value for key, value in self.experiment.items() if key not in _NOT_KEPT},
        }
        text = dump_yaml(plain, default_flow_style=None, width=120)
        if path is not None:
            write_text(path, text)
        return text

    @classmethod
    def read(cls, path: str | Path) -> Calibration:
        """Read a file written by `to_yaml`.

        Raises
        ------
        SpecError, DataError
            If it cannot be read, is no such file, or is of another version.
        """
        plain = read_yaml(Path(path))
        version = plain.get("psbench_profile")
        if version is None:
            raise DataError(f"{path}: is not a profile of `psbench calibrate` (it lacks psbench_profile)")
        if version != VERSION:
            raise DataError(
                f"{path}: is a profile of version {version!r}, and this is {VERSION}; calibrate again"
            )
        found = typed(_Profile, plain, path)
        holds = found.holds_for
        measured = cls(
            cluster=plain["cluster"],
            workers=holds.workers,
            samples=holds.samples_of_a_worker,
            dataset_size=holds.samples_of_the_data,
            fitted={
                name: Fitted(each.value, *each.between, each.source) for name, each in found.fitted.items()
            },
            unknown=found.not_identified,
            remarks=found.remarks,
            experiment=found.experiment,
            codecs=found.codecs,
            waits=found.waits,
            peers=found.peers,
            between_runs=found.between_runs,
            between_sizes=found.between_sizes,
            not_reproduced=found.not_reproduced,
        )
        with naming(str(path)):
            make_cluster(plain["cluster"])
            measured._experiment("bsp", measured.cluster)
        return measured

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
            if path.startswith("cluster.costs"):  # no time depends on them
                continue
            if path.partition(".")[0] in (*_FIXED, "cluster", "backend"):
                raise ParameterError(f"predict: {path} was not measured; calibrate with it")
        if not isinstance(workers, int) or not 1 <= workers <= self.workers:
            raise ParameterError(
                f"predict: {self.workers} workers were measured, not {workers!r}; calibrate with that number"
            )
        experiment = self._experiment(strategy, self.of_workers(workers).cluster, settings)
        self._check(experiment)
        return experiment.but(cluster=self.of_workers(workers).cluster_for(experiment))

    def _experiment(
        self, strategy: Any, cluster: Mapping[str, Any], settings: Mapping[str, Any] | None = None
    ) -> Experiment:
        spec = {key: value for key, value in self.experiment.items() if key not in _NOT_KEPT}
        changes = {"strategy": strategy, "cluster": cluster}
        return Experiment.from_spec(spec | changes, settings, where="experiment")

    def cluster_for(self, experiment: Experiment) -> dict[str, Any]:
        """Return the cluster for predicting an experiment's strategy, with the times of its codecs.

        Raises
        ------
        ParameterError
            If that was not measured.
        """
        coding = coding_for(experiment.strategy.compositions, self.codecs)
        found = with_codec(self._links_for(experiment), coding)
        costs = experiment.cluster.costs
        return found if costs is None else {**found, "costs": costs.model_dump()}

    def _links_for(self, experiment: Experiment) -> dict[str, Any]:
        """Return the cluster with latencies of the messages that the strategy sends."""
        found, placements = dict(self.cluster), [each.placement for each in experiment.strategy.compositions]
        if not all(isinstance(each, (Collective, PeerToPeer)) for each in placements):
            return found
        if self.peers is not None:
            found = self.peers.on(found)
        elif self.waits is not None:
            found = without_vectors(found)
        if self.waits is None:
            return found
        is_gossip = all(
            isinstance(each, PeerToPeer) and not isinstance(each, AnyPeers) for each in placements
        )
        return self.waits.of_models(found) if is_gossip else found

    def drawn(self, seed: int) -> Calibration:
        """Return a copy with numbers drawn from their confidence intervals, for a seed.

        So a band over seeds has in it what is not known of each number, by how much one run differs from
        the next, and by how much a fit errs for more workers, and not the variation within a run alone.
        """
        rng = Streams(seed).generator("calibration")
        drawn = {name: self._drawn(name, rng) for name in sorted(self.fitted)}
        beyond = math.hypot(self.between_runs, self.between_sizes * self.doublings)
        whole = math.exp(beyond * _level(seed))
        speed, places = self.cluster["speed"], self._places
        # workers that stand for the same measured one are as much slower as that
        ratios = [drawn.get(f"step of worker {each}, s", (1.0, 1.0)) for each in places]
        differ = drawn.get(RUN_TO_RUN, (0.0, 0.0))[0] * rng.standard_normal(len(places))
        slower = np.exp(differ) * whole * np.array([now / was for was, now in ratios])
        cluster = {
            **self.cluster,
            "speed": (np.array(speed) / slower).tolist(),
            "step_time": _spread(self.cluster["step_time"], drawn.get(SPREAD)),
        }
        if "seconds" in (links := self.cluster.get("link_time", {})):
            cluster |= self._drawn_links(links, drawn, whole)
        if service := self.cluster.get("service"):
            cluster["service"] = {name: each * whole for name, each in service.items()}
        codecs = {name: Coding(*(each * whole for each in own)) for name, own in self.codecs.items()}
        waits = None if self.waits is None else self.waits.times(whole)
        was, now = drawn.get(HOP, (1.0, 1.0))
        peers = None if self.peers is None else self.peers.times(whole, whole * now / was)
        return replace(self, cluster=cluster, codecs=codecs, waits=waits, peers=peers)

    def _drawn(self, name: str, rng: np.random.Generator) -> tuple[float, float]:
        """Return the fitted value, and one drawn from its interval, at least a tenth of it."""
        value, low, high, _ = self.fitted[name]
        error = (high - low) / (2 * Z90) * float(rng.standard_normal())
        return value, max(0.1 * value, value + error)

    def _drawn_links(
        self, links: Mapping[str, Any], drawn: Mapping[str, tuple[float, float]], whole: float
    ) -> dict[str, Any]:
        """Return drawn latencies and the rate of a shared link, which are negatively correlated."""
        alone, slower = drawn.get(AT_ONCE, (1.0, 1.0))
        companies = [drawn.get(company_of(way), (1.0, 1.0))[0] for way in ("to the servers", "back")]
        ends = []
        for end, seconds in enumerate(links["seconds"]):
            way, place = divmod(end, self.cluster["workers"])
            name = latency_of(self._places[place] + way * self._probed, self._probed)
            was, now = drawn.get(name, (1.0, 1.0))
            less = companies[way] * (slower - alone) / was if AT_ONCE in drawn else 0.0
            factor = whole * max(0.1, now / was - less)
            ends.append([each * factor for each in seconds])
        rate = self.cluster["server_bandwidth_mbit_s"] * alone / (slower * whole)
        was, now = drawn.get(HOP, (1.0, 1.0))
        cluster = {"link_time": {**links, "seconds": ends}, "server_bandwidth_mbit_s": rate}
        for name in ("latency_s", "peer_latency_s"):
            if name in self.cluster:
                cluster[name] = _times(self.cluster[name], whole * now / was)
        for name, whither in (("bandwidth_mbit_s", "up"), ("bandwidth_down_mbit_s", "down")):
            if isinstance(own := self.cluster.get(name), list):
                ratios = [drawn[rate_of(place, whither)] for place in self._places]
                cluster[name] = [
                    each * now / (was * whole) for each, (was, now) in zip(own, ratios, strict=True)
                ]
        return cluster

    @property
    def _probed(self) -> int:
        """Number of workers with a step time in `fitted`."""
        return max(1, sum(name.startswith("step of worker") for name in self.fitted))

    @property
    def _places(self) -> list[int]:
        """The measured worker that each worker copies."""
        return [each % self._probed for each in range(self.cluster["workers"])]

    def of_workers(self, workers: int) -> Calibration:
        """Return a calibration for `workers` workers: the first ones, or all repeated in turn."""
        places = [each % self.workers for each in range(workers)]
        links = self.cluster["link_time"]
        if "seconds" in links:
            ends = links["seconds"]
            both = [*(ends[each] for each in places), *(ends[self.workers + each] for each in places)]
            links = {**links, "seconds": both}
        speed = [self.cluster["speed"][each] for each in places]
        cluster = {**self.cluster, "workers": workers, "speed": speed, "link_time": links}
        for name in _OF_LINKS:
            if isinstance(own := self.cluster.get(name), list):
                cluster[name] = [own[place] for place in places]
        if costs := self.cluster.get("costs"):
            cluster["costs"] = {
                name: [each[place] for place in places] if isinstance(each, list) else each
                for name, each in costs.items()
            }
        doublings = self.doublings + math.log2(workers / self.workers)
        waits = None if self.waits is None else self.waits.of(places)
        peers = None if self.peers is None else self.peers.of(places)
        return replace(self, cluster=cluster, workers=workers, doublings=doublings, waits=waits, peers=peers)

    def _check(self, experiment: Experiment) -> None:
        low, high = self.samples
        share = experiment.batch_size / experiment.num_workers
        if not low <= share <= high:
            raise ParameterError(
                f"predict: a worker's batch of {share:g} samples was not measured; only {low} to {high} were"
            )
        for each in experiment.strategy.compositions:
            untimed = isinstance(each.placement, PeerToPeer) and "peer_latency_s" not in self.cluster
            if untimed or isinstance(each.placement, Jobs):
                why = "; calibrate with links" if untimed else ""
                raise ParameterError(
                    f"predict: exchanges under {each.placement.name!r} were not measured{why}"
                )


#: what a fitted cluster may have for each worker's link
_OF_LINKS = ("bandwidth_mbit_s", "bandwidth_down_mbit_s", "latency_s", "peer_latency_s", "racks")
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


def _level(seed: int) -> float:
    """Return a standard normal number; those of consecutive seeds are spread evenly, so that few suffice."""
    return float(stats.norm.ppf((0.5 + seed * _GOLDEN) % 1.0))


def _spread(step_time: Mapping[str, Any], drawn: tuple[float, float] | None) -> dict[str, Any]:
    """Return a step-time part with the drawn deviation of its factors from their mean, 1."""
    was, now = drawn or (1.0, 1.0)
    if "sigma" in step_time:
        return {**step_time, "sigma": step_time["sigma"] * now / was}
    if "factors" in step_time:
        shrunk = [max(0.01, 1.0 + (each - 1.0) * now / was) for each in step_time["factors"]]
        return {**step_time, "factors": shrunk}
    return dict(step_time)


def _times(value: float | list[float], factor: float) -> float | list[float]:
    return [each * factor for each in value] if isinstance(value, list) else value * factor


def _in_lists(waits: Waits) -> dict[str, list[float]]:
    return {name: [*map(_four, own)] for name, own in waits._asdict().items()}


def _four(value: float) -> float:
    return float(f"{value:.4g}")


def _plain(fitted: Fitted) -> dict[str, Any]:
    value, low, high = (float(f"{each:.4g}") for each in fitted[:3])
    return {"value": value, "between": [low, high], "from": fitted.source}
