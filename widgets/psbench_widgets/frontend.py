"""The browser half: one script for all charts and panels of a notebook, sent to the page once."""

from __future__ import annotations

import hashlib
import threading
from functools import cache
from typing import Any

import anywidget
import traitlets
from ipywidgets import widget_serialization

from psbench_widgets.assets import STATIC, themes

_lock = threading.Lock()
_bundles: list[FrontendBundle] = []


@cache
def version() -> str:
    """Return a short digest of the bundle, so that pages never mix two versions."""
    return hashlib.sha256((STATIC / "engine.js").read_bytes()).hexdigest()[:12]


class FrontendBundle(anywidget.AnyWidget):
    """The widget that loads the script (Vega, Vega-Lite, charts, panel); it displays nothing."""

    _esm = STATIC / "engine.js"
    key = traitlets.Unicode().tag(sync=True)
    #: the look of every chart, here as in the report
    themes = traitlets.Dict().tag(sync=True)


def frontend_bundle() -> FrontendBundle:
    """Return the bundle of this process, created at the first call and again after it was closed."""
    with _lock:
        if not _bundles or _bundles[0].comm is None:
            _bundles[:] = [FrontendBundle(key=version(), themes=themes())]
        return _bundles[0]


class FrontendWidget(anywidget.AnyWidget):
    """Base of widgets that the bundle's script renders; `kind` names the view."""

    _esm = STATIC / "stub.js"

    kind = traitlets.Unicode().tag(sync=True)
    key = traitlets.Unicode().tag(sync=True)
    uid = traitlets.Unicode().tag(sync=True)
    engine = traitlets.Instance(FrontendBundle).tag(sync=True, **widget_serialization)

    def __init__(self, **values: Any) -> None:
        super().__init__(**{"engine": frontend_bundle(), "key": version()} | values)
        self.uid = self.model_id or ""
