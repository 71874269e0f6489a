"""Charts: a table in, an Altair chart out; the same code for `run.chart()`, the report and the live panel.

Wherever a function takes a table it also takes the name of a data set that is streamed into a view later
(`alt.NamedData`), so the panel's charts are these charts.
"""

from psbench.charts.colours import PHASES, REASONS, STRATEGIES, CurveLook, looks, reason_colours
from psbench.charts.curves import AXES, VALUES, axes_of, curve, with_seeds
from psbench.charts.display import Sheet, stack, with_warnings
from psbench.charts.distributions import (
    histogram,
    load_chart,
    rule_chart,
    server_chart,
    spread_chart,
    traffic_chart,
)
from psbench.charts.figure import Figure, spec
from psbench.charts.figures import (
    comparison_chart,
    comparison_figures,
    gossip_figures,
    label_figures,
    run_chart,
    sequence_figure,
    server_figures,
    worker_figures,
)
from psbench.charts.gossip import graph_chart, heard_chart, lag_chart
from psbench.charts.learning import curves
from psbench.charts.names import TITLES
from psbench.charts.sequence import sequence_chart, sequence_table
from psbench.charts.source import POINTS, plain, records, thin
from psbench.charts.theme import theme
from psbench.charts.workers import (
    around,
    batch_size_chart,
    idle_chart,
    label_chart,
    share_chart,
    step_chart,
    time_use_chart,
    timeline_chart,
    trade_chart,
    window,
)
from psbench.metrics.record import RunRecord

__all__ = [
    "AXES",
    "PHASES",
    "POINTS",
    "REASONS",
    "STRATEGIES",
    "TITLES",
    "VALUES",
    "CurveLook",
    "Figure",
    "RunRecord",
    "Sheet",
    "around",
    "axes_of",
    "batch_size_chart",
    "comparison_chart",
    "comparison_figures",
    "curve",
    "curves",
    "gossip_figures",
    "graph_chart",
    "heard_chart",
    "histogram",
    "idle_chart",
    "label_chart",
    "label_figures",
    "lag_chart",
    "load_chart",
    "looks",
    "plain",
    "reason_colours",
    "records",
    "rule_chart",
    "run_chart",
    "sequence_chart",
    "sequence_figure",
    "sequence_table",
    "server_chart",
    "server_figures",
    "share_chart",
    "spec",
    "spread_chart",
    "stack",
    "step_chart",
    "theme",
    "thin",
    "time_use_chart",
    "timeline_chart",
    "trade_chart",
    "traffic_chart",
    "window",
    "with_seeds",
    "with_warnings",
    "worker_figures",
]
