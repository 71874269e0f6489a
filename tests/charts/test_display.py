"""What `run.chart()` and `compare().chart()` take and show, in a notebook and on paper."""

from __future__ import annotations

import base64
import io
import json
import re

import numpy as np
import pandas as pd
import pytest
import vl_convert
from PIL import Image
from vega import JUPYTERLAB, OWN, marks

from psbench import charts, metrics
from psbench.charts.colours import on_paper
from psbench.charts.display import LIVE, _shared, live
from psbench.errors import ParameterError, UnknownName
from psbench.runs.comparing import compare
from psbench.runs.execution import run


def test_a_chart_shows_itself_alive_and_as_a_picture(runs):
    bundle, metadata = runs[0].chart("val_loss", "timeline")._repr_mimebundle_()
    assert set(bundle) == {LIVE, "image/png", "text/plain"}
    assert bundle["text/plain"].count("\n- ") == 2
    assert metadata[LIVE]["embed_options"]["renderer"] == "svg"  # only SVG knows currentColor
    assert Image.open(io.BytesIO(bundle["image/png"])).format == "PNG"
    assert metadata["image/png"]["alt"] == bundle["text/plain"]
    assert "currentColor" in json.dumps(bundle[LIVE]["config"])


def test_timelines_and_sequences_below_each_other_share_time(runs):
    spans = [charts.window(metrics.timeline(run.log)) for run in (runs[0], runs[2])]
    timelines = [charts.timeline_chart(each) for each in spans]
    sequences = [charts.sequence_figure(run, stop_s=0.1).chart for run in (runs[2], runs[3])]
    for drawn, shared in ((timelines, True), (sequences, True), (timelines[:1], False)):
        assert (charts.stack(drawn).to_dict()["resolve"]["scale"].get("x") == "shared") is shared
    assert "x" not in charts.stack([timelines[0], sequences[0]]).to_dict()["resolve"]["scale"]


def test_names_at_the_ends_of_lines_lie_below_each_other_in_a_stack_too():
    """An expression of a chart in a stack finds its scale, which Vega-Lite has renamed."""
    ends = {"asp": (10.0, 0.90), "bsp": (10.0, 0.91), "ssp": (0.5, 0.5)}
    lines = pd.DataFrame(
        {"label": name, "time_s": at, "val_accuracy": value, "event": None}
        for name, end in ends.items()
        for at, value in ((0.0, 0.1), end)
    )
    alone = charts.curve(lines[lines["label"] != "ssp"])
    early = charts.curve(lines[lines["label"] == "ssp"].assign(event=["begins", None]))
    falls = lines[lines["label"] != "ssp"].replace({"asp": "stops early", "bsp": "goes on"})
    falls["val_loss"] = [2.3, 0.4, 2.3, 0.3]
    falls["time_s"] = [0.0, 4.0, 0.0, 10.0]
    # where the other line goes on above an end, its name stands below it
    both = [
        falls.replace({"stops early": name, "goes on": f"{name} no more"}).assign(
            val_loss=[2.3, 0.9, 2.3, 0.3], time_s=[0.0, 4.0, 0.0, 10.0]
        )
        for name in ("under", "over")
    ]
    for table, value in zip(both, (1.4, 0.6), strict=True):
        table.loc[len(lines)] = table.iloc[-1].to_dict() | {"time_s": 5.0, "val_loss": value}
    # where it has no room beside its end, the name of a single line stands above what the line has been at
    single = pd.DataFrame(
        {"label": name, "time_s": [0, 7, 8, 9], "val_loss": [2.0, bump, 0.7, 0.4], "event": None}
        for name, bump in (("dips", 0.7), ("bumps", 1.2))
    ).explode(["time_s", "val_loss"])
    singles = [rows.astype({"time_s": float, "val_loss": float}) for _, rows in single.groupby("label")]
    sheet = charts.stack(
        [alone, early, *(charts.curve(table, "val_loss") for table in (falls, *both, *singles))],
    )
    for spec, version in ((sheet.to_dict(), OWN), (live(sheet.to_dict()), JUPYTERLAB)):
        texts = {
            found[3]: (float(found[2]), found[1])
            for found in re.finditer(
                r'text-anchor="(\w+)" transform="translate\([\d.]+,([-\d.]+)\)"[^>]*>([^<]+)<',
                vl_convert.vegalite_to_svg(spec, vl_version=version),
            )
        }
        (upper, _), (lower, _) = texts["bsp  91.0\u00a0%"], texts["asp  90.0\u00a0%"]
        assert lower - upper >= 15
        assert texts["begins"][1] == "start"  # there is no room before it
        ends = [texts[words][1] for words in ("stops early  0.4", "goes on  0.3")]
        assert ends == ["start", "end"]  # beside a line that falls, where there is room
        (below, side), (above, other) = texts["under  0.9"], texts["over  0.9"]
        assert (below - above, side, other) == (24, "end", "start")
        lift = texts["dips  0.4"][0] - texts["bumps  0.4"][0]
        assert lift == pytest.approx(0.5 / 2.0 * 250, rel=0.1)  # of a chart 260 pixels high


