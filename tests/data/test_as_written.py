"""Numbers stay what is written in a file, or in a user's object, until they are scaled; ids stay apart."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

import psbench as ps
from psbench.data import CSV, Parquet
from psbench.errors import DataError, ParameterError, PsbenchError
from psbench.seeds import Streams
from psbench.testing import toy_experiment
from psbench.training.build import Workload

#: seconds since 1970, which 32-bit floats tell apart by 128
SECONDS = 1.7e9 + np.arange(1000.0)
#: whole numbers that 64-bit floats do not tell apart either
IDS = 2**60 + np.arange(4)


def source(kind, frame, folder, **options):
    """The same table as CSV, as Parquet, and as a frame."""
    if kind == "frame":
        given = {"standardise": options.pop("standardise", True), "val_fraction": 0}
        return ps.data(frame, target=options["target"], keep=options.get("keep", ()), **given)
    options = {"val_rows": 0, "cache": str(folder / "cache")} | options
    path = folder / f"table.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
        return CSV(path=str(path), **options)
    frame.to_parquet(path)
    return Parquet(path=str(path), **options)


KINDS = ["csv", "parquet", "frame"]


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_and_targets_far_from_0_are_standardised_as_numpy_does(tmp_path, kind):
    frame = pd.DataFrame({"time": SECONDS, "target": SECONDS[::-1] / 7})
    options = {} if kind == "frame" else {"task": "regression"}
    data = source(kind, frame, tmp_path, target="target", **options).load(Streams(0))
    for found, values in ((data.train_x[:, 0], frame["time"]), (data.train_y, frame["target"])):
        expected = (values - values.mean()) / values.std(ddof=0)
        np.testing.assert_allclose(found, expected.astype(np.float32), rtol=1e-5, atol=1e-6)
        assert len(found.unique()) == 1000
    assert data.target_scale == pytest.approx((frame["target"].mean(), frame["target"].std(ddof=0)))


@pytest.mark.parametrize("given", ["array", "tensor", "validation", "whole", "Dataset"])
def test_arrays_far_from_0_are_standardised_as_numpy_does(given):
    x, y = SECONDS[:, None], np.arange(1000) % 2
    options = {"standardise": True, "val_fraction": 0}
    if given == "tensor":
        source = ps.data((torch.from_numpy(x), torch.from_numpy(y)), **options)
    elif given == "validation":  # of 32 bits, as far as it has them
        source = ps.data((x, y, np.float32(x[:10]), y[:10]), standardise=True)
    elif given == "whole":
        source = ps.data((x.astype(np.int64), y), inputs="numbers", **options)
    elif given == "Dataset":
        tensors = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        source = ps.data(tensors, **options)
    else:
        source = ps.data((x, y), **options)
    found = source.load(Streams(0)).train_x
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, (x - x.mean()) / x.std(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_never_changes_becomes_0(tmp_path, kind):
    """Also where the mean of equal 64-bit floats differs from them in the last bit."""
    frame = pd.DataFrame({"same": np.full(1000, 0.1), "a": SECONDS, "target": np.arange(1000) % 2})
    assert np.full(1000, 0.1).mean() != 0.1
    data = source(kind, frame, tmp_path, target="target").load(Streams(0))
    assert not data.train_x[:, 0].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ids", [IDS, -IDS, 20230001 + np.arange(4), np.array([2.5, 1, 2**52, 2**52 + 1])])
def test_a_kept_column_divides_by_its_own_values(tmp_path, kind, ids):
    users = np.repeat(ids, [40, 30, 20, 10])
    frame = pd.DataFrame({"user": users, "a": SECONDS[:100], "target": np.arange(100) % 2})
    data = source(kind, frame, tmp_path, target="target", keep=["user"])
    assert data.load(Streams(0)).columns["user"].tolist() == users.tolist()
    sharding = {"name": "column", "column": "user"}
    experiment = toy_experiment(data=data, sharding=sharding, cluster={"workers": 4})
    shards = Workload.build(experiment).shards
    assert [set(users[shard]) for shard in shards] == [{each} for each in ids.tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_kept_texts_divide_alike_whatever_they_came_in(tmp_path, kind):
    """As many of each: the order is that of the texts."""
    frame = pd.DataFrame({"site": list("cab") * 20, "a": SECONDS[:60], "target": np.arange(60) % 2})
    data = source(kind, frame, tmp_path, target="target", keep=["site"])
    sharding = {"name": "column", "column": "site"}
    shards = Workload.build(toy_experiment(data=data, sharding=sharding, cluster={"workers": 3})).shards
    assert [set(frame["site"].to_numpy()[shard]) for shard in shards] == [{"a"}, {"b"}, {"c"}]


@pytest.mark.parametrize("kind", KINDS)
def test_classes_are_whole_numbers_of_64_bits(tmp_path, kind):
    frame = pd.DataFrame({"a": SECONDS[:100], "target": np.tile(IDS, 25)})
    data = source(kind, frame, tmp_path, target="target").load(Streams(0))
    assert data.classes == tuple(map(str, IDS))
    assert data.train_y.tolist() == [0, 1, 2, 3] * 25


def test_ids_that_no_64_bit_number_holds_are_refused_with_their_line(tmp_path):
    options = {"target": "kind", "keep": ["user"], "cache": str(tmp_path)}
    (tmp_path / "long.csv").write_text("user,a,kind\n1,2,0\n9223372036854775808,3,1\n")
    with pytest.raises(
        DataError, match=r"line 3, column 0 \(user\): '9223372036854775808' is not a 64-bit integer"
    ):
        CSV(path=str(tmp_path / "long.csv"), **options).load(Streams(0))
    (tmp_path / "mixed.csv").write_text(f"user,a,kind\n{2**53 + 1},2,0\n1.5,3,1\n")
    with pytest.raises(
        DataError, match=r"column 'user' has fractions and whole numbers up to 9007199254740992"
    ):
        CSV(path=str(tmp_path / "mixed.csv"), **options).load(Streams(0))


def test_fractions_may_come_blocks_after_whole_numbers(tmp_path):
    users = np.r_[np.arange(2000), np.arange(2000) + 0.5]
    frame = pd.DataFrame({"user": [f"{each:g}" for each in users], "a": SECONDS[0], "kind": [0, 1] * 2000})
    frame.to_csv(tmp_path / "t.csv", index=False)
    given = {"target": "kind", "keep": ["user"], "val_rows": 0, "block_size": 10_000, "cache": str(tmp_path)}
    found = CSV(path=str(tmp_path / "t.csv"), **given).load(Streams(0)).columns["user"]
    assert found.tolist() == users.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_what_32_bit_floats_merge_is_said(tmp_path, kind):
    frame = pd.DataFrame({"user": np.repeat(20230001 + np.arange(4), 10), "kind": [0, 1] * 20})
    with pytest.warns(UserWarning, match=r"32-bit floats are 2 apart; subtract its mean, or set standardise"):
        data = source(kind, frame, tmp_path, target="kind", standardise=False).load(Streams(0))
    with pytest.raises(DataError, match=r"column 'user' is an input, .* keep: \[user\]"):
        data.column("user")


# ------------------------------------------------------------------ the index of a frame

SHUFFLED = pd.DataFrame({"a": np.arange(100) / 7, "kind": np.arange(100) % 2}).sample(frac=1, random_state=0)


class _Columns:
    """A frame as a dataset of Hugging Face's."""

    def __init__(self, frame):
        self.column_names, self.features, self._frame = list(frame), dict.fromkeys(frame), frame

    def __len__(self):
        return len(self._frame)

    def __getitem__(self, name):
        return self._frame[name].tolist()


