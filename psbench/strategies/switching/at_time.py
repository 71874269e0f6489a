"""Switch at a set time of the run."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.core import Evaluated, Switching, parameter


class AtTime(Switching):
    """Switch at a set time of the run, like a manual switch at this time.

    The backend reports the time as a request to switch, and no row of the log before it tells that it was
    planned: a run that is forked is the same until then, row by row.
    """

    name = "at_time"
    source = "manual, at a set time"

    at_s: float = parameter(10.0, "time of the run at which to switch", unit="s", ge=0)

    @property
    def moment_s(self) -> float:  # pyrefly: ignore[bad-override]
        """The time of the run at which to switch."""
        return self.at_s

    def why_not(self, evaluations: Sequence[Evaluated], trained: float, planned: float | None) -> str:
        """Return that the run ended before that time."""
        return f"the run ended before the switch at {self.at_s:g} s"
