"""CSV files: read by blocks, kept as mapped arrays, refused with the line named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from psbench.data import CSV, Parquet, blocks, converted, data, generate
from psbench.data.layouts import LAYOUTS
from psbench.data.scaling import ROWS, Moments, standardise
from psbench.errors import DataError, ParameterError, SpecError
from psbench.progress_events import listening
from psbench.runs.execution import run
from psbench.seeds import Streams
from psbench.testing import toy_experiment
from psbench.training.build import Workload

PARTS = ("train_x", "train_y", "val_x", "val_y")


# ------------------------------------------------------------------ reading


@pytest.mark.parametrize("block_size", [10_000, 12_345, 8_000_000])
def test_arrays_are_those_of_pandas_whatever_the_blocks(table, load, block_size):
    path, _ = table
    data = load(path, target=-1, standardise=False, block_size=block_size)
    theirs = pd.read_csv(path, header=None, dtype=np.float32).to_numpy()
    assert torch.equal(torch.cat([data.train_x, data.val_x]), torch.from_numpy(theirs[:, :3]))
    assert torch.cat([data.train_y, data.val_y]).tolist() == theirs[:, 3].tolist()
    assert (len(data.val_y), data.classes, data.task) == (200, ("0", "1", "2"), "classification")


def test_it_reads_a_few_blocks_at_a_time(table, load, monkeypatch):
    """No frame that pandas makes has more rows than a block of 10,000 bytes has."""
    path, _ = table
    seen, heard = [], []
    whole = blocks._block
    monkeypatch.setattr(blocks, "_block", lambda frame, about: seen.append(len(frame)) or whole(frame, about))
    with listening(lambda what, done: heard.append((what, done))):
        load(path, target=3, block_size=10_000)
    assert sum(seen) == 1000
    assert len(seen) == path.stat().st_size // 10_000
    assert max(seen) < 1.3 * 1000 * 10_000 / path.stat().st_size
    told = [done for what, done in heard if what == "reading table.csv"]
    assert len(told) == len(seen)
    assert told == sorted(told)
    assert told[-1] == 1


def test_several_files_are_one_table(table, load, tmp_path):
    path, rows = table
    lines = path.read_text().splitlines(keepends=True)
    for number, (begin, end) in enumerate([(0, 300), (300, 301), (301, 1000)]):
        (tmp_path / f"part-{number}.csv").write_text("".join(lines[begin:end]))
    data = load(tmp_path / "part-*.csv", target=3, standardise=False)
    assert torch.equal(torch.cat([data.train_x, data.val_x]), torch.from_numpy(rows[:, :3]))


def test_a_header_names_the_target(table, load, tmp_path):
    path, _ = table
    file = tmp_path / "named.csv"
    file.write_text("a,b,c,kind\n" + path.read_text() + "\n")  # and a blank line at the end
    by_name = load(file, header=True, target="kind", block_size=10_000)
    by_number = load(file, header=True, target=3)
    without = load(path, target=3)
    for part in PARTS:
        assert torch.equal(getattr(by_name, part), getattr(without, part))
        assert torch.equal(getattr(by_name, part), getattr(by_number, part))
    assert load(file, header=True, target="b", task="regression").train_x.shape == (800, 3)


@pytest.mark.parametrize("head", ["kind,x\n", ""])
def test_the_mark_that_spreadsheets_put_in_front_is_no_text(load, tmp_path, head):
    (tmp_path / "a.csv").write_text(head + "10,5\n2,6\n", encoding="utf-8-sig")
    data = load(tmp_path / "a.csv", target="kind" if head else 0, val_rows=0)
    assert (data.classes, data.train_y.tolist()) == (("2", "10"), [1, 0])


def test_a_file_is_read_whatever_its_name(load, tmp_path):
    (tmp_path / "a1.csv").write_text("0,8\n1,9\n")
    for name in ("a[1].csv", "é" * 120 + ".csv"):
        (tmp_path / name).write_text("0,2\n1,3\n")
        data = load(tmp_path / name, val_rows=0, standardise=False)
        assert data.train_x.tolist() == [[2], [3]]


def test_standardising_is_that_of_the_training_rows(table, load):
    path, rows = table
    data = load(path, target=3)
    x = rows[:, :3].astype(np.float64)
    expected = (x - x[:800].mean(axis=0)) / x[:800].std(axis=0)
    np.testing.assert_allclose(torch.cat([data.train_x, data.val_x]), expected, rtol=1e-4, atol=1e-6)
    years = load(path, target=0, task="regression")
    assert years.target_scale == pytest.approx((x[:800, 0].mean(), x[:800, 0].std()))
    mean, deviation = years.target_scale
    np.testing.assert_allclose(years.train_y * deviation + mean, x[:800, 0], rtol=1e-4, atol=1e-5)


def test_moments_by_blocks_are_those_of_numpy():
    rows = np.random.default_rng(1).normal(100, 0.1, (2 * ROWS + 7, 2)).astype(np.float32)
    rows[:, 1] = 5
    moments = Moments()
    for block in np.array_split(rows, 5):
        moments.add(block)
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0, dtype=np.float64))
    np.testing.assert_allclose(moments.deviation, [rows[:, 0].std(dtype=np.float64), 1])
    standardise(rows, len(rows) - 7)
    np.testing.assert_allclose([rows[:, 0].mean(), rows[:, 0].std(), rows[:, 1].std()], [0, 1, 0], atol=1e-3)


@pytest.mark.parametrize(
    ("options", "val"),
    [({}, 200), ({"val_rows": 3}, 3), ({"val_rows": 0}, 0), ({"val_fraction": 0.5}, 500)],
)
def test_validation_is_the_end(table, load, options, val):
    path, rows = table
    data = load(path, target=3, standardise=False, **options)
    assert len(data.val_y) == val
    assert torch.equal(data.train_x, torch.from_numpy(rows[: 1000 - val, :3]))


@pytest.mark.parametrize(("name", "val_rows"), [("higgs", 500_000), ("year_prediction_msd", 51_630)])
def test_of_a_published_file_the_published_rows_are_for_validation(name, val_rows):
    layout = LAYOUTS[name]
    published = converted.Conversion(
        [], layout.columns, 0, False, layout.task, (), None, layout.val_fraction, True, 1
    )
    assert layout.rows - published.train_rows(layout.rows) == val_rows
    assert len(layout.columns) - 1 == {"higgs": 28, "year_prediction_msd": 90}[name]


# ------------------------------------------------------------------ the arrays


def test_a_table_is_converted_once_and_again_when_it_changes(table, load, tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    path.write_text(table[0].read_text())
    calls = []
    usual = converted.numbers_in
    monkeypatch.setattr(converted, "numbers_in", lambda *about: calls.append(1) or usual(*about))
    first, again = load(path, target=3), load(path, target=3, block_size=10_000)
    assert len(calls) == 1
    assert torch.equal(first.train_x, again.train_x)
    load(path, target=3, val_rows=1)
    assert len(calls) == 2
    with path.open("a") as file:
        file.write("1,2,3,0\n")
    load(path, target=3)
    assert len(calls) == 3


def test_arrays_are_views_of_files_that_nothing_changes(table, load, tmp_path):
    path, _ = table
    data = load(path, target=3)
    kept = data.train_x.clone()
    data.train_x.add_(1)
    assert torch.equal(load(path, target=3).train_x, kept)
    assert data.val_x.untyped_storage().data_ptr() == data.train_x.untyped_storage().data_ptr()


@pytest.mark.parametrize("sharding", ["stratified", "random", "dirichlet"])
def test_shardings_get_the_mapped_array_itself(table, tmp_path, monkeypatch, sharding):
    data = {"name": "csv", "path": str(table[0]), "target": 3, "cache": str(tmp_path)}
    experiment = toy_experiment(data=data, sharding=sharding)
    got = []
    usual = type(experiment.sharding).assign

    def assign(self, features, *about):
        got.append(features)
        return usual(self, features, *about)

    monkeypatch.setattr(type(experiment.sharding), "assign", assign)
    workload = Workload.build(experiment)
    assert np.shares_memory(got[0], workload.data.train_x.numpy())


def test_nothing_is_left_of_a_file_that_is_refused(table, load, tmp_path):
    file = tmp_path / "bad.csv"
    file.write_text(table[0].read_text() + "1,2,x,0\n")
    with pytest.raises(DataError):
        load(file, target=3)
    assert list((tmp_path / "cache" / "csv").iterdir()) == []


CACHE_DAMAGE = {
    "cut": lambda folder: _rewrite(folder / "features.npy", lambda raw: raw[:-8]),
    "empty": lambda folder: (folder / "features.npy").write_bytes(b""),
    "gone": lambda folder: (folder / "targets.npy").unlink(),
    # an unclosed bracket, a shape of 10**12 rows, another type: none is parsed
    "header": lambda folder: _rewrite(folder / "features.npy", lambda raw: raw.replace(b"}", b"(", 1)),
    "shape": lambda folder: _rewrite(
        folder / "features.npy", lambda raw: raw.replace(b"(1000,", b"(10**12", 1)
    ),
    "type": lambda folder: _rewrite(folder / "targets.npy", lambda raw: raw.replace(b"<i8", b"<f8", 1)),
    "labels": lambda folder: _rewrite(folder / "targets.npy", lambda raw: raw[:-8] + b"\xff" * 8),
    "about": lambda folder: _rewrite(folder / "about.json", lambda raw: raw[:-9]),
    "numbers": lambda folder: _rewrite(folder / "about.json", lambda raw: raw.replace(b"800", b"8e9")),
    "rows": lambda folder: _rewrite(folder / "about.json", lambda raw: raw.replace(b"1000", b"9" * 30)),
    "list": lambda folder: (folder / "about.json").write_text("[" * 5000),
}  # fmt: skip


def _rewrite(path, change):
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("damage", CACHE_DAMAGE)
def test_a_damaged_cache_is_made_again_with_a_warning(table, load, tmp_path, damage):
    first = load(table[0], target=3).train_x.clone()
    (folder,) = (tmp_path / "cache" / "csv").iterdir()
    assert json.loads((folder / "about.json").read_text())["train"] == 800
    CACHE_DAMAGE[damage](folder)
    with pytest.warns(UserWarning, match=r"is damaged .*; the table is read again"):
        again = load(table[0], target=3)
    assert torch.equal(first, again.train_x)
    assert torch.equal(load(table[0], target=3).val_y, again.val_y)  # and no warning


def test_the_quicker_of_two_processes_wins(table, load, tmp_path, monkeypatch):
    path, _ = table
    first = load(path, target=3)
    usual = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda self: self.parent.name != "csv" and usual(self))
    assert torch.equal(load(path, target=3).train_x, first.train_x)
    assert len(list((tmp_path / "cache" / "csv").iterdir())) == 1


def test_a_cache_that_cannot_be_written_is_named(table, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"cannot be written: .*; choose another cache"):
        CSV(path=str(table[0]), target=3, cache=str(tmp_path / "file")).load(Streams(0))


def test_labels_that_are_texts_are_those_of_a_frame(load, tmp_path):
    """In alphabetical order, whichever comes first; in CSV with and without a header, and in Parquet."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(size=(900, 2)), columns=["a", "b"]).assign(
        kind=np.array(["setosa", "ibis", "1"])[np.r_[0, 2, 1, rng.integers(0, 3, 897)]],
        site=np.array(["x", "y"])[rng.integers(0, 2, 900)],
    )
    expected = data(frame, target="kind", keep=["site"], val_fraction=0).load(Streams(0))
    frame.to_csv(tmp_path / "named.csv", index=False)
    frame.to_csv(tmp_path / "bare.csv", index=False, header=False)
    frame.to_parquet(tmp_path / "named.parquet")
    options = {"target": "kind", "keep": ["site"], "val_rows": 0, "standardise": False}
    bare = {**options, "target": "2", "keep": ["column 3"]}
    parquet = Parquet(path=str(tmp_path / "named.parquet"), cache=str(tmp_path), **options).load(Streams(0))
    for found in (
        load(tmp_path / "named.csv", block_size=10_000, **options),
        load(tmp_path / "bare.csv", **bare),
        parquet,
    ):
        assert found.classes == expected.classes == ("1", "ibis", "setosa")
        assert torch.equal(found.train_y, expected.train_y)
        torch.testing.assert_close(found.train_x, expected.train_x)
        alike = found.columns.get("site", found.columns.get("column 3"))
        assert np.array_equal(alike == alike[0], expected.columns["site"] == expected.columns["site"][0])
    (tmp_path / "none.csv").write_text("a,kind\n1,setosa\n2,NA\n3,None\n")
    assert load(tmp_path / "none.csv", target="kind", val_rows=0).classes == ("NA", "None", "setosa")
    (tmp_path / "gap.csv").write_text("a,kind\n1,setosa\n2,ibis\n3,\n")
    with pytest.raises(DataError, match=r"line 4, column 1 \(kind\): '' is not a number"):
        load(tmp_path / "gap.csv", target="kind")
    (tmp_path / "same.csv").write_text("a,kind\n1,setosa\n2,setosa\n")
    with pytest.raises(DataError, match="all rows have the same target, setosa"):
        load(tmp_path / "same.csv", target="kind")


