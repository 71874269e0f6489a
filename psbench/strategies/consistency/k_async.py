"""k-ASP, k-batch-ASP and n-softsync: commit every k pushes, however stale; nothing is discarded.

Dutta et al. call the first two K-async and K-batch-async.
"""

from __future__ import annotations

from psbench.core import Action, ClusterView, Commit, Consistency, Hold, Push, Release, parameter
from psbench.errors import ParameterError
from psbench.strategies.consistency.k_sync import SOURCE, _at_most_n, hold_if_pending

SOFTSYNC_SOURCE = "Gupta et al. 2016; Zhang et al. 2016; thesis 3.2.2; DBS-SGD eqs. 8-10"


class KASP(Consistency):
    """Commit k pushes of different workers, of any staleness; release only these workers.

    Notes
    -----
    Reduces to: ASP when k = 1, at the same rate; BSP when k = n. Nothing is discarded. The four k-variants
    take the mean of their k gradients at the rate lr, which is lr/k for each; the catalogue's `asp` takes
    lr/n, which `lr_scaling: by_share` is here (lr k/n for the mean).
    Our reading: a contributor waits for the commit that uses its push, since k *different* workers are
    asked for. With fewer than k workers left, all of them are enough.
    """

    name = "k_asp"
    source = SOURCE

    k: int = parameter(2, "pushes in a version", unit="pushes", source=SOURCE, ge=1)

    def check(self, num_workers: int, global_batch: int) -> None:
        _at_most_n(self, self.k, num_workers)

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        return self._commit(view) or [Hold(push.worker, "k pushes")]

    def on_join(self, worker: int, view: ClusterView) -> list[Action]:
        """Hold a returning worker whose push is still pending: k *different* workers are needed."""
        return hold_if_pending(worker, view)

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Commit if the remaining pushes suffice: fewer than k workers may remain."""
        return self._commit(view)

    def _commit(self, view: ClusterView) -> list[Action]:
        if not view.pending or len(view.pending) < min(self.k, view.num_active):
            return []
        return [Commit(view.buffered()), *[Release(worker) for worker in view.waiting]]


class _EveryPushes(Consistency):
    """Base of rules that commit after a number of pushes; no worker ever waits."""

    waits_for = "none"

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Release at once; commit if the push completes a version."""
        full = len(view.pending) >= self._needed(view)
        commit: list[Action] = [Commit(view.buffered())] if full else []
        return [*commit, Release(push.worker)]

    def _needed(self, view: ClusterView) -> int:
        raise NotImplementedError


class KBatchASP(_EveryPushes):
    """Commit every k pushes, of any staleness, possibly several of one worker; no worker waits.

    Notes
    -----
    Reduces to: ASP when k = 1, at the same rate; see `KASP` for the rates. A worker pulls the current version
    at once, which is the one it has if nothing was committed meanwhile. Nothing is discarded.
    """

    name = "k_batch_asp"
    source = SOURCE

    k: int = parameter(2, "pushes in a version", unit="pushes", source=SOURCE, ge=1)

    def _needed(self, view: ClusterView) -> int:
        return self.k


class NSoftsync(_EveryPushes):
    """Commit every floor(workers / n) pushes, of any staleness, possibly several of one worker.

    Notes
    -----
    Reduces to: k-batch-ASP with k = floor(workers / n), if staleness is not weighed; ASP when n is the number
    of workers. n = 1 waits for as many pushes as there are workers, but has no barrier: it is not BSP.
    The staleness of a push is about n on equal workers. `staleness_weighted` divides the rate accordingly.
    Our reading: one worker may fill several places of a version ("just like k-batch-ASP", thesis); the number
    of workers is that of the cluster as specified.
    """

    name = "n_softsync"
    source = SOFTSYNC_SOURCE

    n: int = parameter(
        2,
        "approximate number of versions for every push of each worker",
        unit="versions",
        source=SOFTSYNC_SOURCE,
        ge=1,
    )

    def check(self, num_workers: int, global_batch: int) -> None:
        """Require at least one push a version."""
        if self.n > num_workers:
            raise ParameterError(
                f"{self.name}: n = {self.n} versions need as many workers, but there are {num_workers}; "
                f"give n between 1 and {num_workers}"
            )

    def _needed(self, view: ClusterView) -> int:
        return view.num_workers // self.n
