"""A page on Dask's dashboard, `/psbench`: the progress of each run, and which workers wait."""

from __future__ import annotations

import html
import logging
import time
from typing import Any

from distributed import Client, Scheduler

from psbench.backends.dask.rpc import begin
from psbench.core.log import EventLog
from psbench.experiment import Experiment
from psbench.progress import LogProgress

logger = logging.getLogger(__name__)

#: where runs report to the scheduler, and how often (seconds)
_TOPIC, _EVERY_S = "psbench", 1.0
#: seconds after its last report in which a run is still shown
_FORGOTTEN_S = 3600.0
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="1">
<title>psbench</title><style>body{{font:15px sans-serif;margin:2em}} progress{{width:20em}}
td{{padding:.3em 1em .3em 0}}</style></head><body><h1>psbench</h1><table>{rows}</table></body></html>"""
_NONE = "<tr><td>no run has reported yet</td></tr>"


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
        self._under_way = begin(client, lambda: client.run_on_scheduler(_add_page))

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
        self._under_way = begin(self._client, lambda: self._client.log_event(_TOPIC, said))


def _add_page(dask_scheduler: Scheduler) -> None:
    """Add the page to the scheduler's own, once."""
    from tornado.web import Application, RequestHandler

    name = "_psbench_page"
    if hasattr(dask_scheduler, name):
        return

    class Page(RequestHandler):
        def get(self) -> None:
            self.write(page_of(dask_scheduler.get_events(_TOPIC), time.time()))

    application = Application([(r"/psbench/?", Page)])
    dask_scheduler.http_application.add_application(application)
    setattr(dask_scheduler, name, application)


def page_of(events: Any, now: float) -> str:
    """Return the page of the runs' last reports, each with its time.

    >>> said = {"run": "a", "title": "<ssp>", "share": 0.5, "words": "worker 2 waits"}
    >>> "&lt;ssp&gt;" in page_of([(0.0, said)], 1.0), "<ssp>" in page_of([(0.0, said)], 1.0)
    (True, False)
    """
    last = {said["run"]: said for at, said in events or () if now - at < _FORGOTTEN_S}
    rows = "".join(
        f"<tr><td>{html.escape(said['title'])}</td><td><progress max='1' value='{said['share'] or 0:.3f}'>"
        f"</progress></td><td>{html.escape(said['words'])}</td></tr>"
        for said in last.values()
    )
    return _PAGE.format(rows=rows or _NONE)
