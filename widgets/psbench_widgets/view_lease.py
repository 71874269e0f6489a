"""Track which pages still display the panel."""

from __future__ import annotations

import time

#: how long a panel that no page shows lets its run go on: long enough to move a cell or open another view
GRACE_S = 5.0


class ViewLease:
    """Expires some seconds after a view has closed, unless another view reports within that time."""

    def __init__(self) -> None:
        self._closed_s: float | None = None
        self._seen: dict[str, bool] = {}

    def see(self, view: str, on: bool) -> None:
        """Record whether the charts of a view are visible."""
        self._seen[view] = on

    @property
    def is_seen(self) -> bool:
        """Return True if some view is visible; views that have not reported count as visible."""
        return not self._seen or any(self._seen.values())

    def renew(self) -> None:
        """Record that a view is open."""
        self._closed_s = None

    def view_closed(self) -> None:
        """Record that a view has closed; others may be open."""
        self._closed_s = time.monotonic()

    @property
    def has_expired(self) -> bool:
        """Return True if no view has reported for `GRACE_S` seconds after one closed."""
        return self._closed_s is not None and time.monotonic() - self._closed_s > GRACE_S
