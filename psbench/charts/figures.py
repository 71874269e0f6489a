"""Figures about workers, servers and switch rules, for one run and for several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pandas as pd

from psbench import metrics
from psbench.charts import contributions, distributions, gossip, tables, workers
from psbench.charts.computation_tree import NODES, tree_chart, tree_table
from psbench.charts.display import Sheet, stack
from psbench.charts.figure import Figure
from psbench.charts.growing import GrowingTables, tables_of
from psbench.charts.learning import curves, distance_curve
from psbench.charts.lost_updates import lost_updates_chart
from psbench.charts.names import TITLES
from psbench.charts.pareto import costs_in, pareto_chart, pareto_table
from psbench.charts.sequence import sequence_chart, sequence_table
from psbench.charts.utilisation import TRAFFIC, WORK, traffic_over_time_chart, utilisation_chart
from psbench.core.log import Kind
from psbench.core.switching_strategy import AnyStrategy
from psbench.errors import UnknownName
from psbench.metrics.record import RunRecord
from psbench.percents import percent
from psbench.system.private_apis import unchecked

#: label -> runs that differ in their seed only
RunsByLabel: TypeAlias = Mapping[str, Sequence[RunRecord]]

#: distance of the classes trained on from the data from which a run shows it unasked
NOTICEABLE = 0.01
#: versions that a sequence diagram shows; more messages than these make cannot be followed
SEQUENCE_VERSIONS = 5


#: how to read what became of gradients
FATES = "Blue: used, the lighter the older (versions made meanwhile). Violet: never used, and why."


@unchecked()
def run_chart(
    run: RunRecord,
    *names: str,
    x: str = "time_s",
    width: int = 640,
    strategy: AnyStrategy | None = None,
) -> Sheet:
    """Return the stacked charts of a run, for a notebook cell.

    Parameters
    ----------
    run : RunRecord
    *names : str
        Which charts, in this order; without names all but "sequence", "labels" and "tree".
    x : str
        What curves are drawn against: "time_s" (or "time"), "epoch" (or "samples"), "updates" or "bytes".
    width : int, pixels
    strategy : Strategy or SwitchingStrategy, optional
        Of the run; "tree" needs it.

    Raises
    ------
    UnknownName
        If the run has no chart of that name, or there is no such axis.
    ParameterError
        If "tree" is asked for, and runs of the strategy have no computation tree.
    """
    figures = [*curves([run], [tables.label_of(run)], x=x), *worker_figures(run)]
    has_server = not (run.log.rows()["kind"] == Kind.MIX).any()  # which the diagram draws in its middle
    rest = [*label_figures(run), *([sequence_figure(run)] if has_server else [])]
    drawn = {figure.name for figure in figures}
    faint = trained_figures([run], [tables.label_of(run)], x, least=0.0)
    rest += [figure for figure in faint if figure.name not in drawn]
    if "tree" in names and strategy is not None:
        rest.append(tree_figure(metrics.computation_tree(run.log, strategy)))
    return _chosen([*figures, *(rest if names else [])], names, width)


@unchecked()
def comparison_chart(groups: RunsByLabel, *names: str, x: str = "time_s", width: int = 640) -> Sheet:
    """Return the stacked charts of a comparison.

    Parameters
    ----------
    groups : mapping of label to runs that differ in their seed only
    *names, x, width
        As for `run_chart`.
    """
    labels = [label for label, runs in groups.items() for _ in runs]
    figures = curves([run for runs in groups.values() for run in runs], labels, x=x)
    return _chosen([*figures, *comparison_figures(groups, x)], names, width)


def _chosen(figures: Sequence[Figure], names: Sequence[str], width: int) -> Sheet:
    """Return the named charts, each with all of its figures; all charts if no name is given."""
    known = dict.fromkeys(figure.name for figure in figures)
    for unknown in (name for name in names if name not in known):
        raise UnknownName("chart", unknown, known)
    return stack(
        [figure.chart for name in names or known for figure in figures if figure.name == name], width
    )


@unchecked()
def worker_figures(
    run: RunRecord, label: str | None = None, among: Sequence[str] | None = None
) -> list[Figure]:
    """Return the figures about workers: timeline, time use, waiting, shares, staleness, lead, batch sizes."""
    label = label or tables.label_of(run)
    grown = tables_of(run, label)
    figures = [*_timelines(run), *_times(run, grown)]
    figures += _counted(grown, among)
    sizes = metrics.batch_sizes(run.log)
    if (sizes.groupby("worker")["batch_size"].nunique() > 1).any():
        figures.append(Figure(workers.batch_size_chart(sizes), sizes, name="batch_size"))
    figures += trained_figures([run], [label], among=among)
    return figures + _rule(grown) + server_figures(run) + gossip_figures(run) + lost_figures(run)


def _timelines(run: RunRecord) -> list[Figure]:
    spans, beside = metrics.timeline(run.log), metrics.sends_beside(run.log)
    note = "Orange: waiting; thin spans: messages. Point at a span to see its reason."
    if len(beside):
        spans = pd.concat([spans, beside]).sort_values(
            ["worker", "start_s"], kind="stable", ignore_index=True
        )
        note += " A send inside a computing span overlapped with the computation."
    begin = workers.window(spans)
    figures = [
        Figure(workers.timeline_chart(begin, f"{TITLES['timeline']}: the beginning"), begin, note, "timeline")
    ]
    for switch in metrics.switches(run.log, run.meta["dataset_size"], run.meta.get("compositions", ())):
        piece = workers.around(spans, switch["time_s"])
        title = f"{TITLES['switch']} to {switch['to']} at {switch['time_s']:.4g} s"
        figures.append(Figure(workers.timeline_chart(piece, title), piece, note, "switch"))
    return figures


def _times(run: RunRecord, grown: GrowingTables) -> list[Figure]:
    figures = []
    use = pd.DataFrame(grown.totals("time_use"))
    if len(use):  # else nothing was pushed: the run was stopped, or is cut, at its start
        note = "From joining to leaving or the end."
        figures.append(Figure(workers.time_use_chart(use), use, note, "time_use"))
        idle = pd.DataFrame(grown.totals("idle"))
        figures.append(Figure(workers.idle_chart(idle), idle, name="idle"))
    return figures + _over_time(run) + _steps(run)


def _over_time(run: RunRecord) -> list[Figure]:
    """Return the numbers of computing and sending workers, and the traffic, over time."""
    found = metrics.utilisation(run.log, run.meta)
    if not (found["value"] > 0).any():
        return []
    work, traffic = (found[found["series"].isin([*series])] for series in (WORK, TRAFFIC))
    note = f"Means of intervals of {found['width_s'].max():.3g} s."
    return [
        Figure(utilisation_chart(work), work, note, "utilisation"),
        Figure(traffic_over_time_chart(traffic), traffic, note, "traffic"),
    ]


def _steps(run: RunRecord) -> list[Figure]:
    """Return the times of reading and computing, if they were measured or the profile defines them."""
    table = tables.step_table(run)
    if not (table["part"].eq("reading") & table["ms"].gt(0)).any():
        return []
    cpu = table["cpu"].mean()
    note = "" if pd.isna(cpu) else f"CPU use of a worker: {percent(cpu)} of a core on average."
    return [Figure(workers.step_chart(table), table, note, "steps")]


def _counted(grown: GrowingTables, among: Sequence[str] | None) -> list[Figure]:
    figures = []
    shares = pd.DataFrame(grown.totals("share"))
    if len(shares):
        chart = workers.share_chart(shares, among=among)
        figures.append(Figure(chart, shares.drop(columns="equal"), "Dashed: an equal share.", "share"))
    work = pd.DataFrame(grown.totals("contributions"))
    if len(work) and work["fate"].nunique() > 1:  # one fate says nothing
        figures.append(Figure(contributions.contribution_chart(work), work, FATES, "contributions"))
    for quantity in ("staleness", "lead"):
        table = pd.DataFrame(grown.totals(quantity))
        if len(table) > 1:  # one bar says nothing
            figures.append(
                Figure(distributions.histogram(table, quantity, among=among), table, name=quantity)
            )
    return figures


def trained_figures(
    runs: Sequence[RunRecord],
    labels: Sequence[str],
    x: str = "time_s",
    least: float = NOTICEABLE,
    among: Sequence[str] | None = None,
) -> list[Figure]:
    """Return the groups that a run was trained on, and their distance from the data along runs.

    Classes are not shown where they are not known, or no run ends at least so far off; neighbourhoods where
    the selection of the run, which is the only one, has none.
    """
    figures = neighbourhood_figure(runs[0]) if len(runs) == 1 else []
    known = [
        (run, label)
        for run, label in zip(runs, labels, strict=True)
        if (metrics.class_distance(run.log, run.meta) or -1.0) >= least
    ]
    if not known:
        return figures
    if len(runs) == 1:
        table = metrics.trained_groups(runs[0].log, runs[0].meta)
        note = "Orange: share of the data. A gradient counts with the class shares of its worker's shard."
        figures.append(Figure(contributions.trained_chart(table), table, note, "trained"))
    return figures + distance_curve(runs, labels, x, among)


def neighbourhood_figure(run: RunRecord) -> list[Figure]:
    """Return which neighbourhoods of its selection a run was trained on, if it has some."""
    table = metrics.trained_groups(run.log, run.meta, by="neighbourhood")
    if not len(table):
        return []
    chart = contributions.trained_chart(table, TITLES["neighbourhoods"], "neighbourhood")
    note = "Orange: its share of the data. Samples are counted as pushes report them."
    return [Figure(chart, table, note, "neighbourhoods")]


def _rule(grown: GrowingTables) -> list[Figure]:
    """Return the switch rule's value against its threshold, if it computes one."""
    table = pd.DataFrame(grown.totals("rule"), dtype=object)
    return [Figure(distributions.rule_chart(table), table, name="rule")] if len(table) else []


