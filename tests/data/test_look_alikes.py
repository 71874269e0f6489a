"""Files that look like published ones: what is written, and what is learned from it."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from psbench.cli import main
from psbench.data import SyntheticTable, generate
from psbench.data.layouts import LAYOUTS
from psbench.errors import SpecError
from psbench.progress_events import listening
from psbench.seeds import Streams


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_a_look_alike_is_the_file_that_is_written(load, tmp_path, layout):
    file = generate(layout, tmp_path / "made.csv", 9000, seed=5)
    ours = SyntheticTable(layout=layout, samples=9000).load(Streams(5))
    read = load(file, layout=layout, val_fraction=0.2, block_size=1_000_000)
    for part in ("train_x", "train_y", "val_x", "val_y"):
        # the file has nine digits, enough to tell 32-bit floats apart
        torch.testing.assert_close(getattr(ours, part), getattr(read, part), rtol=1e-5, atol=1e-6)
    assert ours.target_scale == pytest.approx(read.target_scale, rel=1e-7)
    assert ours.classes == read.classes
    first = file.read_text().partition("\n")[0].split(",")
    assert len(first) == len(LAYOUTS[layout].columns)


def test_a_longer_look_alike_begins_with_the_shorter(tmp_path):
    short, long = (generate("higgs", tmp_path / f"{n}.csv", n, seed=1).read_text() for n in (100, 8300))
    other = generate("higgs", tmp_path / "other.csv", 100, seed=2).read_text()
    assert long.startswith(short)
    assert long.count("\n") == 8300
    assert other != short


@pytest.mark.slow
def test_there_is_something_to_be_learned():
    """A logistic model finds part of what tells labels apart, trees more; half of the years is noise."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LinearRegression, LogisticRegression

    data = SyntheticTable(layout="higgs", samples=4000).load(Streams(0))
    x, y, val_x, val_y = (getattr(data, part).numpy() for part in ("train_x", "train_y", "val_x", "val_y"))
    line = LogisticRegression().fit(x, y).score(val_x, val_y)
    most = max(np.bincount(val_y)) / len(val_y)
    assert most + 0.05 < line < 0.75
    assert HistGradientBoostingClassifier(max_iter=20, random_state=0).fit(x, y).score(val_x, val_y) > line
    data = SyntheticTable(layout="year_prediction_msd", samples=4000).load(Streams(0))
    x, y, val_x, val_y = (getattr(data, part).numpy() for part in ("train_x", "train_y", "val_x", "val_y"))
    assert LinearRegression().fit(x, y).score(val_x, val_y) == pytest.approx(0.5, abs=0.05)
    mean, deviation = data.target_scale
    assert (1975 < mean < 1985, 7 < deviation < 9) == (True, True)


def test_the_command_that_writes_one(tmp_path, capsys):
    file = tmp_path / "made.csv"
    command = ["generate", "higgs", "--rows", "1_000", "--out", str(file)]
    assert main(command) == 0
    assert capsys.readouterr().out.strip() == str(file)
    assert file.read_text().count("\n") == 1000
    before = file.stat().st_mtime_ns
    assert main(command) == 2
    assert "exists already; choose another name, or overwrite it (--force)" in capsys.readouterr().err
    assert file.stat().st_mtime_ns == before
    assert main([*command, "--seed", "1", "--force"]) == 0
    assert main(["generate", "higs", "--rows", "5"]) == 2
    assert "did you mean 'higgs'?" in capsys.readouterr().err


SPECIFICATION = """
data: {{name: csv, path: {path}, layout: {layout}, cache: {cache}}}
model: {model}
cluster: {{workers: 4}}
sharding: {{name: stratified, rotate: true}}
strategy: {strategy}
optimizer: {{name: sgd, lr: 0.05}}
batch_size: {batch_size}
stop: {{tolerance: {tolerance}, updates: 300}}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "model", "strategy", "batch_size"),
    [
        ("higgs", "logistic", "map_reduce", 1909),  # the whole of 2,000 rows but 91
        ("year_prediction_msd", "linear", "bsp", 300),
        ("higgs", "{name: mlp, hidden: [15, 15]}", "asp", 300),
    ],
)
def test_from_the_command_to_the_count_of_mini_batches(tmp_path, capsys, layout, model, strategy, batch_size):
    file = tmp_path / "made.csv"
    assert main(["generate", layout, "--rows", "2000", "--out", str(file)]) == 0
    spec = tmp_path / "spec.yaml"
    about = {"path": file, "layout": layout, "model": model, "strategy": strategy, "batch_size": batch_size}
    about["tolerance"] = 0.01
    if layout != "higgs":  # a tenth of the rows is for validation; and the noise of mini-batches is larger
        about |= {"batch_size": min(batch_size, 1800), "tolerance": 0.05}
    spec.write_text(SPECIFICATION.format(cache=tmp_path / "cache", **about))
    capsys.readouterr()
    assert main(["run", str(spec)]) == 0
    told = capsys.readouterr().out
    assert f"finished: an update moved the model by less than {about['tolerance']}" in told
    assert re.search(rf"mini-batches +[\d.]+ of {about['batch_size']} samples", told)


@pytest.mark.parametrize(("free", "rows"), [(10_000, 1_000_000)])
def test_a_disk_that_is_too_small_is_noticed_at_once(tmp_path, monkeypatch, free, rows):
    monkeypatch.setattr("psbench.system.limits.free_disk", lambda folder: free)
    with pytest.raises(
        SpecError, match=r"rows would take about \d+ MB of disk in .*, and 10 kB are free; make fewer"
    ):
        generate("higgs", tmp_path / "made.csv", rows)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_file_is_not_left(tmp_path):
    def interrupt(what, done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), listening(interrupt):
        generate("higgs", tmp_path / "made.csv", 20_000)
    assert list(tmp_path.iterdir()) == []