# ------------------------------------------------------------------ bad input


BAD_LINES = [
    ("1,2,0", "has 3 columns, expected 4"),
    ("1,2,3,0,5", "has 5 columns, expected 4"),
    ("1,2,3,0,5,6,7", "has 7 columns, expected 4"),
    ("1,two,3,0", r"column 1 \(column 1\): 'two' is not a number; correct or remove the line"),
    ("1,,3,0", r"column 1 \(column 1\): '' is not a number"),
    ("1,NA,3,0", r"column 1 \(column 1\): 'NA' is not a number"),
    ("1,2,-inf,0", r"column 2 \(column 2\): '-inf' is not a finite number"),
    ("1,2,1e39,0", r"column 2 \(column 2\): '1e39' is not a finite number"),
    ("1,2,3,0.5", "0.5 is not a class; expected a whole number .for numeric targets set task: regression"),
]


@pytest.mark.parametrize(
    ("row", "line", "message"),
    # the first line says how many columns there are
    [(row, *bad) for row in (1, 2, 700, 1000) for bad in BAD_LINES if row > 1 or "columns" not in bad[1]],
)
def test_a_bad_line_is_named(table, load, tmp_path, row, line, message):
    lines = table[0].read_text().splitlines()
    lines[row - 1] = line
    file = tmp_path / "bad.csv"
    file.write_text("\n".join(lines))
    with pytest.raises(DataError, match=rf"bad\.csv: line {row}(, |: | ){message}"):
        load(file, target=3, block_size=10_000)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, "is empty"),
        ("\n\n", {}, "is empty"),
        ("a,b\n", {"header": True}, "has no rows"),
        ("1\n2\n", {}, r"has one column only \(is it comma-separated\?\)"),
        ("1,2\n1,3\n", {}, "all rows have the same target, 1; check target"),
        ("1,2\n2,3\n", {"layout": "higgs"}, "line 1 has 2 columns, but layout 'higgs' has 29; for another"),
        (",".join(["2"] + ["0"] * 28), {"layout": "higgs"}, "line 1: 2 is not a class; expected 0 to 1"),
        (b"\x1f\x8b\x08\x00", {}, "is compressed, so it cannot be read block by block; unpack it: gunzip"),
        ("".join(f"{n},0\n" for n in range(1001)), {}, "more than 1000 different targets in column 0"),
    ],
)
def test_files_that_are_no_tables(load, tmp_path, content, options, message):
    file = tmp_path / "bad.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message):
        load(file, **options)


