"""Data without files: the digits, the mixture, the split, and what a data set checks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

import psbench as ps
from psbench.data import Dataset, Digits, Mixture, Replicated
from psbench.data.split import stratified_split
from psbench.errors import DataError, ParameterError
from psbench.seeds import Streams


def equal(a: Dataset, b: Dataset) -> bool:
    parts = ("train_x", "train_y", "val_x", "val_y")
    return all(torch.equal(getattr(a, part), getattr(b, part)) for part in parts)


def test_digits():
    data = Digits().load(Streams(0))
    assert data.train_x.shape == (1438, 1, 8, 8)
    assert data.val_x.shape == (359, 1, 8, 8)
    assert (data.train_x.dtype, data.train_y.dtype) == (torch.float32, torch.int64)
    assert (data.train_x.min(), data.train_x.max()) == (0.0, 1.0)
    assert data.classes == tuple("0123456789")
    assert (data.input_shape, data.num_classes) == ((1, 8, 8), 10)


def test_digits_are_the_images_of_scikit_learn():
    data = Digits(val_fraction=0).load(Streams(0))
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    assert np.array_equal(data.train_x.flatten(1).numpy() * 16, pixels)
    assert np.array_equal(data.train_y.numpy(), labels)
    assert len(data.val_x) == 0


@pytest.mark.parametrize("source", [Digits(), Mixture()], ids=["digits", "mixture"])
def test_the_seed_decides(source):
    assert equal(source.load(Streams(3)), source.load(Streams(3)))
    assert not torch.equal(source.load(Streams(3)).val_x, source.load(Streams(4)).val_x)


def test_a_mixture_with_a_seed_of_its_own_is_the_same_in_all_runs():
    assert equal(Mixture(seed=3).load(Streams(5)), Mixture().load(Streams(3)))


def test_mixture_sizes_and_balance():
    data = Mixture(num_samples=103, num_features=7, num_classes=4, val_fraction=0.25).load(Streams(0))
    assert data.train_x.shape == (77, 7)
    assert data.val_x.shape == (26, 7)
    counts = torch.bincount(torch.cat([data.train_y, data.val_y]))
    assert sorted(counts.tolist()) == [25, 26, 26, 26]


def test_mixture_may_have_no_validation_set():
    data = Mixture(val_fraction=0).load(Streams(0))
    assert (len(data.train_x), len(data.val_x)) == (2000, 0)


def test_mixture_centres_are_as_far_apart_as_said():
    data = Mixture(num_samples=20_000, num_features=200, num_classes=50, separation=8, val_fraction=0).load(
        Streams(0)
    )
    centres = torch.stack([data.train_x[data.train_y == label].mean(0) for label in range(50)])
    distances = torch.pdist(centres).square().mean().sqrt()
    assert distances.item() == pytest.approx(8, rel=0.05)


@pytest.mark.parametrize(("separation", "low", "high"), [(0, 0.1, 0.3), (12, 0.99, 1.0)])
def test_separation_decides_how_hard_the_mixture_is(separation, low, high):
    data = Mixture(separation=separation).load(Streams(0))
    model = LogisticRegression().fit(data.train_x.numpy(), data.train_y.numpy())
    assert low <= model.score(data.val_x.numpy(), data.val_y.numpy()) <= high


def test_mixture_needs_a_sample_per_class():
    with pytest.raises(ParameterError, match="3 samples are too few for 5 classes; raise num_samples"):
        Mixture(num_samples=3).load(Streams(0))


@pytest.mark.parametrize("fraction", [-0.1, 1.0])
def test_val_fraction_has_limits(fraction):
    with pytest.raises(ParameterError, match="val_fraction"):
        Digits(val_fraction=fraction)


@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    fraction=st.floats(0, 0.99),
    seed=st.integers(0, 9),
)
def test_split_is_a_partition_right_to_rounding(labels, fraction, seed):
    labels = np.array(labels)
    train, val = stratified_split(labels, fraction, np.random.default_rng(seed))
    assert sorted([*train, *val]) == list(range(len(labels)))
    assert abs(len(val) - fraction * len(labels)) <= 0.5 + 1e-9
    for label in range(4):
        expected = fraction * np.count_nonzero(labels == label)
        assert abs(np.count_nonzero(labels[val] == label) - expected) <= 1 + 1e-9


def made(**changes) -> Dataset:
    fields = {
        "name": "made",
        "train_x": torch.zeros(3, 2),
        "train_y": torch.tensor([0, 1, 1]),
        "val_x": torch.zeros(0, 2),
        "val_y": torch.tensor([], dtype=torch.int64),
        "classes": ("a", "b"),
    }
    return Dataset(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_y": torch.tensor([0, 1])}, "3 training samples but 2 labels"),
        ({"train_y": torch.tensor([0, 1, 2])}, "labels run from 0 to 2, but there are 2 classes"),
        ({"train_y": torch.tensor([0, -1, 1])}, "labels run from -1"),
        ({"val_x": torch.zeros(0, 3)}, r"training samples have shape \(2,\), validation samples \(3,\)"),
        ({"train_x": torch.zeros(0, 2), "train_y": torch.tensor([])}, "no training sample"),
    ],
)
def test_a_data_set_that_does_not_fit_together_is_refused(changes, message):
    with pytest.raises(DataError, match=message):
        made(**changes)


def test_a_set_is_replicated_to_a_size():
    digits, repeated = Digits().load(Streams(0)), Replicated(data="digits", samples=3000).load(Streams(0))
    size = len(digits.train_y)
    assert len(repeated.train_y) == 3000
    assert all(torch.equal(repeated.train_x[i], digits.train_x[i % size]) for i in (0, size, 2999))
    assert torch.equal(repeated.val_y, digits.val_y)
    assert Replicated(samples=size).load(Streams(0)).train_y.tolist() == digits.train_y.tolist()
    nested = ps.Experiment(data={"name": "replicated", "data": {"name": "digits", "val_fraction": 0.5}})
    assert ps.Experiment(**nested.spec()).data.data.val_fraction == 0.5


def test_replicating_refuses_what_cannot_be():
    with pytest.raises(ParameterError, match="'digits' already has 1438 training samples; set samples to"):
        Replicated(samples=1000).load(Streams(0))
    with pytest.raises(ParameterError, match=r"10{12} of 'digits' would need .*lower samples"):
        Replicated(samples=10**12).load(Streams(0))
