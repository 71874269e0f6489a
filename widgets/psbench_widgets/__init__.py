"""The notebook layer of psbench: a panel, charts that move, and the bridge between a run and the page."""

from psbench_widgets.livechart import LiveChart

__all__ = ["LiveChart"]
