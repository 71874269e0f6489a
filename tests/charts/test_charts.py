"""Charts are tested as dictionaries, and against the schema of Vega-Lite."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from importlib import resources
from types import SimpleNamespace

import altair as alt
import jsonschema
import numpy as np
import pandas as pd
import pytest
import vl_convert

from psbench import charts, metrics
from psbench.charts import colours, learning, tables
from psbench.charts.colours import WAIT
from psbench.charts.distributions import bars
from psbench.core.log import EventLog, Kind
from psbench.errors import ParameterError
from psbench.runs.execution import run
from psbench.testing import toy_experiment


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    folder = resources.files("altair.vegalite.v6.schema")
    return jsonschema.Draft7Validator(json.loads(folder.joinpath("vega-lite-schema.json").read_text()))


def fields(spec: object) -> set[str]:
    """Every field that an encoding of the chart reads."""
    if isinstance(spec, dict):
        own = {spec["field"]} if isinstance(spec.get("field"), str) else set()
        return own.union(*(fields(value) for name, value in spec.items() if name != "transform"))
    return set().union(*(fields(value) for value in spec)) if isinstance(spec, list) else set()


def svg_of(chart: alt.Chart | alt.LayerChart, data: pd.DataFrame | None = None, width: int = 640) -> str:
    """The chart as it is drawn, with rows in the place of those that it will be sent."""
    spec = charts.stack([chart], width).to_dict()
    if data is not None:
        spec["datasets"] = {"rows": charts.records(data)}
    return vl_convert.vegalite_to_svg(spec, vl_version="6.4")


def drawn(chart: alt.Chart | alt.LayerChart, data: pd.DataFrame | None = None) -> list[str]:
    """The texts of a chart."""
    found = re.findall(r"<(?:text|tspan)[^>]*>([^<]+)<", svg_of(chart, data))
    return [html.unescape(text) for text in found]


def rows(spec: dict) -> list[dict]:
    """The data of a chart: Altair keeps it by name."""
    return spec["datasets"][spec["data"]["name"]]


def test_figures_of_real_runs_are_valid_and_read_existing_columns(runs, validator):
    switching = runs[-1]
    figures = [
        *charts.curves(runs, [run.meta["strategy"] for run in runs]),
        *charts.worker_figures(switching),
        *charts.label_figures(switching),
        *charts.comparison_figures({"asp": runs[2:4], "strategy_switch": [switching]}),
    ]
    titles = [figure.spec["title"] for figure in figures]
    assert "What each worker does: the beginning" in titles
    assert any(isinstance(title, str) and "the switch to asp" in title for title in titles)
    for figure in figures:
        spec = figure.spec
        validator.validate(spec)
        assert json.loads(json.dumps(spec, allow_nan=False)) == spec
        assert spec["description"]
        columns = set(rows(spec)[0]) | {"look", "order", "doing"}  # those that a chart computes
        assert fields(spec) - {"mean(equal)"} <= columns, spec["title"]
        assert len(figure.table)


def test_the_chart_of_a_run_is_valid_and_has_a_background(runs, validator):
    spec = charts.run_chart(runs[-1], x="epoch").to_dict()
    validator.validate(spec)
    assert spec["config"]["background"] == "#ffffff"
    assert len(spec["vconcat"]) >= 7


def test_reading_and_computing_are_drawn_where_a_run_tells_them_apart(validator):
    done = run(toy_experiment("map_reduce"))
    (figure,) = [figure for figure in charts.worker_figures(done) if figure.name == "steps"]
    validator.validate(charts.spec(figure.chart))
    usage = done.summary()["usage"]
    for part, name in (("reading", "read_ms"), ("computing", "compute_ms")):
        shown = figure.table.loc[figure.table["part"] == part, "ms"].tolist()
        assert shown == [worker[name] for worker in usage]
    assert figure.note == ""  # nobody uses a CPU in virtual time
    done.meta["usage"] = [each | {"cpu_s": 1.0, "wall_s": 4.0} for each in done.meta["usage"]]
    (measured,) = [figure for figure in charts.worker_figures(done) if figure.name == "steps"]
    assert "25\u00a0% of a core" in measured.note
    plain = charts.worker_figures(run(toy_experiment("bsp")))
    assert "steps" not in [figure.name for figure in plain]


@pytest.mark.by_day(6)
@pytest.mark.parametrize(
    "chart",
    [
        charts.curve("rows", "train_loss", "bytes", labels=["asp", "ssp"]),
        charts.timeline_chart("rows"),
        charts.time_use_chart("rows"),
        charts.step_chart("rows"),
        charts.idle_chart("rows", reasons=["barrier"]),
        charts.share_chart("rows", labels=["asp"]),
        charts.contribution_chart("rows", fates=["0", "4-7", "late"]),
        charts.trained_chart("rows"),
        charts.utilisation_chart("rows"),
        charts.traffic_over_time_chart("rows"),
        charts.histogram("rows", "lead", labels=["asp"]),
        charts.spread_chart("rows", labels=["asp"]),
        charts.traffic_chart("rows"),
        charts.batch_size_chart("rows"),
        charts.rule_chart("rows"),
        charts.server_chart("rows", ["entries", "requests"]),
        charts.label_chart("rows"),
    ],
    ids=lambda chart: str(chart.title),
)
def test_every_chart_can_be_streamed(chart, validator):
    spec = charts.spec(chart)
    validator.validate(spec)
    assert spec["data"] == {"name": "rows"}
    assert "config" not in spec
    assert [text for text in drawn(chart, data=pd.DataFrame()) if re.search("NaN|undefined", text)] == []


def test_percents_have_a_space_on_axes_and_at_the_ends_of_lines():
    lines = pd.DataFrame({"label": "asp", "time_s": [0.0, 1.0], "val_accuracy": [0.1, 0.912], "event": None})
    texts = drawn(charts.curve(lines))
    assert {"0\u00a0%", "20\u00a0%", "asp  91.2\u00a0%"} <= {*texts}
    assert not [text for text in texts if re.search(r"\d%", text)]
    # small shares are no row of "0 %"
    small = lines.rename(columns={"val_accuracy": "class_distance"}).assign(class_distance=[0.004, 0.0012])
    texts = drawn(charts.curve(small, "class_distance"))
    assert {"0\u00a0%", "0.2\u00a0%", "0.4\u00a0%", "asp  0.12\u00a0%"} <= {*texts}


def test_the_legend_of_a_streamed_chart_has_the_series_that_there_are():
    work = ("computing", "sending", "cpu_workers", "cpu_servers")
    texts = [
        {*drawn(charts.utilisation_chart("rows", series), data=pd.DataFrame())} for series in (None, work[:2])
    ]
    assert texts[0] - texts[1] == {"CPU, workers", "CPU, server"}


def test_time_that_is_spent_waiting_has_one_name_in_legends():
    phases = pd.DataFrame({"worker": 0, "phase": ["compute", "wait", "pull"], "fraction": [0.6, 0.4, 0.0]})
    legends = [drawn(charts.time_use_chart(phases)), drawn(charts.time_use_chart(phases[:1]))]
    assert [{"computing", "waiting", "receiving", "cancelled"} & {*texts} for texts in legends] == [
        {"computing", "waiting"},  # what there is none of is not named
        {"computing", "waiting"},  # but for what is looked for
    ]
    spans = phases.assign(start_s=[0, 1, 2], end_s=[1, 2, 3], reason=None, waited_for=None)
    assert {"computing", "waiting", "receiving"} <= {*drawn(charts.timeline_chart(spans))}


def test_a_share_of_all_ends_at_all():
    fates = pd.DataFrame(
        {"label": "asp", "fate": ["0", "1"], "gradients": [1, 2], "share": [1 / 3, 2 / 3 + 1e-9]}
    )
    assert [text for text in drawn(charts.contribution_chart(fates, "label")) if "%" in text][
        -1
    ] == "100\u00a0%"


def test_a_long_name_beside_a_bar_goes_on_in_another_line():
    name = "one slow worker: ssp, bound 10 -> asp at 0.16 s and on"
    spread = pd.concat([tables.spread_table(pd.Series([1, 2, 3]), label) for label in (name, "bsp")])
    shares = pd.DataFrame({"label": [name, "bsp"], "phase": "wait", "fraction": [0.5, 0.2]})
    fates = pd.DataFrame({"label": [name, "bsp"], "fate": "late", "gradients": [5, 2], "share": [0.5, 0.2]})
    sent = pd.DataFrame({"label": [name, "bsp"], "direction": "up", "bytes": [5, 2]})
    for chart in (
        charts.spread_chart(spread),
        charts.time_use_chart(shares, "label"),
        charts.contribution_chart(fates, "label"),
        charts.traffic_chart(sent),
    ):
        texts = drawn(chart)
        assert {"one slow worker: ssp,", "bound 10 -> asp at 0.16 s", "and on"} <= {*texts}, chart.title
        assert chart.height >= 2 * 3 * 13  # three lines in each row


def test_a_line_that_begins_late_is_not_drawn_from_the_start():
    """Hermes has no common model to evaluate before its first push: nothing rose until then."""
    late = [(0.0, 0.1), (13.0, 0.9), (14.0, 0.91), (15.0, 0.92), (16.0, 0.93), (17.0, 0.94)]
    even = [(float(time), time / 20) for time in range(0, 18, 3)]
    rows = [(label, *point) for label, points in (("hermes", late), ("asp", even)) for point in points]
    table = pd.DataFrame(rows, columns=["label", "time_s", "val_accuracy"])
    svg = svg_of(charts.curve(table))
    lines = re.findall(r'aria-roledescription="line mark"[^>]* d="([^"]*)"', svg)
    assert [len(re.findall("[ML]", line)) for line in lines] == [5, 6]
    alone = drawn(charts.curve(table[table["label"] == "hermes"]))
    assert {"0", "10 s"} <= {*alone}  # the axis begins where the run does


def test_a_streamed_chart_needs_to_know_its_labels():
    with pytest.raises(ParameterError, match=r"'rows' is streamed: give the values that 'label'"):
        charts.curve("rows")


def test_switches_are_marked_in_the_colour_of_their_strategy(runs):
    (figure, *_) = charts.curves(runs, [run.meta["strategy"] for run in runs])
    marked = [row for row in rows(figure.spec) if row.get("event")]
    (switch,) = runs[-1].summary()["switches"]
    assert [(row["label"], row["event"]) for row in marked] == [("strategy_switch", "switch to asp")]
    assert figure.note == "Means over seeds, with 95 % intervals as bands."  # of two of the three
    assert marked[0]["epoch"] == pytest.approx(switch["epoch"], rel=1e-4)


def test_each_seed_has_its_own_line_at_a_switch(runs, tiny):
    both = [runs[-1], run(tiny({"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.2}}, 1))]
    (figure, *_) = charts.curves(both, ["switching"] * 2)
    marked = [row for row in rows(figure.spec) if row.get("event")]
    at = [run.summary()["switches"][0]["time_s"] for run in both]
    assert at[0] != pytest.approx(at[1])
    assert [row["time_s"] for row in marked] == pytest.approx(at, rel=1e-4)
    assert [row["is_repeated"] for row in marked] == [at[0] > at[1], at[1] > at[0]]
    assert "a dashed line for each seed" in figure.note


def test_the_training_loss_of_one_seed_has_only_its_switches(runs):
    both, clock = [runs[-1], runs[-1]], ["virtual"]
    drawing = learning._Drawing(["switching"], "time_s", clock)
    marks = learning._switch_marks(both, ["switching"] * 2, "time_s")
    (loss,) = learning._training(both, ["switching"] * 2, marks, drawing)
    assert len(marks) == 2
    assert [row["is_repeated"] for row in rows(loss.spec) if row.get("event")] == [False]


def test_without_an_evaluation_the_loss_is_that_of_the_pushes():
    log = EventLog()
    for number, value in enumerate((4.0, 2.0, 1.0)):  # each of a quarter of an epoch, over which means are
        log.add(Kind.PUSH, number + 1.0, 0, number, 0, 10, 1, loss=value)
    record = SimpleNamespace(log=log, meta={"dataset_size": 40, "backend": "simulated"})
    (figure,) = charts.curves([record], ["own"])
    assert figure.name == "train_loss"
    assert figure.table["train_loss"].tolist() == [4.0, 2.0, 1.0]
    assert figure.table["time_s"].tolist() == [1.0, 2.0, 3.0]


def test_a_run_that_never_switches_has_no_layers_for_switches(runs):
    (figure, *_) = charts.curves(runs[:1], ["all_reduce"])
    ends = ["circle", "text"]  # the dot at the line's end, and its name
    assert [layer["mark"]["type"] for layer in figure.spec["layer"]] == ["line", "point", *ends]


def test_seeds_become_a_mean_with_an_interval():
    table = pd.DataFrame(
        {
            "label": "asp",
            "seed": [0, 1, 0, 1, 0],
            "point": [0, 0, 1, 1, 2],
            "time_s": [1.0, 3.0, 4.0, 6.0, 9.0],
            "val_accuracy": [0.5, 0.7, 0.9, 0.9, 1.0],
        }
    )
    mean = charts.with_seeds(table, ["val_accuracy"])
    assert mean["time_s"].tolist() == [2.0, 5.0]  # the third evaluation was reached by one seed only
    assert mean["val_accuracy"].tolist() == pytest.approx([0.6, 0.9])
    assert mean["val_accuracy_low"].tolist() == pytest.approx([0.0, 0.9])  # 0.6 - 12.706 * 0.1, cut at 0
    assert mean["val_accuracy_high"].tolist() == pytest.approx([1.0, 0.9])


def test_lines_are_thinned_but_keep_their_ends_and_events():
    n = 50_000
    table = pd.DataFrame({"label": ["a"] * n + ["b"] * 10, "time_s": np.arange(n + 10.0), "event": None})
    table.loc[777, "event"] = "switch"
    thin = charts.thin(table)
    assert 1000 <= (thin["label"] == "a").sum() <= 1002
    assert (thin["label"] == "b").sum() == 10
    assert {0.0, 777.0, n - 1.0} <= set(thin["time_s"])


def test_the_full_height_of_a_row_of_the_timeline_answers_the_pointer():
    *_, answering = charts.spec(charts.timeline_chart("rows"))["layer"]
    assert answering["mark"]["height"] == {"band": 1}
    assert answering["encoding"]["color"] == {"value": "transparent"}
    assert {each["field"] for each in answering["encoding"]["tooltip"]} >= {"reason", "waited_for"}


def test_a_window_of_a_timeline_is_readable(runs):
    spans = metrics.timeline(runs[2].log)
    piece = charts.window(spans, 0.0, limit=30)
    assert len(piece) <= 30 + spans["worker"].nunique()
    assert piece["end_s"].max() < spans["end_s"].max()
    assert piece.groupby("worker")["end_s"].max().nunique() == 1  # all workers are cut at the same time
    later = charts.window(spans, spans["end_s"].min())
    assert (later["end_s"] > later["start_s"]).all()  # what ends there is over
    middle = spans["end_s"].max() / 2
    around = charts.around(spans, middle, limit=30)
    assert around["start_s"].min() < middle < around["end_s"].max()
    many = pd.concat([spans.assign(worker=spans["worker"] + 3 * i) for i in range(40)])
    assert charts.window(many)["worker"].nunique() <= 24


@pytest.mark.parametrize("labels", [["asp"], ["asp", "ssp"]])
def test_points_are_drawn_where_there_are_sixty_a_line_at_most(labels):
    for more, drawn in ((0, True), (1, False)):
        count = 60 * len(labels) + more
        rows = {"label": np.resize(labels, count), "time_s": np.arange(count), "val_loss": 1.0}
        spec = charts.spec(charts.curve(pd.DataFrame(rows), "val_loss", labels=labels))
        assert ("point" in [layer["mark"]["type"] for layer in spec["layer"]]) == drawn


def bars_of(values):
    return pd.DataFrame({"label": "ssp", **bars(np.bincount(values), bins=40)})


def test_histograms_count_everything_once():
    table = bars_of([0, 0, 1, 99])
    assert table["count"].sum() == 4
    assert table["share"].sum() == pytest.approx(1)
    assert table["value"].iloc[-1] <= 99 <= table["last"].iloc[-1]
    assert len(table) <= 40


@pytest.mark.parametrize("largest", [0, 5, 40, 99])
def test_a_bar_stands_on_the_numbers_it_counts_and_reaches_no_further(largest):
    table = bars_of(range(largest + 1))
    assert len(table) <= 40
    assert table["share"].sum() == pytest.approx(1)
    assert (table["low"] == table["value"] - 0.5).all()
    assert (table["high"] == table["last"] + 0.5).all()
    assert (table["value"].to_numpy()[1:] == table["last"].to_numpy()[:-1] + 1).all()  # no number in two bars
    if largest == 5:
        assert table["high"].max() == 5.5  # under SSP(5) nothing is drawn at 6
    spec = charts.spec(charts.histogram(table, "lead"))
    assert (spec["encoding"]["x"]["field"], spec["encoding"]["x2"]["field"]) == ("low", "high")


def test_a_worker_that_never_waits_is_shown_not_to(runs):
    (figure,) = [figure for figure in charts.worker_figures(runs[0]) if figure.name == "idle"]
    assert figure.table["worker"].tolist() == [0, 1, 2]
    waited = metrics.idle(runs[0].log)
    assert 2 not in set(waited["worker"])  # the slow one opens every barrier
    assert figure.table["fraction"].tolist() == [*waited["fraction"], 0.0]


def test_where_no_worker_waited_the_chart_says_so(runs):
    asp = next(figure for figure in charts.worker_figures(runs[2]) if figure.name == "idle")
    assert {"Waiting, by reason", "No worker waited."} == {*drawn(asp.chart)}
    assert "no worker waited" in runs[2].chart("idle", "time_use")._words().lower()  # beside others, too
    (of_all,) = [
        f for f in charts.comparison_figures({"bsp": runs[:2], "asp": runs[2:4]}) if f.name == "idle"
    ]
    assert of_all.table.to_dict("records")[-1] == {"label": "asp", "reason": "barrier", "fraction": 0.0}
    (alone,) = [figure for figure in charts.comparison_figures({"asp": runs[2:4]}) if figure.name == "idle"]
    assert "No worker waited." in drawn(alone.chart)


@pytest.mark.parametrize("at", [(2.0, 4.0), (9.0, 1.0), (5.0, 1.5), (7.5, 3.1)])
@pytest.mark.parametrize(("width", "least"), [(240, 5), (520, 7)])
def test_names_of_bounds_lie_over_nothing(at, width, least):
    """Neither over each other nor over the run's own name; most of the eight have room."""
    bounds = (0, 1, 2, 3, 5, 8, 13, None)
    labels = ["ASP" if bound is None else f"bound {bound}" for bound in bounds]
    took = [2 + 7 / (1 + 0.4 * (20 if bound is None else bound)) for bound in bounds]
    points = {
        "label": [*labels, "this run"],
        "order": [*range(len(bounds)), None],
        "per_100_s": [*took, at[0]],
        "staleness": [*(1 + 9 / each for each in took), at[1]],
    }
    points |= charts.names_of_points(points)
    chart = charts.trade_chart("rows").properties(height=150)
    found = re.findall(
        r'<text[^>]* text-anchor="(\w+)" transform="translate\(([-\d.]+),([-\d.]+)\)"'
        r'(?![^>]*opacity="0")[^>]*>([^<]+)<',
        svg_of(chart, pd.DataFrame(points), width=width),
    )
    names = {
        name
        for name, room in zip(points["name"], points["room"], strict=True)
        if room is not None and width >= room
    }
    boxes = []
    for anchor, x, y, text in found:
        if text not in names | {"this run"} or float(x) < 0:  # marks of the axis
            continue
        wide = 6 * len(text)
        left = float(x) - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
        boxes.append((left, left + wide, float(y)))
    assert len(boxes) == len(names) + 1
    if at != (7.5, 3.1):  # there this run is in the way of one
        assert {"bound 0", "ASP: no bound"} <= names
    assert len(names) >= least
    for place, (left, right, y) in enumerate(boxes):
        for other in boxes[place + 1 :]:
            assert right <= other[0] or other[1] <= left or abs(y - other[2]) >= 10, (names, boxes)


