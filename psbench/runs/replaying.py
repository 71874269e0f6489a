"""Replay of a run, or of the folder that it was saved in."""

from __future__ import annotations

from pathlib import Path

from psbench.backends.replay import replay as replay_run
from psbench.errors import ParameterError, in_short
from psbench.results.run import Run


def replay(run: Run | str | Path) -> int:
    """Repeat every decision of a recorded run.

    Parameters
    ----------
    run : Run or path
        Simulated or live; or the folder that it was saved in.

    Returns
    -------
    int
        The number of log rows that were compared, all of them equal.

    Raises
    ------
    ReplayMismatch
        With the first row that differs: its number, what was recorded and what was decided now.
    DataError
        If the folder holds no run.
    """
    if isinstance(run, (str, Path)):
        run = Run.load(Path(run))
    if not isinstance(run, Run):
        raise ParameterError(f"replay: expected a run or the folder of a saved one, got {in_short(run)}")
    return replay_run(run)