def test_charts_are_written_to_files_as_altair_writes_them(runs, tmp_path):
    shown, printed = (runs[0].chart("val_loss", style=style) for style in ("screen", "paper"))
    shown.save(tmp_path / "chart.json")
    assert json.loads((tmp_path / "chart.json").read_text()) == shown.to_dict()
    written = io.StringIO()  # which has no name that says how
    printed.save(written, format="json")
    assert json.loads(written.getvalue()) == printed.to_dict()


def test_a_saved_chart_takes_little_space(runs):
    bundle, _ = runs[0].chart("timeline")._repr_mimebundle_()
    assert len(base64.b64encode(bundle["image/png"])) + len(json.dumps(bundle[LIVE])) < 120_000


def test_layers_share_what_all_of_them_encode_alike():
    layers = [{"encoding": {"x": 1, "y": 2}}, {"encoding": {"x": 1, "y": 3}}]
    apart = [{"encoding": {"y": 2}}, {"encoding": {"y": 3}}]
    assert _shared({"layer": layers, "encoding": {"z": 4}}) == {"layer": apart, "encoding": {"x": 1, "z": 4}}


def test_jupyterlab_draws_every_chart_as_it_is_stored(runs):
    done = runs[-1]
    sheets = [done.chart(name) for name in ["val_loss", "sequence", "labels", "tree"]]
    sheets += [charts.stack([figure.chart]) for figure in charts.worker_figures(done)]
    sheets.append(charts.stack([charts.graph_chart([(0, 1), (1, 2), (2, 0)])]))
    for sheet in sheets:
        chart = sheet.to_dict()
        wanted = marks(chart, OWN)
        assert wanted
        assert len(marks(live(chart), JUPYTERLAB)) == len(wanted), chart["vconcat"][0]["title"]


def test_charts_can_be_chosen_by_name(runs, tiny):
    assert len(runs[0].chart("train_loss").vconcat) == 1
    assert len(compare(runs).chart("val_loss", "idle", x="epoch").vconcat) == 2
    with pytest.raises(UnknownName, match="did you mean 'timeline'"):
        runs[0].chart("time_line")
    assert len(runs[0].chart("sequence").vconcat) == 1
    with pytest.raises(UnknownName, match="sequence"):  # which would have no server in its middle
        run(tiny("d_psgd")).chart("sequence")


def test_every_name_of_a_chart_is_in_the_list_of_names(runs):
    figures = [*charts.curves(runs, [run.meta["strategy"] for run in runs]), *charts.worker_figures(runs[-1])]
    figures += [*charts.label_figures(runs[-1]), charts.sequence_figure(runs[-1])]
    figures += charts.comparison_figures({"asp": runs[2:4]})
    assert {figure.name for figure in figures} <= set(charts.TITLES)


def test_a_name_stands_for_all_its_figures(tiny):
    back = {"name": "strategy_switch", "rule": {"name": "after", "fraction": 0.5}}
    done = run(tiny(back))
    (switch,) = [f for f in charts.worker_figures(done) if f.name == "switch"]
    assert len(done.chart("switch").vconcat) == 1
    twice = charts.figures._chosen([switch, switch], ["switch"], 640)
    assert len(twice.vconcat) == 2


