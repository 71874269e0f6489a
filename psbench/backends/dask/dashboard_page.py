"""The scheduler's side of the page `/psbench`; the scheduler imports this module, which imports no torch.

Its event loop would stand still meanwhile, and all clients and Dask workers with it.
"""

from __future__ import annotations

import html
import time
from typing import Any

from distributed import Scheduler

#: where runs report to the scheduler
TOPIC = "psbench"
#: seconds after its last report in which a run is still shown
_FORGOTTEN_S = 3600.0
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="1">
<title>psbench</title><style>body{{font:15px sans-serif;margin:2em}} progress{{width:20em}}
td{{padding:.3em 1em .3em 0}}</style></head><body><h1>psbench</h1><table>{rows}</table></body></html>"""
_NONE = "<tr><td>no run has reported yet</td></tr>"


def add_page(dask_scheduler: Scheduler) -> None:
    """Add the page to the scheduler's own, once."""
    from tornado.web import Application, RequestHandler

    name = "_psbench_page"
    if hasattr(dask_scheduler, name):
        return

    class Page(RequestHandler):
        def get(self) -> None:
            self.write(page_of(dask_scheduler.get_events(TOPIC), time.time()))

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
