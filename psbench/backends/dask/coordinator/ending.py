"""Whether a run has ended, and why."""

from __future__ import annotations


class Ending:
    """How a run ends; true once it does.

    Attributes
    ----------
    status : str
        Empty while the run goes on; see `Outcome`.
    reason : str
    """

    def __init__(self) -> None:
        self.status = self.reason = ""

    def __bool__(self) -> bool:
        return bool(self.status)

    def end(self, status: str, reason: str) -> None:
        """End the run, unless it has ended already."""
        if not self.status:
            self.status, self.reason = status, reason

    def finish(self, reason: str) -> None:
        """End the run by one of its rules."""
        self.end("finished", reason)

    def stop(self) -> None:
        """End the run as the user asked."""
        self.end("stopped", "stopped by hand")
