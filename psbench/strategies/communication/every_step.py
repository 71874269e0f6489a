"""Push after every step."""

from __future__ import annotations

from typing import ClassVar

from psbench.core.parts import Communication
from psbench.core.worker_policy import WorkerPolicy


class EveryStep(Communication):
    """A worker pushes its gradient after every step, and waits for the answer.

    Examples
    --------
    >>> EveryStep().worker_policy().after_step({})
    'push'
    """

    name: ClassVar[str] = "every_step"
    source: ClassVar[str] = "Li et al. 2014"

    def worker_policy(self) -> WorkerPolicy:
        """Return the worker policy that always pushes."""
        return WorkerPolicy()
