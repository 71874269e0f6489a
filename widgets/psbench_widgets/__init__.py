"""The notebook layer of psbench: a panel, charts that move, and the bridge between a run and the page.

::

    from psbench_widgets import Lab
    Lab()
"""

from psbench_widgets.bridge import Bridge, Job
from psbench_widgets.lab import Lab
from psbench_widgets.livechart import LiveChart
from psbench_widgets.predictions import Prediction

__all__ = ["Bridge", "Job", "Lab", "LiveChart", "Prediction"]
