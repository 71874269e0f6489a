"""Put small faults into the coordinator, and say which live runs show: python -m tests.mutation.live."""

from __future__ import annotations

import argparse
import random
import signal
import sys
from pathlib import Path

from tests.live_runs import run_live_campaign
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.runner import apply, in_fork

FOLDER = Path("psbench/backends/dask/coordinator")
#: CPU seconds for a block of schedules: more is an endless loop
_MOST_S = 60.0


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.mutation.live", description=__doc__)
    asked.add_argument("--sample", type=int, default=10, help="how many faults")
    asked.add_argument("--seed", type=int, default=1, help="of the sample")
    asked.add_argument("--schedules", type=int, default=2000, help="to be played with each")
    given = asked.parse_args()
    # the loop that owns the sockets has no part in schedules
    files = sorted({*FOLDER.glob("*.py")} - {FOLDER / "coordinator.py"})
    every = [mutant for path in files for mutant in mutants_of(path)]
    chosen = random.Random(given.seed).sample(every, given.sample)
    found = 0
    for mutant in chosen:
        seen = in_fork(lambda mutant=mutant: _play(mutant, given.schedules), 3600.0)
        schedules, error = seen if isinstance(seen, tuple) else (0, str(seen or "does not end"))
        found += bool(error)
        print(
            f"{f'after {schedules:5}' if error else 'NOT FOUND':>11}: {mutant}\n{'':13}{error[:120]}",
            flush=True,
        )
    print(f"{found} of {len(chosen)} found; {len(every)} there are")
    return 0


def _play(mutant: Mutant, schedules: int) -> tuple[int, str]:
    """Return after how many schedules a fault was seen, and what was said of it."""
    apply(mutant)
    signal.setitimer(signal.ITIMER_VIRTUAL, _MOST_S)
    done = run_live_campaign(
        schedules,
        seed=1,
        progress=lambda _: signal.setitimer(signal.ITIMER_VIRTUAL, _MOST_S),
        most_failures=1,
        shrinks=False,
    )
    return done.schedules, done.findings[0][3] if done.findings else ""


if __name__ == "__main__":
    sys.exit(main())