def test_workers_are_in_the_order_of_their_numbers_whoever_waits_first():
    rows = [(2, "barrier", 0.5), (0, "switch", 0.1), (10, "barrier", 0.2)]
    idle = pd.DataFrame(rows, columns=["worker", "reason", "fraction"])
    use = idle.rename(columns={"reason": "phase"}).assign(phase="wait")
    for chart in (
        charts.idle_chart(idle),
        charts.time_use_chart(use),
        charts.idle_chart("rows", reasons=["x"]),
    ):
        axis = charts.spec(chart)["encoding"]["y"]
        assert (axis["field"], axis["type"], axis.get("sort", "ascending")) == (
            "worker",
            "ordinal",
            "ascending",
        )


def test_virtual_and_wall_seconds_never_share_an_axis(runs):
    """A live run is drawn beside simulated ones: against time in figures of its own."""
    live = dataclasses.replace(runs[2], meta=runs[2].meta | {"backend": "dask"})
    beside, labels = [*runs[:2], live], ["all_reduce", "all_reduce", "live"]
    figures = charts.curves(beside, labels)
    shown = {
        (figure.name, title_of(figure)): (
            {row["label"] for row in rows(figure.spec)},
            figure.spec["usermeta"]["axes"]["time_s"],
        )
        for figure in figures
    }
    for name, title in (("val_accuracy", "Validation accuracy"), ("train_loss", "Training loss")):
        assert shown[name, f"{title}, virtual time"] == ({"all_reduce"}, "virtual time (s)")
        assert shown[name, f"{title}, wall time"] == ({"live"}, "wall-clock time (s)")
    assert [figure.name for figure in figures][:2] == ["val_accuracy", "val_accuracy"]
    for figure in charts.curves(beside, labels, x="epoch"):
        assert {row["label"] for row in rows(figure.spec)} == {"all_reduce", "live"}
        assert "time_s" not in figure.spec["usermeta"]["axes"]
    single = charts.curves(runs[:2], labels[:2])[0].spec
    assert single["usermeta"]["axes"]["time_s"] == "virtual time (s)"