@unchecked()
def server_figures(run: RunRecord) -> list[Figure]:
    """Return the figures about servers: initial contents, if there are several, and utilisation."""
    found = tables.server_tables(run)
    figures = []
    for name, table in found.items():
        of = f" under {name}" if len(found) > 1 else ""
        most = table.query("quantity == 'entries'")
        worst = (most["share"] / most["equal"]).max()
        title = f"{TITLES['servers']}{of}: the fullest {worst:.3g} times its share"
        note = (
            "Entries are parameters, requests tensors or pieces of them, parts contiguous ranges of memory."
        )
        shown = table.drop(columns="equal")
        figures.append(
            Figure(distributions.server_chart(table, title=title), shown, f"{note} Dashed: equal.", "servers")
        )
    loads = tables.load_table(run)
    if len(loads):
        note = "Seconds of service between two measurements; simulated: of transfer on the server's link."
        figures.append(Figure(distributions.load_chart(loads), loads, note, "server_load"))
    return figures


def gossip_figures(run: RunRecord) -> list[Figure]:
    """Return the figures about the spread of gradients, at the end and along a run without a server."""
    spread = metrics.gradient_spread(run.log)
    if not len(spread):
        return []
    along = metrics.lags(run.log)
    note = "Number of gradients of each worker (column) that each worker's model (row) lacks at the end."
    return [
        Figure(gossip.gradient_spread_chart(spread), spread, note, "gradient_spread"),
        Figure(gossip.lag_chart(along), along, "Mean and maximum over all pairs of workers.", "gradient_lag"),
    ]


