"""Short live runs from which a cluster is fitted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from psbench.core.collective import Collective
from psbench.errors import BackendError, Cancelled, ParameterError
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.runs.execution import run as run_experiment
from psbench.twin.calibration import Calibration
from psbench.twin.codecs import NO_CODEC, codec_of
from psbench.twin.links import MeasuredLinks, Way

if TYPE_CHECKING:
    from psbench.backends.dask.doctor import Link

#: global batches of a probe, and the batch of the second one as a share of the first's
_BATCHES, _SMALLER = 60, 2
#: how often each probe is run
TURNS = 3
#: load a core above which a profile says that other work kept this machine busy
_BUSY = 0.5


def probes_of(
    experiment: Experiment, batches: int = _BATCHES, *, with_peers: bool = False
) -> list[Experiment]:
    """Return the runs that measure a cluster: BSP, ASP with half the batch, and the strategy's codec.

    Two sizes of a batch tell what a step and what a sample takes; a barrier and none how messages meet. A
    strategy that has a codec between workers and servers is run itself: no other tells what that takes. An
    All-Reduce, `with_peers`, tells what messages take where workers talk to each other.

    Raises
    ------
    ParameterError
        If the batch cannot be halved, or an experiment has too few workers.
    """
    workers = experiment.num_workers
    smaller = experiment.batch_size // _SMALLER
    if smaller < workers:
        raise ParameterError(
            f"calibrate: half of batch_size {experiment.batch_size} cannot be shared by {workers} workers; "
            f"give at least {2 * workers}"
        )
    # called by their strategies, and not by the name of the experiment that they measure
    common: dict[str, Any] = {"name": "", "backend": "dask", "evaluate_every": 1e6, "checkpoint_every": None}
    barrier = experiment.but(strategy="bsp", stop={"updates": batches}, **common)
    none = experiment.but(strategy="asp", batch_size=smaller, stop={"updates": batches * workers}, **common)
    probes = [barrier, none]
    if with_peers and workers > 1:
        probes.append(experiment.but(strategy="all_reduce", stop={"updates": batches}, **common))
    coded = [each for each in experiment.strategy.compositions if codec_of(each) != NO_CODEC]
    if (
        len(experiment.strategy.compositions) == 1
        and coded
        and not isinstance(coded[0].placement, Collective)
    ):
        probes.append(experiment.but(stop={"updates": batches}, **common))
    return probes


def with_stamps(experiment: Experiment) -> Experiment:
    """Return the experiment with stamps of its messages and CPU times of its steps."""
    return experiment.but(connection={**experiment.connection.model_dump(), "stamps": True})


def calibrate(
    experiment: Experiment,
    batches: int = _BATCHES,
    *,
    with_links: bool = True,
    with_peers: bool = True,
    on_step: Callable[[str], None] = lambda text: None,
) -> Calibration:
    """Measure the machines of an experiment on Dask: short runs, and the links between workers.

    All probes are run three times, in turns: by how much one run differs from the next belongs into bands.
    Each run has a seed of its own, as emulated machines draw their steps from it.

    Parameters
    ----------
    experiment : Experiment
        Its model, data and workers; with a `scheduler`, the cluster that is measured.
    batches : int
        Global batches of each run.
    with_links : bool
        Whether messages of several sizes are timed between workers, as `psbench doctor` does.
    with_peers : bool
        Whether an All-Reduce is run, too. Without it strategies whose workers talk to each other, All-Reduce
        and gossip, are predicted from the links alone, or from messages to the servers.
    on_step : callable
        Called with what begins, in words.

    Raises
    ------
    ParameterError, BackendError, DataError
    """
    runs, load = list[Run](), os.getloadavg()[0] / (os.cpu_count() or 1)
    probes = probes_of(experiment, batches, with_peers=with_peers)
    for number, probe in enumerate(TURNS * probes):
        on_step(f"{probe.title}, {batches} batches of {probe.batch_size} samples")
        try:
            runs.append(run_experiment(with_stamps(probe.but(seed=probe.seed + number))))
        except BackendError as error:
            if probe.strategy.name != "all_reduce" or isinstance(error, Cancelled):
                raise
            without = (
                "if workers cannot reach each other, leave this probe out (--no-peers, with_peers=False)"
            )
            raise BackendError(f"calibrate: the All-Reduce failed: {error}; {without}") from error
    links = None
    if with_links and experiment.num_workers > 1:
        on_step("links between workers")
        links = measured_links(experiment.but(backend="dask"), on_step, runs[0].meta["model_bytes"])
    found = Calibration.of(runs, links)
    if load < _BUSY or experiment.has_scheduler:
        return found
    busy = f"load before: {load:.2f} a core; other processes were running, and the times include that"
    return replace(found, remarks=(*found.remarks, busy))


def measured_links(
    experiment: Experiment, on_step: Callable[[str], None] = lambda text: None, model_bytes: int = 0
) -> MeasuredLinks | None:
    """Return the timed links between Dask workers, and where a run would be; None without connections.

    With `model_bytes` a message of that size is timed too.
    """
    from psbench.backends.dask import diagnose

    found = diagnose(experiment, on_step=on_step, also=model_bytes, with_steps=False)
    on_step(found.sampled)
    number = {address: place for place, address in enumerate(found.workers)}
    ways = [*_ways(found.links, number)]
    if not ways or (places := found.places(experiment.num_workers)) is None:
        return None
    server, *workers = (number[address] for address in places)
    return MeasuredLinks(server, tuple(workers), tuple(ways), tuple(_ways(found.at_once, number)))


def _ways(links: Mapping[tuple[str, str], Link | None], number: Mapping[str, int]) -> Iterator[Way]:
    """Yield both ways of each link."""
    for (one, other), link in links.items():
        if link is not None:
            start, end = number[one], number[other]
            up, down = (tuple((size, way[at]) for size, *way in link.by_size) for at in (0, 1))
            yield Way(start, end, link.latency_s, link.up_mbit_s, up)
            yield Way(end, start, link.latency_s, link.down_mbit_s, down)
