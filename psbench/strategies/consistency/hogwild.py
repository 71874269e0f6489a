"""Hogwild: workers write into one model in shared memory, and no lock keeps them apart."""

from __future__ import annotations

from psbench.core import Action, ClusterView, Commit, Discard, Hold, Push, Release, SetTimer, parameter
from psbench.core.shared_memory import WRITING, WritesUnlocked


class Hogwild(WritesUnlocked):
    """Write each gradient into the model as it is ready, for `write_s` seconds, and go on.

    Notes
    -----
    Reduces to: ASP, where writing takes no time; plain SGD with one worker.
    Our reading: an update is seen by others once all of it is written. One of a worker that leaves while it
    writes is dropped.
    """

    name = "hogwild"
    source = "Recht et al. 2011; thesis 3.1"
    singly = True

    write_s: float = parameter(
        0.001, "time in which a worker writes an update into the model", unit="s", source="our reading", ge=0
    )

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Begin to write."""
        if not self.write_s:
            return [Commit([push]), Release(push.worker)]
        return [SetTimer(view.now + self.write_s, str(push.id)), Hold(push.worker, WRITING)]

    def on_timer(self, key: str, view: ClusterView) -> list[Action]:
        """Commit the written update."""
        push = view.pending.get(int(key))
        return [] if push is None else [Commit([push]), Release(push.worker)]

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """Discard the unfinished update of a worker that has left."""
        return [Discard(push, "left") for push in view.pending.values() if push.worker == worker]

    def on_drained(self, view: ClusterView) -> list[Action]:
        """Commit the unfinished updates, in the order in which they were begun."""
        return [Commit([push]) for push in sorted(view.pending.values(), key=lambda push: push.id)]
