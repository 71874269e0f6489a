"""The notebook layer of psbench: a panel, charts that move, and the bridge between a run and the page.

::

    from psbench_widgets import Lab
    Lab()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psbench_widgets.bridge import Bridge, Job
    from psbench_widgets.lab import Lab
    from psbench_widgets.livechart import LiveChart
    from psbench_widgets.predictions import Prediction

__all__ = ["Bridge", "Job", "Lab", "LiveChart", "Prediction"]

#: loaded when they are asked for: a recorded run is shown where there are no widgets, as in a browser
_HOMES = {
    "Bridge": "bridge",
    "Job": "bridge",
    "Lab": "lab",
    "LiveChart": "livechart",
    "Prediction": "predictions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'psbench_widgets' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"psbench_widgets.{_HOMES[name]}"), name)
    return value
