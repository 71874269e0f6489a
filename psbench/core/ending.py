"""The end of a run, and the actions of an answer that are still performed then."""

from __future__ import annotations

FINISHED, STOPPED, DIVERGED = "finished", "stopped", "diverged"


class Ending:
    """The end of a run; true once there is one.

    Attributes
    ----------
    status : str
        Empty while the run goes on; see `Outcome`.
    reason : str
    unanswered : bool
        Whether actions of the engine's last answer were left undone: their workers got no answer.
    """

    __slots__ = ("reason", "status", "unanswered")

    def __init__(self) -> None:
        self.status = self.reason = ""
        self.unanswered = False

    def __bool__(self) -> bool:
        return bool(self.status)

    def end(self, status: str, reason: str) -> None:
        """End the run, unless it has ended already."""
        if not self.status:
            self.status, self.reason = status, reason

    def finish(self, reason: str) -> None:
        """End the run by one of its rules."""
        self.end(FINISHED, reason)

    def stop(self) -> None:
        """End the run as the user asked."""
        self.end(STOPPED, "stopped by hand")

    def cuts_answer(self, completely: bool = False) -> bool:
        """Return whether an action that ends the run also drops the rest of its answer.

        No worker starts another step then. `completely`: a checkpoint follows, which has all of the version
        that a run finishes with.
        """
        self.unanswered = True
        return not (completely and self.status == FINISHED)
