"""LB-BSP: at every barrier the global batch is divided again, in proportion to predicted speeds."""

from __future__ import annotations

from typing import Literal

from pydantic import PrivateAttr

from psbench.core import Action, ClusterView, Orders, Push, Stragglers, parameter
from psbench.core.needs import NEEDS_BARRIER_TO_RECUT
from psbench.core.rounding import largest_remainder

SOURCE = "Chen et al. 2018, 2020 (LB-BSP)"


class LBBSP(Stragglers):
    """Split the global batch so that all workers take the same time.

    A worker's speed is its samples over its computing time. At a barrier the next speeds are predicted from
    the past ones, and the global batch is cut in proportion; its size never changes.

    Parameters
    ----------
    predictor : "ewma", "mean" or "last"
        An exponentially weighted mean, the mean of the last `window`, or the last.
    smoothing : float, 0 to 1
        For "ewma": weight of the last speed. 0.5 forgets a slow spell within a few barriers; less
        adapts later, and 1 is "last".

    Notes
    -----
    Reduces to: BSP when all are equally fast.
    Each gradient counts by its samples (aggregation `mean`), so that the update is that of the whole batch
    however it is cut.
    Our reading: the rule for processors, whose time grows with the batch. The paper predicts with a recurrent
    network (NARX) fed with the machines' load as well; ours is given the past speeds only. Shares are rounded
    by largest remainder and are at least 1; a newcomer is taken to have the mean speed until it has pushed.

    Examples
    --------
    >>> cut(256, [4, 3, 2, 1])
    [102, 77, 51, 26]
    """

    name = "lb_bsp"
    source = SOURCE
    reads = ("compute_s",)
    needs = (NEEDS_BARRIER_TO_RECUT,)
    varies_batch = True

    predictor: Literal["ewma", "mean", "last"] = parameter(
        "ewma", "predictor of a worker's next speed from its last speeds", source="our reading"
    )
    window: int = parameter(5, "speeds that the predictor `mean` averages", unit="steps", ge=1, le=10_000)
    smoothing: float = parameter(0.5, "weight of the latest speed in the predictor `ewma`", gt=0, le=1)

    #: samples per second by worker: the last speeds ("mean"), or one that stands for them
    _speeds: dict[str, list[float]] = PrivateAttr(default_factory=dict)
    _batches: dict[str, int] = PrivateAttr(default_factory=dict)  # the cut of the last barrier

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Record the worker's speed."""
        assert push.stats is not None  # the backend sends what `reads` declares
        speed = push.samples / push.stats["compute_s"]
        past = self._speeds.setdefault(str(push.worker), [])
        if self.predictor == "ewma" and past:
            speed = self.smoothing * speed + (1.0 - self.smoothing) * past[0]
        past.append(speed)
        del past[: -self.window if self.predictor == "mean" else -1]
        return []

    def on_applied(self, view: ClusterView) -> list[Action]:
        """Divide the global batch again, as the barrier opens."""
        workers = view.active
        known = {w: sum(past) / len(past) for w in workers if (past := self._speeds.get(str(w)))}
        if known:
            usual = sum(known.values()) / len(known)
            sizes = cut(view.global_batch, [known.get(w, usual) for w in workers])
            self._batches = {str(worker): size for worker, size in zip(workers, sizes, strict=True)}
        return []

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Order the worker's batch size if it has changed."""
        before = view.workers[worker].batch_size
        size = self._batches.get(str(worker), before)
        return {} if size == before else {"batch_size": size}


def cut(total: int, speeds: list[float]) -> list[int]:
    """Return whole shares of `total` in proportion to `speeds`, each at least 1 if there are enough."""
    sizes = largest_remainder(total, speeds)
    for worker, size in enumerate(sizes):
        if not size and max(sizes) > 1:
            sizes[sizes.index(max(sizes))] -= 1
            sizes[worker] = 1
    return sizes
