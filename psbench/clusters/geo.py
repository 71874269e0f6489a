"""Test beds of low-communication training with a clock: four regions, and four unequal workers."""

from __future__ import annotations

from pydantic import SerializeAsAny

from psbench.clusters.cluster import Cluster, Machine, usual
from psbench.clusters.each_worker import OfEachWorker
from psbench.clusters.step_time import Constant, StepTime

HALOS = "Kim et al. 2025 (HALoS), simulator utnslab/halos, examples/env.yaml"
TOY = "Liu et al. 2024 (Async Local-SGD), notebook google-deepmind/asyncdiloco"

#: of four workers in each of four regions; the simulator divides them by the largest
_SPEEDS = (
    (0.232, 0.907, 0.828, 0.347),
    (0.574, 0.531, 0.722, 0.194),
    (0.852, 0.132, 0.896, 0.107),
    (0.827, 0.515, 0.527, 0.788),
)
#: of each region to the first, Mbit/s; its own network for the first
LINKS_TO_FIRST = (100_000.0, 537.0, 935.0, 202.0)
_WORKERS = tuple(mbit for mbit in LINKS_TO_FIRST for _ in range(4))
#: seconds that a worker takes for a step
_TOY_STEPS = (0.58, 0.75, 1.51, 3.33)


class HalosGeo(Cluster):
    """HALoS' four regions of four workers, a server in the first; links between regions: 0.1 to 0.9 Gbit/s.

    Notes
    -----
    A worker's link is its region's to the first, where a single server is. For `halos`, whose servers are in
    the regions, set `bandwidth_mbit_s: 100000` (within a region) and `region_links_mbit_s` of the aggregation
    to [100000, 537, 935, 202]; for a ring over all, `bandwidth_mbit_s: 127`. The paper's messages are of
    Pythia-70M: with a smaller model divide the links by as much, or communication costs nothing.
    The authors' simulator has no latency, no variation of step times, and no queue at a server. It divides
    the speeds of examples/env.yaml by the largest (utnslab/halos 4b5bf73, src/halos/simulation/common.py,
    line 447), and the fastest worker takes 238.391 ms for a batch of 64 (examples/pythia_70m_commons.sh,
    line 17).

    Examples
    --------
    >>> profile = HalosGeo().profile()
    >>> profile.num_workers, round(profile.mean_step_s(0, 64), 4)
    (16, 0.932)
    """

    name = "halos_geo"
    source = HALOS

    step_time: SerializeAsAny[StepTime] = usual("step_time", Constant(), HALOS)
    seconds_per_sample: float = usual("seconds_per_sample", 0.238391 / 64, HALOS)
    seconds_per_step: float = usual("seconds_per_step", 0.0)
    bandwidth_mbit_s: OfEachWorker = usual("bandwidth_mbit_s", _WORKERS, HALOS)
    latency_s: OfEachWorker = usual("latency_s", 0.0, HALOS)
    # no queue
    server_bandwidth_mbit_s: OfEachWorker = usual("server_bandwidth_mbit_s", 1e9, HALOS)

    def machines(self) -> list[Machine]:
        """Return the workers, region after region."""
        fastest = max(map(max, _SPEEDS))
        return [Machine(speed / fastest, f"region {r}") for r, own in enumerate(_SPEEDS) for speed in own]


class AsyncDilocoToy(Cluster):
    """Four workers of the Async Local-SGD notebook: .58, .75, 1.51 and 3.33 s a step, messages take no time.

    Examples
    --------
    >>> [round(AsyncDilocoToy().profile().mean_step_s(worker, 32), 2) for worker in range(4)]
    [0.58, 0.75, 1.51, 3.33]
    """

    name = "asyncdiloco_toy"
    source = TOY

    step_time: SerializeAsAny[StepTime] = usual("step_time", Constant(), TOY)
    seconds_per_sample: float = usual("seconds_per_sample", 1e-12, TOY)
    seconds_per_step: float = usual("seconds_per_step", _TOY_STEPS[0], TOY)
    bandwidth_mbit_s: OfEachWorker = usual("bandwidth_mbit_s", 1e9, TOY)
    latency_s: OfEachWorker = usual("latency_s", 0.0, TOY)
    # no queue
    server_bandwidth_mbit_s: OfEachWorker = usual("server_bandwidth_mbit_s", 1e9, TOY)

    def machines(self) -> list[Machine]:
        """Return the workers, the fastest first."""
        return [Machine(_TOY_STEPS[0] / seconds) for seconds in _TOY_STEPS]