def test_a_sequence_diagram_tells_what_became_of_each_push(tiny):
    late = {"name": "k_bsp", "k": 1, "cancel": "on_arrival"}
    done = run(tiny(late).but(timing_only=True, stop={"updates": 12}, cluster={"workers": 3}))
    table = charts.sequence_table(done.log, stop_s=1e9)
    counts = table["what"].value_counts()
    pushes = done.summary()["pushes"]
    assert counts["lost"] == pushes["discarded"] > 0
    assert counts["send"] == pushes["committed"] + pushes["buffered"]
    assert counts["version"] == done.summary()["updates"] == 12
    assert set(table.loc[table["what"] == "send", "note"].str.extract(r"staleness (\d+)")[0]) == {"0"}


def test_a_sequence_diagram_ends_where_it_is_told_to(runs):
    figure = charts.sequence_figure(runs[0], stop_s=0.1)
    assert figure.table["to_s"].max() <= 0.1
    assert figure.spec["title"] == f"{runs[0].meta['strategy']}: who sends what to whom"
    versions = figure.table[figure.table["what"] == "version"]
    assert versions["note"].tolist() == [f"w{n}" for n in range(1, len(versions) + 1)]


def test_the_picture_keeps_rare_colours(tiny):
    few = tiny({"name": "k_bsp", "k": 2}).but(timing_only=True, stop={"updates": 12})
    bundle, _ = run(few).chart("sequence")._repr_mimebundle_()
    picture = Image.open(io.BytesIO(bundle["image/png"])).convert("RGB")
    colours = np.array([colour for _, colour in picture.getcolors(256)])
    for phase in ("compute", "send", "cancelled"):
        wanted = [*bytes.fromhex(on_paper(charts.PHASE_COLOURS[phase])[1:])]
        assert np.abs(colours - wanted).sum(axis=1).min() < 30, phase


@pytest.mark.nightly
def test_a_figure_of_a_paper_is_flatter_than_on_the_screen(runs):
    (shown, rows), (printed, printed_rows) = (
        runs[0].chart("val_loss", "idle", style=style).to_dict()["vconcat"] for style in ("screen", "paper")
    )
    assert printed["height"] == pytest.approx(0.75 * shown["height"], abs=0.5)
    assert printed_rows["height"] == rows["height"]  # three workers have as little room as can be


@pytest.mark.nightly
def test_a_figure_of_a_paper_has_the_size_font_and_units_of_one(runs, tmp_path):
    for width, inches in (("column", 3.4), ("page", 7.0)):
        sheet = runs[0].chart("val_loss", style="paper", width=width)
        sheet.save(tmp_path / "figure.svg")
        sheet.save(tmp_path / "figure.pdf")
        svg = (tmp_path / "figure.svg").read_text()
        numbers = re.search(r'width="(\S+)in" height="(\S+)in" viewBox="0 0 (\S+) ([\d.]+)"', svg).groups()
        assert svg.count('in" height="') == 1  # what is drawn within keeps its size
        size, high, scale, tall = map(float, numbers)
        assert (size, high) == (inches, pytest.approx(inches * tall / scale, abs=1e-4))
        points = {float(n) * inches * 72 / scale for n in re.findall(r'font-size="([\d.]+)px"', svg)}
        assert {round(n, 1) for n in points} == {8}
        assert "Times" in re.search(r'font-family="([^"]*)', svg)[1]
        assert "virtual time (s)" in svg
        assert not re.search(r">[\d.]+ s<", svg)
        assert ">Validation loss<" not in svg  # the caption says it
        box = re.search(rb"/MediaBox ?\[0 0 (\S+) ([\d.]+)", (tmp_path / "figure.pdf").read_bytes()).groups()
        assert [*map(float, box)] == pytest.approx([72 * inches, 72 * high], abs=0.1)
    runs[0].chart("time_use", style="paper").save(
        tmp_path / "bars.svg"
    )  # not every program knows translucency
    used = re.findall(r'"(#\w+)"', (tmp_path / "bars.svg").read_text())
    assert on_paper(charts.PHASE_COLOURS["compute"]) in used
    assert {len(colour) for colour in used} <= {4, 7}
    with pytest.raises(ParameterError, match=r"must end in \.svg or \.pdf"):
        sheet.save(tmp_path / "figure.png")
    for wrong, why in (
        ({"style": "pape"}, "style"),
        ({"width": "column"}, "in pixels"),
        ({"width": 300, "style": "paper"}, "column"),
    ):
        with pytest.raises(ParameterError, match=why):
            runs[0].chart("val_loss", **wrong)
