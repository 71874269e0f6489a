"""Energy of this machine's processors, by the RAPL counters of Intel and AMD."""

from __future__ import annotations

import re
import threading
from pathlib import Path

#: where Linux has the counters
POWERCAP = Path("/sys/class/powercap")
#: a whole package; its cores and its memory have zones of their own below it
_PACKAGE = re.compile(r"intel-rapl:\d+")
#: seconds between two looks: a counter of 262 kJ at 500 W begins again every nine minutes
_EVERY_S = 60.0


class RaplMeter:
    """Joules of all processor packages since the meter was made; it looks once a minute until it ends.

    Parameters
    ----------
    folder : path
        Of the kernel's power capping.

    Attributes
    ----------
    is_there : bool
        Whether the machine has counters that this process may read; on many systems only root may.
    """

    def __init__(self, folder: Path = POWERCAP) -> None:
        zones = sorted(each for each in folder.glob("intel-rapl:*") if _PACKAGE.fullmatch(each.name))
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._microjoules = 0
        self._last = {zone: count for zone in zones if (count := _count(zone, "energy_uj")) is not None}
        self.is_there = bool(self._last)
        if self.is_there:
            threading.Thread(target=self._look_often, name="psbench-rapl", daemon=True).start()

    def end(self) -> float | None:
        """Return the joules, and look no more; None without counters."""
        self._ended.set()
        self._look()
        return self._microjoules / 1e6 if self.is_there else None

    def _look_often(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._look()

    def _look(self) -> None:
        with self._lock:
            for zone, before in self._last.items():
                now = _count(zone, "energy_uj")
                if now is None:
                    continue
                # a counter that has reached its end begins at 0 again
                turn = (_count(zone, "max_energy_range_uj") or 0) if now < before else 0
                self._microjoules += max(0, now + turn - before)
                self._last[zone] = now


def _count(zone: Path, name: str) -> int | None:
    try:
        return int((zone / name).read_text())
    except (OSError, ValueError):
        return None