def test_classes_are_called_by_all_their_digits(load, tmp_path):
    (tmp_path / "a.csv").write_text("9000001,1\n9000002,2\n")
    assert load(tmp_path / "a.csv", val_rows=0).classes == ("9000001", "9000002")


def test_files_that_are_not_there(load, tmp_path):
    (tmp_path / "higgs.csv").write_text("1,2\n")
    with pytest.raises(
        DataError, match=r"higs\.csv: there is no such file or folder; did you mean .*higgs\.csv\?"
    ):
        load(tmp_path / "higs.csv")
    with pytest.raises(DataError, match=r"nor a folder .*nowhere"):
        load(tmp_path / "nowhere" / "higgs.csv")
    with pytest.raises(DataError, match=r"is a folder; name its files, such as .*\*\.csv"):
        load(tmp_path)
    with pytest.raises(DataError, match="no path given; set path"):
        load("")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val_rows": 5, "val_fraction": 0.1}, "give val_rows or val_fraction, not both"),
        ({"layout": "higgs", "target": 3}, "layout 'higgs' defines target itself; remove it"),
        ({"layout": "higgs", "target": 0, "task": "regression"}, "defines task itself"),
        ({"val_rows": 1000}, "1000 rows for validation leave none of 1000 to train on; lower val_rows"),
        ({"target": 4}, "target 4, but there are 4 columns, numbered from 0"),
        ({"target": "kind"}, "target 'kind' is a name, but there is no header; set header: true"),
    ],
)
def test_parameters_that_do_not_go_together(table, load, options, message):
    with pytest.raises(ParameterError, match=message):
        load(table[0], **{"target": 3} | options)


