"""Quorum: commit the first K pushes and those within a grace period; drop later ones."""

from __future__ import annotations

from typing import Self

from pydantic import PrivateAttr, model_validator

from psbench.core import ClusterView, Consistency, Push, parameter
from psbench.core.actions import Action, Commit, Discard, Hold, Release, SetTimer, Tell
from psbench.errors import ParameterError

SOURCE = "Decoupled DiLoCo 2026"
#: the order to push at the end of the step that is being computed
ASKED = "asked"
QUORUM, GRACE = "quorum", "grace for the others"


class Quorum(Consistency):
    """Commit the first K pushes of the current version and those in a grace period; drop later pushes.

    The first push of a round asks the workers that still compute for theirs, at the end of their step: a slow
    one takes part with fewer steps, instead of being waited for. A worker whose push comes too late is sent
    what there is, and asked in the round that is under way.

    Parameters
    ----------
    quorum : int, workers, >= 0
        K; 0 is all of them. With fewer left, all of them are enough.
    asks : bool
        Whether the first push asks for those of the others. Only workers whose communication part
        understands the order follow it (`asked_fragments`); else each makes all its steps.
    grace_steps : int, steps, >= 0
        tau: the grace is what this many steps of the slowest leave after the wait for the quorum and a
        message; 0: it is `grace_s`.
    grace_share : float, 0 to 1
        gamma: the share of the grace period to use.

    Notes
    -----
    Reduces to: BSP with K = 0 and asks = no; `k_bsp` whose late work is dropped on arrival without a grace.
    The grace is gamma clip(tau xi_step - xi_quorum - xi_sync, 0, grace_s): xi_step the longest step of those
    that have pushed, xi_quorum from the first push to the K-th, xi_sync the longest message of the round.
    Our readings, as the authors have no public code: a round begins when the fastest worker has made its
    steps; one round is under way at a time, where re-implementations have two; xi_sync is of pushes.

    Source
    ------
    Decoupled DiLoCo (2604.21428), known from two re-implementations; unverified against the paper's text.
    """

    name = "quorum"
    source = SOURCE
    reads = ("compute_s", "send_s")
    current_only = True

    quorum: int = parameter(0, "pushes that a version waits for; 0: all", unit="workers", source=SOURCE, ge=0)
    asks: bool = parameter(
        True, "whether the first push of a round makes the server request the others' pushes", source=SOURCE
    )
    grace_s: float = parameter(
        0.0, "longest wait for further pushes after a quorum", unit="s", source=SOURCE, ge=0
    )
    grace_steps: int = parameter(
        0, "steps within which a version is due; 0: no limit", unit="steps", source=SOURCE, ge=0
    )
    grace_share: float = parameter(1.0, "share of the grace period to use", source=SOURCE, ge=0, le=1)

    _began: float = PrivateAttr(default=0.0)  # when the round's first push came
    _step_s: float = PrivateAttr(default=0.0)  # the longest of the round, seconds
    _send_s: float = PrivateAttr(default=0.0)
    _timed: int = PrivateAttr(default=-1)  # the version whose grace is under way

    @model_validator(mode="after")
    def _is_used(self) -> Self:
        if not self.grace_s and (self.grace_steps or self.grace_share < 1.0):
            raise ParameterError(
                f"consistency {self.name!r}: grace_steps and grace_share need a grace period, but grace_s "
                "is 0; set grace_s, its maximum, or remove them"
            )
        return self

    def check(self, num_workers: int, global_batch: int) -> None:
        """Require at least as many workers as the quorum."""
        if self.quorum > num_workers:
            raise ParameterError(
                f"{self.name}: quorum = {self.quorum} workers, but the cluster has {num_workers}; give "
                f"quorum between 0 and {num_workers}"
            )

    def grace(self, step_s: float, quorum_s: float, sync_s: float) -> float:
        """Return the seconds that a quorum waits for the others."""
        slack = self.grace_steps * step_s - quorum_s - sync_s if self.grace_steps else self.grace_s
        return self.grace_share * min(max(slack, 0.0), self.grace_s)

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Drop a late push; count one in time, and request the others' pushes with the first."""
        if push.base_version < view.version:
            return [Discard(push, "late"), self._release(push.worker, view)]
        assert push.stats is not None  # the backend sends what `reads` declares
        first = len(view.pending) == 1
        if first:
            self._began, self._step_s, self._send_s = view.now, 0.0, 0.0
        self._step_s = max(self._step_s, push.stats["compute_s"] / push.steps)
        self._send_s = max(self._send_s, push.stats["send_s"])
        done = self._commit(view)
        if any(isinstance(action, Commit) for action in done):
            return done
        asked = view.computing if first and self.asks else []
        reason = GRACE if self._timed == view.version else QUORUM
        return [*done, *(Tell(worker, {ASKED: True}) for worker in asked), Hold(push.worker, reason)]

    def on_timer(self, key: str, view: ClusterView) -> list[Action]:
        """Commit the pending pushes at the end of the grace period."""
        return self._open(view) if key == f"{GRACE} {view.version}" and view.pending else []

    def on_join(self, worker: int, view: ClusterView) -> list[Action]:
        """Release a newcomer, unless its last push is still pending."""
        pending = any(push.worker == worker for push in view.pending.values())
        return [Hold(worker, QUORUM) if pending else self._release(worker, view)]

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Commit if the remaining pushes suffice: fewer than K workers may remain."""
        return self._commit(view)

    def _release(self, worker: int, view: ClusterView) -> Release:
        return Release(worker, orders={ASKED: True} if view.pending and self.asks else {})

    def _commit(self, view: ClusterView) -> list[Action]:
        """Commit, or start the grace period, if enough workers have pushed."""
        count, all_of_them = len(view.pending), view.num_active
        if not count or count < min(self.quorum or all_of_them, all_of_them):
            return []
        grace = self.grace(self._step_s, view.now - self._began, self._send_s)
        if not view.num_computing or (grace <= 0 and self._timed < view.version):
            return self._open(view)
        if self._timed == view.version:
            return []
        self._timed = view.version
        return [SetTimer(view.now + grace, f"{GRACE} {view.version}")]

    def _open(self, view: ClusterView) -> list[Action]:
        return [Commit(view.buffered()), *(Release(worker) for worker in view.waiting)]
