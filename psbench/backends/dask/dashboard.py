"""A page on Dask's dashboard, `/psbench`: the progress of each run, and which workers wait."""

from __future__ import annotations

import logging
import time
from typing import Any

from distributed import Client

from psbench.backends.dask.dashboard_page import TOPIC, add_page
from psbench.backends.dask.rpc import begin
from psbench.core.log import EventLog
from psbench.experiment import Experiment
from psbench.progress import LogProgress

logger = logging.getLogger(__name__)

#: seconds between two reports of a run
_EVERY_S = 1.0


class DashboardPage:
    """Reports one run to the page, which is created if missing.

    A scheduler without psbench has no such page; the run does not need it, and never waits for it.

    Parameters
    ----------
    client : Client
    experiment : Experiment
    facts : dict
        `dataset_size` and `num_workers`.
    run : str
        What names the run among all of the cluster.
    """

    def __init__(self, client: Client, experiment: Experiment, facts: dict[str, Any], run: str) -> None:
        self._client, self._title, self._run = client, experiment.title, run
        names = [composition.name for composition in experiment.strategy.compositions]
        self._progress, self._next = LogProgress(experiment.stop, {**facts, "compositions": names}), 0.0
        self._under_way = begin(client, lambda: client.run_on_scheduler(add_page))

    def show(self, log: EventLog) -> None:
        """Report the progress of a run with this log, unless it was reported a moment ago."""
        now = time.monotonic()
        if now < self._next or self._client.status != "running":
            return
        self._next = now + _EVERY_S
        progress = self._progress.read(log)
        self._tell(progress.fraction(), progress.words("dask"))

    def end(self, how: str) -> None:
        """Report that a run has ended."""
        if self._client.status == "running":
            self._tell(1.0, how)

    def _tell(self, share: float | None, words: str) -> None:
        said = {"run": self._run, "title": self._title, "share": share, "words": words}
        if not self._under_way.done():
            return  # the scheduler is busy, or frozen, which the run survives
        if error := self._under_way.exception():  # it is gone, or has no such page
            logger.info("Dask's dashboard was not updated: %s", error)
        self._under_way = begin(self._client, lambda: self._client.log_event(TOPIC, said))
