"""No server, and no replica either: each worker holds a share of the state, as in ZeRO and FSDP."""

from __future__ import annotations

from typing import Literal

from psbench.core import parameter
from psbench.core.collective import NetworkTimes, Shares
from psbench.strategies.placement.all_reduce import Ring

SOURCE = "Rajbhandari et al. 2020 (ZeRO)"


class Sharded(Shares, Ring):
    """All-Reduce whose workers each hold 1/n of the state and gather parameters for each computation.

    With k vectors of the optimizer, a worker holds of each parameter, in 4 bytes each: parameter, gradient
    and k/n (stage 1); parameter and (1 + k)/n (2); (2 + k)/n (3), where parameters are gathered for each
    forward and once more for each backward pass: 3 (n - 1)/n of a vector travel, not 2 (n - 1)/n.

    Notes
    -----
    Reduces to: `all_reduce`, whose models are the same after every update; so are bytes and time at stages 1
    and 2. Only what is held differs, and what travels at stage 3.
    Our readings: the gathering takes half of a ring each time, and hides behind nothing; while a worker
    computes it holds a layer or more of the others' shares, which is not counted.
    Live, a reduce-scatter leaves each worker with the sum of its share, which it updates with that share of
    the optimizer's state; then parameters are gathered, at stage 3 twice one after the other, as forward and
    backward are one call. What is computed with is whole. A share is with its worker alone: if that
    one is lost, the run goes on from its last checkpoint as where a parameter server is, or ends. So failures
    and joins of the cluster are refused, and so are codecs, as what is gathered are parameters.

    Examples
    --------
    >>> from psbench.strategies.placement import AllReduce
    >>> ring, sharded = AllReduce(), Sharded()
    >>> [each.bytes_up(400, 4) + each.bytes_down(400, 4) for each in (ring, sharded)]
    [600, 900]
    >>> [each.worker_bytes(1000, kept=2, num_workers=4) for each in (ring, Sharded(stage=1), Sharded())]
    [16000, 10000, 4000]
    """

    name = "sharded"
    source = "Rajbhandari et al. 2020 (ZeRO); Zhao et al. 2023 (FSDP)"

    stage: Literal[1, 2, 3] = parameter(
        3, "sharded state: 1: of the optimizer; 2: also gradients; 3: also parameters", source=SOURCE
    )

    @property
    def gathers(self) -> int:
        """Number of times that parameters are gathered for a step."""
        return 2 if self.stage == 3 else 1

    def reduce_s(self, network: NetworkTimes, num_bytes: int, workers: list[int]) -> float:
        """Return the time of half a ring, and of half a ring for each time that parameters are gathered."""
        return super().reduce_s(network, num_bytes, workers) * (1 + self.gathers) / 2

    def bytes_down(self, payload: int, num_workers: int) -> int:
        """Return the bytes that a worker sends when parameters are gathered."""
        return super().bytes_down(payload, num_workers) * self.gathers

    def worker_bytes(self, num_parameters: int, kept: int, num_workers: int) -> int:
        shared = {1: kept, 2: 1 + kept, 3: 2 + kept}[self.stage]
        return 4 * num_parameters * (2 + kept - shared) + -(-4 * num_parameters * shared // num_workers)
