"""How a run stops before its end: by hand, or because the Dask worker of a server is being retired."""

from __future__ import annotations

import math
from collections.abc import Callable

from psbench.backends.dask.coordinator.checkpointing import CheckpointWriter
from psbench.backends.dask.coordinator.membership import Membership
from psbench.backends.dask.coordinator.run_state import RunState, Script, Wait
from psbench.backends.dask.protocol.roles import names_or_count, worker_name

#: seconds that a stop waits for a version to write a checkpoint of, before it waits for the workers' parts
_STOP_S = 1.5


class Stopping:
    """Ends a run that is asked to stop, with a checkpoint of its next version if wanted and if it comes soon.

    Parameters
    ----------
    run : RunState
    checkpoints : CheckpointWriter
    membership : Membership
        Lets other roles than servers go.

    Attributes
    ----------
    latest : float, seconds of the run
        When a stop waits no longer for a version.
    retired : str
        The server whose Dask worker is being retired, so that the run goes on elsewhere; empty if none is.
    """

    def __init__(self, run: RunState, checkpoints: CheckpointWriter, membership: Membership) -> None:
        self._run, self._checkpoints, self._membership = run, checkpoints, membership
        self.latest = math.inf
        self._leaving: list[str] = []  # roles that are to leave once it is known who is dead
        self.retired = ""

    def stop(self, with_checkpoint: bool) -> None:
        """End the run."""
        if with_checkpoint and self._run.training:
            self._checkpoints.stop()
            self.latest = self._run.now + _STOP_S
        else:
            self._run.ending.stop()
        if not with_checkpoint:  # by hand: it ends here, with what it has
            self.retired = ""

    def leave_later(self, name: str) -> None:
        """Let a role go when it is known who is dead."""
        self._leaving.append(name)

    def let_go(self) -> None:
        """Let the roles go whose Dask workers are being retired; a server's run goes on elsewhere."""
        leaving, self._leaving = self._leaving, []
        for name in leaving:
            if not (self._run.ending or self._membership.let_go(name)):
                self.retired = name
                self.stop(with_checkpoint=True)

    def without_version(self, write: Callable[[str], None]) -> Script[None]:
        """End a run with a checkpoint of this moment, as no version came in time.

        `write` writes a checkpoint, by its name, and ends the run.
        """
        run = self._run
        if run.ending:
            return
        if run.engine.measuring:  # until what is measured has come
            yield Wait(lambda: bool(run.events) or bool(run.ending), lambda: computing(run))
        else:
            write("stopped")


def computing(run: RunState) -> str:
    """Return which workers compute, in words."""
    computing = [*map(worker_name, run.view.computing)]
    return names_or_count(computing, run.view.num_active, "workers") or "the workers"