@pytest.mark.parametrize("kind", ["to_csv", "saved twice", "several levels", "HF", "no metadata", "frame"])
def test_an_index_is_not_learnt_from(tmp_path, kind):
    frame, path = SHUFFLED, tmp_path / "table.csv"
    options = {"target": "kind", "val_rows": 0, "cache": str(tmp_path / "cache")}
    if kind == "no metadata":
        frame.reset_index(names="__index_level_0__").to_parquet(tmp_path / "t.parquet", index=False)
        data = Parquet(path=str(tmp_path / "t.parquet"), **options)
    elif kind in ("frame", "HF"):
        name = "Unnamed: 0" if kind == "frame" else "__index_level_0__"
        named = frame.reset_index(names=name)
        given = _Columns(named) if kind == "HF" else named
        with pytest.warns(UserWarning, match=f"column '{name}' looks like the index"):
            found = ps.data(given, target="kind")
        assert found.content.features == ("a",)
        kept = ps.data(named, target="kind", features=[name, "a"])  # said to be one: no warning
        assert kept.content.features == (name, "a")
        return
    else:
        levels = frame.set_index([frame.index, frame.index]) if kind == "several levels" else frame
        levels.to_csv(path)
        if kind == "saved twice":
            pd.read_csv(path).to_csv(path)
        data = CSV(path=str(path), **options)
    with pytest.warns(UserWarning, match="looks like the index of a data frame and is excluded"):
        found = data.load(Streams(0))
    assert found.features == ("a",)
    assert found.train_y.tolist() == frame["kind"].tolist()


