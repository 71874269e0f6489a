"""Asynchronous Parallel: no worker waits for another."""

from __future__ import annotations

from typing import ClassVar

from psbench.core.actions import Action, Commit, Release
from psbench.core.events import Push
from psbench.core.parts import Consistency
from psbench.core.view import ClusterView


class ASP(Consistency):
    """Commit each push alone, at once, and release its worker.

    Notes
    -----
    Reduces to: plain SGD with one worker. n equal workers in strict rotation see a staleness of n - 1.
    """

    name: ClassVar[str] = "asp"
    source: ClassVar[str] = "Recht et al. 2011; thesis 2.1.2, eq. 2.3"
    waits_for = "none"
    singly: ClassVar[bool] = True

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Commit and go on."""
        return [Commit([push]), Release(push.worker)]
