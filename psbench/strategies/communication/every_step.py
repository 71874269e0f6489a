"""Push after every step."""

from __future__ import annotations

from psbench.core import Communication, WorkerPolicy


class EveryStep(Communication):
    """A worker pushes its gradient after every step, and waits for the answer."""

    name = "every_step"
    source = "Li et al. 2014"

    def worker_policy(self) -> WorkerPolicy:
        """Return the worker policy that always pushes."""
        return WorkerPolicy()