def test_a_label_looks_the_same_in_the_figures_of_both_clocks(runs):
    live = dataclasses.replace(runs[-1], meta=runs[-1].meta | {"backend": "dask"})
    labels = ["switching", "live"]
    figures = charts.curves([runs[-1], live], labels)
    known = charts.looks(labels)
    for figure, label in zip(figures[:2], labels, strict=True):
        (line,) = [layer for layer in figure.spec["layer"] if layer["mark"]["type"] == "line"]
        scale = line["encoding"]["color"]["scale"]
        assert scale == {"domain": [label], "range": [known[label].colour]}


def title_of(figure: charts.Figure) -> str:
    return str(figure.spec["title"])


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colour", charts.HUES)
def test_lines_can_be_seen_on_light_and_on_dark(colour):
    assert contrast(colour, "#ffffff") >= 3
    assert contrast(colour, "#15191f") >= 3


def test_runs_take_the_hues_in_order_and_then_dashes():
    names = [f"run {i}" for i in range(25)]
    found = charts.looks(names)
    assert [found[name].colour for name in names[:10]] == list(charts.HUES)
    assert len({*charts.HUES}) == 10
    assert {tuple(found[name].dash) for name in names[:10]} == {(1, 0)}
    assert (found["run 10"].colour, found["run 10"].dash) == (charts.HUES[0], colours.DASHED)
    drawn = [(look.colour, tuple(look.dash)) for look in found.values()]
    assert len(set(drawn)) == len(drawn)
    assert charts.looks(["run 7"], among=names)["run 7"] == found["run 7"]  # whatever is beside it


