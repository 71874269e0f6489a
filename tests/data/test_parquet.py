"""Parquet files give the arrays of the same table as CSV, block by block; a CSV's header is detected."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import psbench as ps
from psbench.data import CSV, Parquet
from psbench.errors import DataError, PsbenchError
from psbench.progress_events import listening
from psbench.seeds import Streams
from psbench.testing import toy_experiment
from psbench.training.build import Workload

PARTS = ("train_x", "train_y", "val_x", "val_y")
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.normal(3, 2, (1000, 3)).astype(np.float32), columns=["a", "b", "c"])
FRAME = FRAME.assign(kind=RNG.integers(0, 3, 1000), site=np.repeat(["x", "z", "y", "z"], 250))


@pytest.fixture
def files(tmp_path):
    """The same table as CSV with a header, and as two Parquet files of small row groups."""
    FRAME.drop(columns="site").to_csv(tmp_path / "table.csv", index=False, float_format="%.17g")
    FRAME[:300].to_parquet(tmp_path / "part-0.parquet", row_group_size=100)
    FRAME[300:].to_parquet(tmp_path / "part-1.parquet", row_group_size=100)
    return tmp_path


def parquet(folder, **options):
    given = {"target": "kind", "keep": ["site"], "path": str(folder / "part-*.parquet")}
    return Parquet(**given | {"cache": str(folder / "cache")} | options)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_table_is_the_same_as_csv_and_as_parquet(files, task):
    given = {"task": task, "target": "kind" if task == "classification" else "b", "keep": []}
    csv = CSV(path=str(files / "table.csv"), cache=str(files / "cache"), **given).load(Streams(0))
    other = parquet(files, **given | {"keep": ["site"]}).load(Streams(0))
    assert csv.features == other.features
    for part in PARTS:
        assert torch.equal(getattr(csv, part), getattr(other, part))
    assert (csv.classes, csv.target_scale) == (other.classes, other.target_scale)


def test_it_is_read_by_row_groups_and_mapped(files):
    heard = []
    with listening(lambda what, done: heard.append((what, done))):
        data = parquet(files, block_size=10_000).load(Streams(0))
    read = [done for what, done in heard if what.startswith("reading part-")]
    assert len(read) > 2
    assert read == sorted(read)
    assert read[-1] == 1
    heard.clear()
    with listening(lambda what, done: heard.append(what)):
        again = parquet(files, block_size=20_000).load(Streams(0))
    assert heard == []  # the arrays of the first time
    assert torch.equal(data.train_x, again.train_x)


def test_training_on_it_is_that_of_its_arrays_in_memory(files):
    """Against the frame, standardised by hand, as arrays."""
    given = {"model": "linear", "stop": {"updates": 8}, "cluster": {"workers": 2}, "sharding": "modular"}
    table = parquet(files, standardise=False, val_rows=200)
    x, y = FRAME[["a", "b", "c"]].to_numpy(), FRAME["kind"].to_numpy()
    arrays = (x[:800], y[:800], x[800:], y[800:])
    ours, theirs = (ps.run(toy_experiment(data=data, **given)) for data in (table, arrays))
    assert torch.equal(ours.parameters, theirs.parameters)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_kept_column_divides_the_table(files, kind):
    if kind == "csv":
        FRAME.assign(site=FRAME["site"].map(ord)).to_csv(files / "sites.csv", index=False)
        data = CSV(path=str(files / "sites.csv"), target="kind", keep=["site"], cache=str(files / "c"))
    else:
        data = parquet(files)
    sharding = {"name": "column", "column": "site"}
    shards = Workload.build(toy_experiment(data=data, sharding=sharding)).shards
    sites = FRAME["site"].to_numpy()
    assert [set(sites[shard]) for shard in shards] == [{"z"}, {"x"}, {"y"}]  # 300 of z, as 200 validate


@pytest.mark.parametrize(
    ("first", "header"),
    [
        ("a,b,kind", True),
        ('"a","b","kind"', True),
        ("1,2,0", False),
        ("nan,2,0", None),
        ("1,b,0", None),
    ],
)
def test_a_header_is_told_from_the_first_line(tmp_path, first, header):
    (tmp_path / "t.csv").write_text(f"{first}\n" + "3,4,1\n5,6,0\n" * 3)
    given = {"path": str(tmp_path / "t.csv"), "target": -1, "standardise": False, "val_rows": 0}
    if header is None:  # a fault in the data, and not taken for names
        with pytest.raises(PsbenchError, match="line 1, column"):
            CSV(**given, cache=str(tmp_path)).load(Streams(0))
        return
    told = CSV(**given, cache=str(tmp_path / "1")).load(Streams(0))
    said = CSV(**given, cache=str(tmp_path / "2"), header=header).load(Streams(0))
    assert len(told.train_y) == 6 + (not header)
    assert torch.equal(told.train_x, said.train_x)
    assert told.features == said.features
    assert told.features[1] == ("b" if header else "column 1")
    if header:
        named = CSV(**given | {"target": "kind"}, cache=str(tmp_path / "3")).load(Streams(0))
        assert torch.equal(named.train_x, told.train_x)


def bad(folder, frame, **options):
    frame.to_parquet(folder / "bad.parquet")
    return parquet(folder, **{"path": str(folder / "bad.parquet"), "keep": []} | options)


def gaps(*values):
    return list(values) * 500


PLAIN = FRAME.drop(columns="site")


@pytest.mark.parametrize("kind", [pd.Timestamp, lambda day: [day]])
def test_labels_that_are_neither_numbers_nor_texts_are_classes(tmp_path, kind):
    days = ["2026-01-02", "2026-01-01"]
    data = bad(tmp_path, PLAIN.assign(kind=[kind(day) for day in days * 500])).load(Streams(0))
    assert (len(data.classes), data.train_y[:3].tolist()) == (2, [1, 0, 1])


BAD = {
    "text column": (lambda f: bad(f, FRAME), "column 'site' is not numeric"),
    "missing": (lambda f: bad(f, PLAIN.assign(b=[None, *FRAME["b"][1:]])), "row 0, column 'b'"),
    "missing text": (lambda f: bad(f, PLAIN.assign(kind=gaps("x", None))), "row 1, column 'kind': "),
    "missing kept": (lambda f: bad(f, PLAIN.assign(s=gaps("x", None)), keep=["s"]), "row 1, column 's': "),
    "missing category": (
        lambda f: bad(f, PLAIN.assign(kind=pd.Categorical(gaps("x", None)))),
        "row 1, column 'kind': ",
    ),
    "infinite": (lambda f: bad(f, PLAIN.assign(c=[*FRAME["c"][:-1], np.inf])), "row 999, column 'c'"),
    "fractions": (lambda f: bad(f, PLAIN, target="a"), "row 0: "),
    "target": (lambda f: bad(f, PLAIN, target="kid"), "did you mean 'kind'?"),
    "number": (lambda f: bad(f, PLAIN, target=4), "there are 4 columns"),
    "kept": (lambda f: bad(f, PLAIN, keep=["sight"]), "unknown column"),
    "kept target": (lambda f: bad(f, PLAIN, keep=["kind"]), "is the target"),
    "no inputs": (lambda f: bad(f, PLAIN, keep=["a", "b", "c"]), "no column is left for inputs"),
    "unsigned": (
        lambda f: bad(f, PLAIN.assign(kind=np.array(gaps(1, 2**63), dtype=np.uint64))),
        "row 1, column 'kind': 9223372036854775808 is not a signed",
    ),
    "one column": (lambda f: bad(f, PLAIN[["kind"]]), "one column only"),
    "no path": (lambda f: Parquet(), "no path given"),
    "no file": (lambda f: parquet(f, path=str(f / "part-3.parquet")), "did you mean"),
    "csv": (lambda f: parquet(f, path=str(f / "table.csv")), "is not a Parquet file"),
    "other columns": (lambda f: bad(f, PLAIN, path=str(f / "*.parquet")), "has columns"),
    "validation": (lambda f: parquet(f, val_rows=1000), "leave none of 1000 to train on"),
    "twice": (lambda f: parquet(f, val_rows=1, val_fraction=0.1), "not both"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_table_is_one_line(files, case):
    make, expected = BAD[case]
    with pytest.raises(PsbenchError) as refused:
        make(files).load(Streams(0))
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xffx")]
)


@pytest.mark.parametrize(
    ("column", "reason"),
    [(NOT_UTF8, "'utf-8' codec"), (pa.array([0, 2**53], pa.timestamp("ms")), "out of range")],
    ids=["a text", "a date"],
)
def test_a_value_that_python_has_not_is_of_a_damaged_file(tmp_path, column, reason):
    pq.write_table(pa.table({"a": [1.0, 2.0], "site": column, "kind": [0, 1]}), tmp_path / "part-0.parquet")
    with pytest.raises(DataError, match=f"part-0.parquet: is not a Parquet file, or is damaged .*{reason}"):
        parquet(tmp_path).load(Streams(0))
