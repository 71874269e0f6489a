"""Charts: a table in, an Altair chart out; the same code for `run.chart()`, the report and the live panel.

Wherever a function takes a table it also takes the name of a data set that is streamed into a view later
(`alt.NamedData`), so the panel's charts are these charts.

A new chart has its title in `names.py`, its table in `tables.py`, its drawing in the file of its subject, and
its `Figure` in `figures.py`: in `worker_figures` for one run, in `comparison_figures` for several. The panel
draws it if `growing.py` has its table and `psbench_widgets/figures.py` lists it.
"""

from psbench.charts.colours import HUES as HUES
from psbench.charts.colours import PHASE_COLOURS as PHASE_COLOURS
from psbench.charts.colours import looks as looks
from psbench.charts.contributions import contribution_chart as contribution_chart
from psbench.charts.contributions import trained_chart as trained_chart
from psbench.charts.curves import AXES as AXES
from psbench.charts.curves import VALUES as VALUES
from psbench.charts.curves import axes_of as axes_of
from psbench.charts.curves import curve as curve
from psbench.charts.curves import with_seeds as with_seeds
from psbench.charts.display import Sheet as Sheet
from psbench.charts.display import stack as stack
from psbench.charts.display import with_warnings as with_warnings
from psbench.charts.distributions import histogram as histogram
from psbench.charts.distributions import load_chart as load_chart
from psbench.charts.distributions import rule_chart as rule_chart
from psbench.charts.distributions import server_chart as server_chart
from psbench.charts.distributions import spread_chart as spread_chart
from psbench.charts.distributions import traffic_chart as traffic_chart
from psbench.charts.figure import Figure as Figure
from psbench.charts.figure import spec as spec
from psbench.charts.figures import comparison_chart as comparison_chart
from psbench.charts.figures import comparison_figures as comparison_figures
from psbench.charts.figures import label_figures as label_figures
from psbench.charts.figures import run_chart as run_chart
from psbench.charts.figures import sequence_figure as sequence_figure
from psbench.charts.figures import server_figures as server_figures
from psbench.charts.figures import tree_figure as tree_figure
from psbench.charts.figures import worker_figures as worker_figures
from psbench.charts.gossip import gradient_spread_chart as gradient_spread_chart
from psbench.charts.gossip import graph_chart as graph_chart
from psbench.charts.gossip import lag_chart as lag_chart
from psbench.charts.learning import curves as curves
from psbench.charts.lost_updates import lost_updates_chart as lost_updates_chart
from psbench.charts.names import TITLES as TITLES
from psbench.charts.sequence import sequence_chart as sequence_chart
from psbench.charts.sequence import sequence_table as sequence_table
from psbench.charts.source import plain as plain
from psbench.charts.source import records as records
from psbench.charts.source import thin as thin
from psbench.charts.theme import theme as theme
from psbench.charts.trade import names_of_points as names_of_points
from psbench.charts.trade import trade_chart as trade_chart
from psbench.charts.utilisation import traffic_over_time_chart as traffic_over_time_chart
from psbench.charts.utilisation import utilisation_chart as utilisation_chart
from psbench.charts.workers import NO_WAIT as NO_WAIT
from psbench.charts.workers import around as around
from psbench.charts.workers import batch_size_chart as batch_size_chart
from psbench.charts.workers import idle_chart as idle_chart
from psbench.charts.workers import label_chart as label_chart
from psbench.charts.workers import share_chart as share_chart
from psbench.charts.workers import step_chart as step_chart
from psbench.charts.workers import time_use_chart as time_use_chart
from psbench.charts.workers import timeline_chart as timeline_chart
from psbench.charts.workers import window as window