def test_a_run_has_one_colour_in_every_chart_of_a_page(runs):
    groups = {"a": runs[:1], "b": runs[2:3], "c": runs[4:]}
    hues = dict(zip(groups, charts.HUES, strict=False))
    figures = charts.curves([each[0] for each in groups.values()], list(groups))
    figures += charts.comparison_figures(groups)
    alone = [charts.worker_figures(each[0], label, list(groups)) for label, each in groups.items()]
    scales = 0
    for figure in [*figures, *(figure for own in alone for figure in own)]:
        for name, colour in scales_of(figure.spec):
            scales += 1
            assert colour == hues[name], figure.name
    assert scales > 20


def scales_of(part):
    """Yield each label and its colour, wherever a specification has a scale of labels."""
    for key, value in part.items() if isinstance(part, dict) else enumerate(part):
        if key in ("color", "fill") and isinstance(value, dict) and value.get("field") == "label":
            yield from zip(value["scale"]["domain"], value["scale"]["range"], strict=True)
        elif isinstance(value, (dict, list)) and key != "datasets":
            yield from scales_of(value)


def test_waiting_has_one_colour_which_nothing_else_has():
    others = {colour for phase, colour in charts.PHASE_COLOURS.items() if phase != "wait"}
    others |= {*charts.HUES}
    assert WAIT not in others
    assert charts.PHASE_COLOURS["wait"] == WAIT
    chart = charts.idle_chart("rows", reasons=["barrier", "vote"]).to_dict()["encoding"]
    assert chart["fill"] == {"value": WAIT}  # whatever the reason
    assert chart["opacity"]["scale"]["range"] == [1.0, 0.35]
    waits = pd.DataFrame({"worker": 0, "reason": ["barrier", "vote"], "fraction": [0.2, 0.1]})
    assert {"barrier", "vote"} <= {*drawn(charts.idle_chart(waits))}  # a legend says which is which


def test_charts_set_no_global_theme():
    assert alt.theme.active == "default"
