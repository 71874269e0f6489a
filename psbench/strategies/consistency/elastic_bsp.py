"""Elastic BSP: a barrier at the time when all workers are predicted to push close together."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import PrivateAttr

from psbench.core import Action, ClusterView, Commit, Consistency, Hold, Push, Release, parameter

SOURCE = "Zhao et al. 2019, ElasticBSP; Zhao et al. 2021, ZipLine"

#: pushes after which a worker's interval is known
_MONITORED = 2


class ElasticBSP(Consistency):
    """Predict the workers' pushes, and set the barrier where they are closest together.

    A superstep has two phases. While it monitors, each push is committed at once and its worker is released.
    When every worker has pushed twice, `zipline` chooses one predicted push of each; from then on a worker
    waits after its chosen push. When all wait, all are released, and the next superstep begins.

    Notes
    -----
    Reduces to: plain SGD with one worker. With lookahead = 1 every worker makes exactly one more step after
    the monitoring phase; that is a barrier every third step or so and not BSP.
    Our reading: predictions cover the R pushes *after* the last one, so no worker is past its push when it is
    chosen. Pushes are committed one by one as under ASP, at the barrier too. A worker that joins after the
    choice waits for the barrier; the others do not wait for a worker that has left.
    The default is that of Hermes' comparison; the authors use 15 to 960.
    """

    name = "elastic_bsp"
    source = SOURCE
    waits_for = "all"
    singly = True

    lookahead: int = parameter(
        150,
        "R: number of predicted pushes of each worker",
        unit="pushes",
        source="Hermes, E-BSP",
        ge=1,
        le=10_000,
    )

    #: remaining pushes of each worker in this phase; without workers that have made all
    _remaining: dict[str, int] = PrivateAttr(default_factory=dict)
    _chosen: bool = PrivateAttr(False)  # whether the barrier of this superstep is chosen

    def on_start(self, view: ClusterView) -> list[Action]:
        """Begin the first superstep."""
        return self._monitor(view)

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Commit; release the worker unless it has reached the barrier."""
        commit = Commit([push])
        self._count_push(push.worker)
        if not self._chosen:
            self._choose_if_known(view)
            return [commit, Release(push.worker)]
        if not self._remaining:
            return [commit, *self._monitor(view)]
        continues = str(push.worker) in self._remaining
        return [commit, Release(push.worker) if continues else Hold(push.worker, "barrier")]

    def on_join(self, worker: int, view: ClusterView) -> list[Action]:
        """Join the monitoring, or wait for an already chosen barrier."""
        if view.num_active == 1:  # no other worker to wait for
            return self._monitor(view)
        if self._chosen:
            return [Hold(worker, "barrier")]
        self._remaining[str(worker)] = _MONITORED
        return [Release(worker)]

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Stop waiting for a worker that has left."""
        self._remaining.pop(str(worker), None)
        if not self._chosen:
            self._choose_if_known(view)
            return []
        return [] if self._remaining else self._monitor(view)

    def _count_push(self, worker: int) -> None:
        left = self._remaining.pop(str(worker), 0) - 1
        if left > 0:
            self._remaining[str(worker)] = left

    def _monitor(self, view: ClusterView) -> list[Action]:
        self._chosen = False
        self._remaining = {str(worker): _MONITORED for worker in view.active}
        return [Release(worker) for worker in view.waiting]

    def _choose_if_known(self, view: ClusterView) -> None:
        """Choose the barrier once every worker's interval is known."""
        if self._remaining:
            return
        workers = view.active
        steps = zipline([self._predicted(worker, view) for worker in workers])
        self._remaining = {str(worker): step for worker, step in zip(workers, steps, strict=True)}
        self._chosen = True

    def _predicted(self, worker: int, view: ClusterView) -> list[float]:
        seen = view.workers[worker]
        interval = seen.last_push_s - seen.previous_push_s
        return [seen.last_push_s + step * interval for step in range(1, self.lookahead + 1)]


def zipline(pushes: Sequence[Sequence[float]]) -> list[int]:
    """Return one push index per worker such that the pushes are closest together.

    One walk through all pushes in time keeps each worker's latest. Whenever all have one, the span from the
    oldest kept to the present is a candidate; the smallest wins, and of equal ones the first.

    Parameters
    ----------
    pushes : sequence of sequences of float, seconds
        Of each worker, ascending.

    Returns
    -------
    list of int, >= 1
        One a worker.

    Notes
    -----
    Optimal: the best choice that ends at some push takes of every other worker the latest not after it, and
    the walk looks at all of these. O(m log m) for m pushes altogether.

    Source
    ------
    Zhao et al. (2021), "ZipLine", Theorem 1.

    Examples
    --------
    >>> zipline([[10, 20, 30, 40], [16, 29, 42, 55], [9, 17, 25, 33]])
    [2, 1, 2]
    """
    walk = sorted((at, worker, step) for worker, own in enumerate(pushes) for step, at in enumerate(own, 1))
    kept: dict[int, tuple[float, int]] = {}  # each worker's latest push; the oldest of all comes first
    best, chosen = float("inf"), [1] * len(pushes)
    for at, worker, step in walk:
        kept.pop(worker, None)
        kept[worker] = at, step
        if len(kept) == len(pushes) and (span := at - next(iter(kept.values()))[0]) < best:
            best, chosen = span, [kept[w][1] for w in range(len(pushes))]
    return chosen
