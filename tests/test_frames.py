"""Runs as tables, and what other programs read of them."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from functools import partial
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest

import psbench as ps
from psbench.cli import main
from psbench.core.log import Kind
from psbench.errors import SpecError, UnknownName
from psbench.results.csv_file import csv_of_rows
from psbench.results.export import write_table
from psbench.results.run import Run
from psbench.testing import toy_experiment


@pytest.fixture(scope="module")
def run():
    """A toy run, whose cluster holds workers back."""
    return ps.run(toy_experiment("ssp"))


@pytest.fixture(scope="module")
def saved(run, tmp_path_factory):
    """The same, saved."""
    return run.save(tmp_path_factory.mktemp("frames") / "run")


def test_curves_are_the_evaluations(run):
    frame = run.frame()
    wanted = run.log.evaluations()
    assert frame["val_accuracy"].tolist() == [row["val_accuracy"] for row in wanted]
    assert frame["updates"].tolist() == [row["version"] for row in wanted]
    assert frame["time_s"].iloc[-1] == run.summary()["time_s"]


def test_training_is_a_row_a_push(run):
    assert len(run.frame("training")) == len(run.log.of_kind(Kind.PUSH)["row"])


def test_events_are_the_log_in_words(run):
    frame = run.frame("events")
    assert len(frame) == len(run.log)
    assert set(frame.query("kind == 'hold'")["text"]) == {"staleness bound"}
    assert (frame["kind"] == "apply").sum() == run.summary()["updates"]


def test_a_comparison_s_frame_has_every_run_by_label_and_seed():
    compared = ps.compare([toy_experiment("bsp"), toy_experiment("asp")], seeds=2)
    frame = compared.frame()
    assert list(frame)[:2] == ["label", "seed"]
    found = frame.groupby(["label", "seed"], sort=False)["val_loss"].last()
    assert list(found.index) == [("bsp", 0), ("bsp", 1), ("asp", 0), ("asp", 1)]
    assert found.tolist() == [run.summary()["final"]["val_loss"] for run in compared.runs]


def test_an_unknown_table_is_one_line(run):
    with pytest.raises(UnknownName, match="did you mean 'curves'"):
        run.frame("curve")


#: pandas reads floats exactly by default since 3.0, and no longer wants to be asked
exact_csv = (
    pd.read_csv
    if int(pd.__version__.split(".")[0]) >= 3
    else partial(pd.read_csv, float_precision="round_trip")
)


@pytest.mark.parametrize(("suffix", "read"), [(".csv", exact_csv), (".parquet", pd.read_parquet)])
@pytest.mark.parametrize(
    "table", ["curves", "training", "events", "contributions", "trained", "utilisation", "neighbourhoods"]
)
def test_a_table_is_written_and_read_back(suffix, read, table, run, tmp_path):
    path = run.export(tmp_path / "new" / f"table{suffix}", table)
    found = read(path)
    wanted = run.frame(table)
    assert list(found) == list(wanted)
    for name in {"time_s", "gradients", "share", "value"} & {*wanted}:
        assert found[name].tolist() == wanted[name].tolist()
    assert list(path.parent.iterdir()) == [path]


def test_a_name_that_says_no_format_is_refused(run, tmp_path):
    with pytest.raises(SpecError, match=r"\.csv or \.parquet"):
        run.export(tmp_path / "table.xlsx")


def test_export_writes_each_file_it_is_asked_for(saved, tmp_path, capsys):
    files = [str(tmp_path / name) for name in ("a.csv", "a.parquet")]
    assert main(["export", str(saved), "--csv", files[0], "--parquet", files[1], "--table", "events"]) == 0
    assert capsys.readouterr().out.split() == files
    assert len(pd.read_csv(files[0])) == len(pd.read_parquet(files[1])) == len(Run.load(saved).log)


def test_tensorboard_reads_the_curves_at_the_run_s_own_time(run, tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(run.tensorboard(tmp_path))).Reload()
    assert "evaluation/val_accuracy" in found.Tags()["scalars"]
    points = found.Scalars("evaluation/val_loss")
    frame = run.frame()
    assert [point.step for point in points] == frame["updates"].tolist()
    assert [point.wall_time for point in points] == frame["time_s"].tolist()
    assert [point.value for point in points] == pytest.approx(frame["val_loss"].tolist())
    assert len(found.Scalars("training/train_loss")) == len(run.frame("training"))


@pytest.mark.skipif(not (find_spec("tensorflow") and find_spec("triton")), reason="needs both")
def test_torchvision_loads_after_tensorboard_and_its_tensorflow(saved, tmp_path):
    code = "import sys, psbench as ps; ps.Run.load(sys.argv[1]).tensorboard(sys.argv[2]); import torchvision"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, saved, tmp_path], check=True, capture_output=True
    )


def test_without_tensorboard_it_is_said_how_to_get_it(run, tmp_path, monkeypatch):
    monkeypatch.setattr("psbench.results.export.find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"pip install 'psbench\[tensorboard\]'"):
        run.tensorboard(tmp_path / "board")
    assert list(tmp_path.iterdir()) == []


def test_a_row_of_the_frame_is_what_a_logger_takes(run):
    rows = run.frame().to_dict("records")
    assert json.loads(json.dumps(rows[-1]))["val_accuracy"] == run.summary()["final"]["val_accuracy"]


def test_no_cell_of_a_csv_is_a_formula(tmp_path):
    """Read back by the standard library: a formula stands after an apostrophe, a number does not."""
    texts = [
        "=cmd|' /C calc'!A0",
        "+1+1",
        "-x",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "a\r=1",
        "asp",
        "-0.5",
        "+1e5",
        "-",
        "",
    ]
    frame = pd.DataFrame(
        {
            "=label": texts,
            "kind": pd.Categorical(texts),
            "loss": np.linspace(-1, 1, len(texts)),
            "updates": -np.arange(len(texts)),
        }
    )
    path = write_table(frame, tmp_path / "t.csv")
    with path.open(newline="") as file:
        heading, *rows = csv.reader(file)
    assert heading == ["'=label", "kind", "loss", "updates"]
    asis = ("a\r=1", "asp", "-0.5", "+1e5", "")
    expected = [(text if text in asis else f"'{text}").replace("\r", "\n") for text in texts]
    assert [row[0] for row in rows] == [row[1] for row in rows] == expected
    assert [float(row[2]) for row in rows] == frame["loss"].tolist()
    assert [int(row[3]) for row in rows] == frame["updates"].tolist()
    assert list(csv.reader(io.StringIO(csv_of_rows([texts]), newline=""))) == [expected]
    packed = pd.read_parquet(write_table(frame, tmp_path / "t.parquet"))
    assert packed["=label"].tolist() == texts
