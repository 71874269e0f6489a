"""Sharding that the data says, by a column or by being a list, and by a function."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import torch

import psbench as ps
from psbench.errors import DoubtfulComposition, PsbenchError, SpecError
from psbench.seeds import Streams
from psbench.sharding import Column, as_sharding
from psbench.testing import toy_experiment
from psbench.training.build import Workload

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(90, 4)).astype(np.float32), RNG.integers(0, 3, 90)
SITES = np.array(["north"] * 45 + ["south"] * 25 + ["east"] * 12 + ["west"] * 8)
FRAME = pd.DataFrame(X, columns=list("abcd")).assign(label=Y, site=SITES)


def thirds(data, num_workers, rng):
    return np.array_split(rng.permutation(len(data.train_y)), num_workers)


class ThirdsOfSome:
    """A function that leaves samples out and gives one twice."""

    def __call__(self, data, num_workers, rng):
        return [[0, 1], [1, 2], [3]]


def shards(data, sharding, workers=3, **changes):
    experiment = toy_experiment(data=data, sharding=sharding, cluster={"workers": workers}, **changes)
    return Workload.build(experiment)


# ------------------------------------------------------------------ by a column


def test_values_of_a_column_stay_together_and_the_largest_go_first():
    data = ps.data(FRAME, target="label", keep=["site"], val_fraction=0)
    found = shards(data, {"name": "column", "column": "site"}).shards
    owned = [set(SITES[shard]) for shard in found]
    assert owned == [{"north"}, {"south"}, {"east", "west"}]
    assert sorted(np.concatenate(found)) == list(range(90))


def test_a_column_is_split_with_the_samples():
    data = ps.data(FRAME, target="label", keep=["site"], val_fraction=0.5)
    workload = shards(data, {"name": "column", "column": "site"}, workers=4)
    by_features = {tuple(row): site for row, site in zip(X.tolist(), SITES, strict=True)}
    for shard in workload.shards:
        sites = {by_features[tuple(row)] for row in workload.data.train_x[shard].tolist()}
        assert len(sites) == 1


def test_an_input_may_be_the_column():
    rounded = FRAME.assign(a=np.arange(90) % 3).drop(columns="site")
    found = shards(ps.data(rounded, target="label", val_fraction=0), {"name": "column", "column": "a"}).shards
    assert [set(shard % 3) for shard in found] == [{0}, {1}, {2}]


# ------------------------------------------------------------------ by a function


@pytest.mark.parametrize("form", ["function", "lambda", "yaml"])
def test_a_function_divides(form, monkeypatch):
    monkeypatch.syspath_prepend("tests/sharding")
    target = f"{thirds.__module__}:thirds"
    given = {
        "function": thirds,
        "lambda": lambda data, n, rng: thirds(data, n, rng),
        "yaml": {"name": "import", "target": target},
    }[form]
    experiment = toy_experiment(data=(X, Y), sharding=given)
    expected = thirds(experiment.data.load(Streams(0)), 3, Streams(0).generator("sharding"))
    for found, shard in zip(Workload.build(experiment).shards, expected, strict=True):
        assert np.array_equal(found, shard)
    spec = experiment.spec()["sharding"]
    if form == "lambda":
        assert (spec["name"], len(spec["fingerprint"])) == ("own", 64)
    else:
        assert spec == {"name": "import", "target": target}


def test_a_run_by_a_lambda_goes_on_with_it(tmp_path):
    def experiment(**changes):
        return toy_experiment(sharding=lambda data, n, rng: thirds(data, n, rng), **changes)

    ps.run(experiment(checkpoint_every=1.0), folder=tmp_path)
    with pytest.raises(SpecError, match=re.escape("resume(folder, sharding=...)")):
        ps.resume(tmp_path, {"stop.epochs": 3})
    longer = ps.resume(tmp_path, {"stop.epochs": 3}, sharding=experiment().sharding)
    assert torch.equal(longer.parameters, ps.run(experiment(stop={"epochs": 3})).parameters)


def test_samples_of_nobody_or_of_several_are_said():
    with pytest.warns(
        DoubtfulComposition, match="gives 68 of 72 samples to no worker, and 1 to more than one"
    ):
        shards((X, Y), ThirdsOfSome())


# ------------------------------------------------------------------ a list of data sets

PARTS = [(X[part::3] + part, np.array(["a", "b", "c"])[Y[part::3]]) for part in range(3)]


def test_a_list_has_a_data_set_for_each_worker():
    workload = Workload.build(toy_experiment(data=PARTS))
    assert workload.experiment.spec()["sharding"] == {"name": "given"}
    for worker, (x, y) in enumerate(PARTS):
        own = workload.data.train_x[workload.shards[worker]]
        assert {tuple(row) for row in own.tolist()} <= {tuple(row) for row in x.tolist()}
        assert len(own) == len(y) - round(len(y) * 0.2)
    assert len(workload.data.val_y) == 18


def test_a_list_of_one_is_the_data_set_itself_bit_for_bit():
    given = {"cluster": {"workers": 1}, "stop": {"updates": 9}}
    halves = (X[:60], Y[:60], X[60:], Y[60:])
    alone = ps.run(toy_experiment(data=halves, sharding="modular", **given))
    listed = ps.run(toy_experiment(data=[halves], **given))
    assert torch.equal(alone.parameters, listed.parameters)
    assert alone.log.digest() == listed.log.digest()


@pytest.mark.filterwarnings("ignore:data. .* validation samples are training samples")
def test_classes_are_those_of_all_parts():
    parts = [(X[:20], ["b", "c"] * 10), (X[:20], ["a", "c"] * 10), (X[:4], ["c"] * 4)]
    data = ps.Experiment(data=parts, cluster={"workers": 3}).data.load(Streams(0))
    assert data.classes == ("a", "b", "c")
    assert [sorted(set(data.train_y[shard].tolist())) for shard in data.shards] == [[1, 2], [0, 2], [2]]
    numbers = [(X[:9], [10, 9, 2] * 3), (X[:9], [100, 9, 9] * 3)]
    assert ps.Experiment(data=numbers, cluster={"workers": 2}).data.load(Streams(0)).classes == (
        *("2", "9", "10", "100"),
    )


@pytest.mark.filterwarnings("ignore:data. .* validation samples are training samples")
def test_a_list_may_be_of_names_and_survives_yaml(tmp_path):
    experiment = toy_experiment(data=["digits", {"name": "digits", "val_fraction": 0.5}, "digits"])
    experiment.to_yaml(tmp_path / "spec.yaml")
    again = ps.Experiment.from_yaml(tmp_path / "spec.yaml")
    assert again == experiment
    assert len(Workload.build(again).shards[1]) == 898


# ------------------------------------------------------------------ what is refused

FRAMED = ps.data(FRAME, target="label", keep=["site"])
BAD = {
    "no such column": (FRAMED, {"name": "column", "column": "sites"}, "did you mean 'site'?"),
    "no column given": (FRAMED, "column", "set column to its name"),
    "no columns": ((X, Y), {"name": "column", "column": "site"}, "unknown column"),
    "few values": (
        ps.data(FRAME.assign(site=SITES == "north"), target="label", keep=["site"]),
        {"name": "column", "column": "site"},
        "has too few different values",
    ),
    "few data sets": (PARTS[:2], None, "a list of 2 data sets, but the cluster has 3 workers"),
    "divided twice": (PARTS, "modular", "already divided among the workers; remove sharding"),
    "not divided": ((X, Y), "given", "is not divided among the workers"),
    "other shapes": ([*PARTS[:2], (X[:, :2], Y)], None, "has samples of shape (4,), but worker 2 (2,)"),
    "other tasks": ([*PARTS[:2], (X, X[:, 0])], None, "the task classification, but worker 2 regression"),
    "own scales": (
        [ps.data((x, x[:, 0]), standardise=True) for x, _ in PARTS],
        None,
        "set standardise: false",
    ),
    "list in a list": ([PARTS, *PARTS[:2]], None, "must not hold another list"),
    "no function": ((X, Y), {"name": "import", "target": "psbench.nothing:here"}, "psbench.nothing"),
    "no target": ((X, Y), {"name": "import", "target": "psbench"}, "expected a module and a name"),
    "too few shards": ((X, Y), lambda data, n, rng: [[0]], "returned 1 shards for 3 workers"),
    "empty shard": ((X, Y), lambda data, n, rng: [[0], [1], []], "worker 2 of 3 gets no sample"),
    "no such sample": ((X, Y), lambda data, n, rng: [[0], [1], [72]], "worker 2 sample 72, but there are 72"),
    "fractions": ((X, Y), lambda data, n, rng: [[0], [1], [0.5]], "expected whole numbers"),
    "sample twice": ((X, Y), lambda data, n, rng: [[0], [1], [2, 2]], "worker 2 a sample twice"),
    "failing": ((X, Y), lambda data, n, rng: data.nothing, "failed: AttributeError"),
    "no sharding": ((X, Y), 3, "expected a name"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_divided_is_one_line(case):
    data, sharding, expected = BAD[case]
    with pytest.raises(PsbenchError) as refused:
        Workload.build(toy_experiment(data=data, **({} if sharding is None else {"sharding": sharding})))
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


def test_largest_values_first_is_near_the_best_division():
    """Graham's bound: at most 4/3 - 1/(3n) times the best, which is at least the mean."""
    for seed in range(20):
        labels = np.random.default_rng(seed).integers(0, 12, 200)
        sizes = [len(shard) for shard in Column(column="x").assign(np.zeros((200, 1)), labels, 4, None)]
        best = max(50, np.bincount(labels).max())
        assert max(sizes) <= (4 / 3 - 1 / 12) * best + 1


def test_a_name_is_still_a_name():
    assert as_sharding("modular").name == "modular"
