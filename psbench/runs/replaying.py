"""Replay of a run, or of the folder that it was saved in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from psbench.backends.replay import Decision, Replay
from psbench.core.engine import Engine
from psbench.core.log import EventLog, Kind
from psbench.core.rounding import largest_remainder
from psbench.core.view import ClusterView
from psbench.core.wire_size import WireSize
from psbench.errors import ParameterError, in_short
from psbench.results.run import Run
from psbench.seeds import Streams


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
    return _replay_of(run).play()


def decisions(run: Run) -> Iterator[Decision]:
    """Take every decision of a recorded run again, one after another.

    The log says what happened and what was decided; the actions say the rest, such as an update's rate or
    the epoch at which a worker reads the schedule.

    Raises
    ------
    ReplayMismatch
        At the first row that differs from the recorded one.
    """
    return _replay_of(run).decisions()


def _replay_of(run: Run) -> Replay:
    again = EventLog()
    return Replay(run.log, again, _engine(run, again))


def _engine(run: Run, log: EventLog) -> Engine:
    """Return an engine as it was before the run."""
    experiment, meta = run.experiment, run.meta
    changes = [json.loads(run.log.text(n))["epochs"] for n in run.log.of_kind(Kind.RESUME)["text"]]
    epochs = changes[0][0] if changes else experiment.stop.epochs
    view = ClusterView(
        num_workers=meta["num_workers"],
        dataset_size=meta["dataset_size"],
        global_batch=experiment.batch_size,
        epochs=epochs,
        capacity=meta.get("capacity", ()),
        rate=experiment.worker_optimizer.rate,
        rng=Streams(experiment.seed).generator("strategy"),
    )
    batches = largest_remainder(experiment.batch_size, [1.0] * view.num_workers)
    buffer_bytes = meta["model_bytes"] - 4 * meta["num_parameters"]
    size = WireSize(meta["layout"], buffer_bytes, shapes=meta.get("shapes", ()))
    strategy, plateau = experiment.strategy, experiment.plateau
    return Engine(strategy, view, batch_sizes=batches, wire_size=size, log=log, plateau=plateau)