def lost_figures(run: RunRecord) -> list[Figure]:
    """Return how many updates in shared memory were lost along a run."""
    table = metrics.lost_updates(run.log)
    note = "Area: all updates. Line: those lost, counted by the share of their entries."
    return [Figure(lost_updates_chart(table), table, note, "lost_updates")] if len(table) else []


@unchecked()
def label_figures(run: RunRecord) -> list[Figure]:
    """Return the distribution of labels over the workers, if it was recorded."""
    table = tables.label_table(run.meta)
    return [] if table is None else [Figure(workers.label_chart(table), table, name="labels")]


@unchecked()
def sequence_figure(run: RunRecord, stop_s: float | None = None) -> Figure:
    """Return a sequence diagram of the messages at the beginning of a run.

    Parameters
    ----------
    run : RunRecord
    stop_s : float, seconds, optional
        Where it ends; by default a little after the fifth version.
    """
    made = metrics.pushes(run.log)[["version", "applied_s"]].dropna().drop_duplicates("version")
    end = stop_s or float(made["applied_s"].head(SEQUENCE_VERSIONS).max() * 1.08)
    table = sequence_table(run.log, end)
    title = f"{tables.label_of(run)}: who sends what to whom"
    note = "A stroke up is a push, a stroke down is a model; a dot is a new version."
    return Figure(sequence_chart(table, run.meta["num_workers"], title), table, note, "sequence")


