"""Asynchronous Parallel: no worker waits for another."""

from __future__ import annotations

from psbench.core import Action, ClusterView, Commit, Consistency, Push, Release


class ASP(Consistency):
    """Commit each push at once and release its worker.

    Notes
    -----
    Reduces to: plain SGD with one worker. n equal workers in strict rotation see a staleness of n - 1.
    """

    name = "asp"
    source = "Recht et al. 2011; thesis 2.1.2, eq. 2.3"
    waits_for = "none"
    singly = True

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Commit, and release the worker."""
        return [Commit([push]), Release(push.worker)]
