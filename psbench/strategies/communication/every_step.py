"""Push after every step."""

from __future__ import annotations

from psbench.core import Communication, WorkerPolicy


class EveryStep(Communication):
    """Push the gradient after every step, and wait for the reply."""

    name = "every_step"
    source = "Li et al. 2014"

    def worker_policy(self) -> WorkerPolicy:
        return WorkerPolicy()
