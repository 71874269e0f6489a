"""Short live runs from which a cluster is fitted."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from psbench.core.collective import Collective
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.runs.execution import run as run_experiment
from psbench.twin.calibration import Calibration
from psbench.twin.codecs import NO_CODEC, codec_of
from psbench.twin.fit import MeasuredLink

#: global batches of a probe, and the batch of the second one as a share of the first's
_BATCHES, _SMALLER = 60, 2
#: how often each probe is run
_TURNS = 2
#: load a core above which a profile says that other work kept this machine busy
_BUSY = 0.5


def probes_of(experiment: Experiment, batches: int = _BATCHES) -> list[Experiment]:
    """Return the runs that measure a cluster: BSP, ASP with half the batch, and the strategy's codec.

    Two sizes of a batch tell what a step and what a sample takes; a barrier and none how messages meet. A
    strategy that has a codec between workers and servers is run itself: no other tells what that takes.

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
    common: dict[str, Any] = {"backend": "dask", "evaluate_every": 1e6, "checkpoint_every": None}
    barrier = experiment.but(strategy="bsp", stop={"updates": batches}, **common)
    none = experiment.but(strategy="asp", batch_size=smaller, stop={"updates": batches * workers}, **common)
    coded = [each for each in experiment.strategy.compositions if codec_of(each) != NO_CODEC]
    if (
        len(experiment.strategy.compositions) == 1
        and coded
        and not isinstance(coded[0].placement, Collective)
    ):
        return [barrier, none, experiment.but(stop={"updates": batches}, **common)]
    return [barrier, none]


def with_stamps(experiment: Experiment) -> Experiment:
    """Return the experiment with stamps of its messages and CPU times of its steps."""
    return experiment.but(connection={**experiment.connection.model_dump(), "stamps": True})


def calibrate(
    experiment: Experiment,
    batches: int = _BATCHES,
    *,
    with_links: bool = True,
    on_step: Callable[[str], None] = lambda text: None,
) -> Calibration:
    """Measure the machines of an experiment on Dask: short runs, and the links between workers.

    Both probes are run twice, in turns: by how much one run differs from the next belongs into bands.

    Parameters
    ----------
    experiment : Experiment
        Its model, data and workers; with a `scheduler`, the cluster that is measured.
    batches : int
        Global batches of each run.
    with_links : bool
        Whether messages of several sizes are timed between workers, as `psbench doctor` does.
    on_step : callable
        Called with what begins, in words.

    Raises
    ------
    ParameterError, BackendError, DataError
    """
    runs, load = list[Run](), os.getloadavg()[0] / (os.cpu_count() or 1)
    for turn in range(_TURNS):
        for probe in probes_of(experiment, batches):
            on_step(f"{probe.title}, {batches} batches of {probe.batch_size} samples")
            runs.append(run_experiment(with_stamps(probe.but(seed=probe.seed + turn))))
    link = None
    if with_links and experiment.num_workers > 1:
        on_step("links between workers")
        link = measured_link(experiment.but(backend="dask"), on_step)
    found = Calibration.of(runs, link)
    if load < _BUSY or experiment.has_scheduler:
        return found
    busy = f"load before: {load:.2f} a core; other processes were running, and the times include that"
    return replace(found, remarks=(*found.remarks, busy))


def measured_link(
    experiment: Experiment, on_step: Callable[[str], None] = lambda text: None
) -> MeasuredLink | None:
    """Return the median link between Dask workers; None with fewer than two, or without connections."""
    from statistics import median

    from psbench.backends.dask import diagnose

    found = diagnose(experiment, on_step=on_step, with_steps=False)
    on_step(found.sampled)
    links = [link for link in found.links.values() if link is not None]
    if not links:
        return None
    rate = median(min(link.up_mbit_s, link.down_mbit_s) for link in links)
    seconds = {0: [link.latency_s for link in links]}
    for link in links:
        for num_bytes, *both in link.by_size:
            seconds.setdefault(num_bytes, []).extend(both)
    ways = median(link.up_mbit_s for link in links), median(link.down_mbit_s for link in links)
    together = sum(link.up_mbit_s for link in found.at_once.values() if link is not None)
    return MeasuredLink(median(seconds[0]), rate, seconds, *ways, together)