def test_a_target_that_the_header_does_not_name(load, tmp_path):
    (tmp_path / "a.csv").write_text("price,size\n1,2\n")
    with pytest.raises(SpecError, match=r"unknown target of data 'csv' 'prize'; did you mean 'price'\?"):
        load(tmp_path / "a.csv", header=True, target="prize")


# ------------------------------------------------------------------ larger than memory


_TRAIN = """
import sys, threading
from psbench import Experiment, run

def anonymous_kb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))

def train(path):
    settings = {"model": "logistic", "cluster": {"workers": 2}, "strategy": "bsp", "batch_size": 200}
    data = {"name": "csv", "path": path, "layout": "higgs", "cache": sys.argv[1], "block_size": 300_000}
    return run(Experiment(data=data, **settings, stop={"updates": 50}, evaluate_every=1e9))

train(sys.argv[2])  # a small file: what libraries take is taken then
before, highest, over = anonymous_kb(), 0, threading.Event()

def watch():
    global highest
    while not over.wait(0.003):
        highest = max(highest, anonymous_kb())

watcher = threading.Thread(target=watch)
watcher.start()
done = train(sys.argv[3])
over.set()
watcher.join()
print(done.meta["dataset_size"], done.summary()["updates"], highest - before)
"""


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_features(tmp_path):
    """Reading and training take less than half of what the features alone would as 32-bit floats."""
    rows = 400_000
    files = [generate("higgs", tmp_path / f"{n}.csv", n) for n in (20_000, rows)]
    command = [sys.executable, "-c", _TRAIN, str(tmp_path / "cache"), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    size, updates, more_kb = map(int, done.stdout.split())
    assert (size, updates) == (rows - round(rows / 22), 50)
    assert more_kb * 1024 < rows * 28 * 4 / 2


@pytest.mark.slow
def test_a_table_makes_the_same_run_twice(table, tmp_path):
    data = {"name": "csv", "path": str(table[0]), "target": 3, "cache": str(tmp_path)}
    first, again = (run(toy_experiment("asp", data=data)) for _ in range(2))
    assert first.log.digest() == again.log.digest()
    assert first.summary()["final"]["val_accuracy"] is not None