@pytest.mark.parametrize("name", [None, "id"])
def test_the_index_that_parquet_names_is_left_out(tmp_path, name):
    SHUFFLED.rename_axis(name).to_parquet(tmp_path / "t.parquet")
    options = {"val_rows": 0, "path": str(tmp_path / "t.parquet"), "cache": str(tmp_path)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Parquet(target="kind", **options).load(Streams(0))
    assert found.features == ("a",)
    assert found.train_y.tolist() == SHUFFLED["kind"].tolist()
    with pytest.raises(
        ParameterError, match=r"target -1 is the saved index of a data frame.* name the column to learn"
    ):
        Parquet(target=-1, **options).load(Streams(0))
    if name:  # a sharding may go by it
        kept = Parquet(target="kind", keep=["id"], **options).load(Streams(0))
        assert kept.columns["id"].tolist() == SHUFFLED.index.tolist()


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("names", [[0, 1, 2], [0, 1, "kind"]])
def test_a_header_of_numbers_has_to_be_said(tmp_path, names, index):
    frame = pd.DataFrame({"a": SECONDS[:9], "b": SECONDS[:9] % 7, "kind": list("xyz") * 3})
    frame.set_axis(names, axis=1).to_csv(tmp_path / "t.csv", index=index)
    given = {"path": str(tmp_path / "t.csv"), "target": -1, "val_rows": 0, "cache": str(tmp_path)}
    with pytest.raises(DataError, match=r"line 1 .* set header: true, or header: false"):
        CSV(**given).load(Streams(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if index else "error")
        found = CSV(**given, header=True).load(Streams(0))
    assert (found.features, found.classes, len(found.train_y)) == (("0", "1"), ("x", "y", "z"), 9)


# ------------------------------------------------------------------ how a text is written

PLAIN = "a,b,kind\n" + "1.5,2,0\n2.5,3,1\n" * 20


@pytest.mark.parametrize("before", ["\n", "\n \t\n", "\r\n\r\n"])
def test_blank_lines_in_front_are_no_header(tmp_path, before):
    given = {"target": "kind", "val_rows": 0, "cache": str(tmp_path)}
    for name, text in (("plain", PLAIN), ("blank", before + PLAIN)):
        (tmp_path / f"{name}.csv").write_bytes(text.encode())
    plain, blank = (
        CSV(path=str(tmp_path / f"{name}.csv"), **given).load(Streams(0)) for name in ("plain", "blank")
    )
    assert torch.equal(plain.train_x, blank.train_x)
    assert (blank.features, blank.train_y.tolist()) == (("a", "b"), [0, 1] * 20)


UNREADABLE = {
    "UTF-16": (PLAIN.encode("utf-16"), "line 1 is in UTF-16"),
    "UTF-16 without a mark": (PLAIN.encode("utf-16-le"), "line 1 is in UTF-16"),
    "UTF-32": (PLAIN.encode("utf-32"), "line 1 is in UTF-16, or is not text"),
    "Latin-1": ((PLAIN + "é,1,0\n").encode("latin-1"), "line 42 is not UTF-8 (byte 0xe9)"),
    "no-break space": (
        (PLAIN + "1,\xa01,0\n").encode(),
        "line 42, column 1 (b): '1' is not a number: it contains the special space",
    ),
    "narrow space": ((PLAIN + "1\u202f000,1,0\n").encode(), "U+202F"),
    "other digits": ((PLAIN + "١,1,0\n").encode(), "line 42, column 0 (a): '١' is not a number"),
    "underscore": ((PLAIN + "1,1,1_0\n").encode(), "line 42, column 2 (kind): '1_0' is not a number"),
    "long field": ((PLAIN + "1" * 200_000 + ",1,0\n").encode(), "line 42"),
    "twice": (PLAIN.replace("a,b", "a,a").encode(), "has two columns 'a'; rename one"),
    "header not said": (("1,2,kind\n" + PLAIN[9:]).encode(), "header: true"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_is_named_with_line_and_cause(tmp_path, case):
    content, expected = UNREADABLE[case]
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(PsbenchError) as refused:
        CSV(path=str(tmp_path / "t.csv"), target="2", cache=str(tmp_path)).load(Streams(0))
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)