@unchecked()
def tree_figure(tree: metrics.ComputationTree, first: int = 0, nodes: int = NODES) -> Figure:
    """Return a part of the computation tree as a figure.

    Parameters
    ----------
    tree : ComputationTree
    first : int
        The node of the main branch that it begins with.
    nodes : int
        How many gradients are drawn.
    """
    table = tree_table(tree, first, nodes)
    note = (
        "The line at the top is the model: a step to the right is one applied gradient. A worker's bar begins"
        " at the model that it had and ends where its gradient was applied. Its length is the distance; the "
        f"largest of the run is R = {tree.radius}."
    )
    return Figure(tree_chart(table), table, note, "tree")


@unchecked()
def comparison_figures(groups: RunsByLabel, x: str = "time_s") -> list[Figure]:
    """Return the figures that compare strategies: time use, waiting, staleness, lead, bytes."""
    use = tables.stacked([tables.time_use_table(runs, label=label) for label, runs in groups.items()])
    idle = tables.idle_table(groups)
    figures = [
        Figure(workers.time_use_chart(use, "label"), use, "Over all workers and seeds.", "time_use"),
        Figure(workers.idle_chart(idle, "label"), idle, "Mean over workers and seeds.", "idle"),
    ]
    work = tables.stacked([tables.contribution_table(runs, label) for label, runs in groups.items()])
    if len(work) and work["fate"].nunique() > 1:
        note = f"{FATES} Over all workers and seeds."
        figures.append(Figure(contributions.contribution_chart(work, "label"), work, note, "contributions"))
    labels = [label for label, runs in groups.items() for _ in runs]
    figures += trained_figures([run for runs in groups.values() for run in runs], labels, x)
    figures += [_spread(groups, quantity) for quantity in ("staleness", "lead")]
    sent = tables.stacked([tables.traffic_table(runs, label) for label, runs in groups.items()])
    figures.append(Figure(distributions.traffic_chart(sent), sent, "Mean over seeds.", "bytes"))
    return figures + _pareto(groups)


def _pareto(groups: RunsByLabel) -> list[Figure]:
    """Return the trade-offs between costs and loss, if there are two labels or more."""
    table = pareto_table(groups)
    if len(table) < 2:
        return []
    note = "Means over seeds at the end. Dashed: the Pareto front."
    return [
        Figure(pareto_chart(table, cost, list(groups)), table, note, f"pareto_{cost}")
        for cost in costs_in(table)
    ]


def _spread(groups: RunsByLabel, quantity: str) -> Figure:
    measure = metrics.staleness if quantity == "staleness" else metrics.clock_lead
    found = {label: pd.concat([measure(run.log)[quantity] for run in runs]) for label, runs in groups.items()}
    table = pd.concat([tables.spread_table(values, label) for label, values in found.items() if len(values)])
    return Figure(distributions.spread_chart(table, quantity, among=list(groups)), table, name=quantity)
