"""DataLoaders: the samples that plain torch draws from them are those that are trained on."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)
from torch.utils.data.distributed import DistributedSampler

import psbench as ps
from psbench.data import as_data
from psbench.errors import DataError, DoubtfulComposition
from psbench.seeds import Streams
from psbench.testing import toy_experiment

RNG = np.random.default_rng(5)
X = torch.from_numpy(RNG.normal(size=(50, 4)).astype(np.float32))
Y = torch.from_numpy(RNG.integers(0, 2, 50))
WHOLE = TensorDataset(X, Y)
OWN = RNG.permutation(50)[:30].tolist()
REST = sorted(set(range(50)) - set(OWN))

pytestmark = pytest.mark.filterwarnings("ignore:data. only the samples that the DataLoader")


class Samples:
    """The same samples, one by one."""

    classes = ("no", "yes")

    def __len__(self):
        return 50

    def __getitem__(self, place):
        return X[place], Y[place]


class Shuffled(Sampler):
    """A sampler of a user's: some of the samples, in an order drawn from Python's global state."""

    def __init__(self, numbers=OWN, **_):
        self.numbers = list(numbers)

    def __iter__(self):
        return iter(random.sample(self.numbers, len(self.numbers)))

    def __len__(self):
        return len(self.numbers)


class Half(Shuffled):
    """Draws others in every pass."""

    def __iter__(self):
        return iter(random.sample(range(50), 25))


class Endless(Shuffled):
    def __iter__(self):
        while True:
            yield from self.numbers


def doubled(batch):
    """Collate as usual, with inputs twice as large."""
    x, y = default_collate(batch)
    return 2 * x, y


LOADERS = {
    "as it is": lambda data: DataLoader(data, batch_size=8),
    "shuffled": lambda data: DataLoader(data, shuffle=True, batch_size=8),
    "shuffled, whole batches": lambda data: DataLoader(data, shuffle=True, batch_size=8, drop_last=True),
    "in order, whole batches": lambda data: DataLoader(data, batch_size=8, drop_last=True),
    "SubsetRandomSampler": lambda data: DataLoader(data, sampler=SubsetRandomSampler(OWN), batch_size=8),
    "of a tensor": lambda data: DataLoader(data, sampler=SubsetRandomSampler(torch.tensor(OWN))),
    "a list": lambda data: DataLoader(data, sampler=OWN),
    "a list, whole batches": lambda data: DataLoader(data, sampler=OWN, batch_size=8, drop_last=True),
    "of another length": lambda data: DataLoader(data, sampler=SequentialSampler(range(20))),
    "random of another length": lambda data: DataLoader(data, sampler=RandomSampler(range(20))),
    "DistributedSampler": lambda data: DataLoader(data, sampler=DistributedSampler(data, 4, 3)),
    "DistributedSampler, in order": lambda data: DataLoader(
        data, sampler=DistributedSampler(data, 4, 1, shuffle=False)
    ),
    "a user's": lambda data: DataLoader(data, sampler=Shuffled()),
    "batches": lambda data: DataLoader(data, batch_sampler=BatchSampler(OWN, 7, drop_last=True)),
    "random batches": lambda data: DataLoader(
        data, batch_sampler=BatchSampler(SubsetRandomSampler(OWN), 7, drop_last=True)
    ),
    "a list of batches": lambda data: DataLoader(data, batch_sampler=[OWN[:3], OWN[3:9]]),
    "no batches": lambda data: DataLoader(data, sampler=SubsetRandomSampler(OWN), batch_size=None),
    "own collate_fn": lambda data: DataLoader(data, sampler=OWN, collate_fn=doubled),
    "own collate_fn, batches": lambda data: DataLoader(data, batch_sampler=[OWN], collate_fn=doubled),
    "of a Subset": lambda data: DataLoader(Subset(data, OWN), sampler=range(3, 9)),
}


def drawn(loader):
    """Return all samples that plain torch draws from a loader in 40 epochs."""
    found = set()
    for _ in range(40):
        for x, y in loader:
            x, y = (x[None], [y]) if x.ndim == 1 else (x, y)
            found |= {(*row, int(label)) for row, label in zip(x.tolist(), y, strict=True)}
    return found


@pytest.mark.by_day(14)
@pytest.mark.parametrize("data", [WHOLE, Samples()], ids=["TensorDataset", "Dataset"])
@pytest.mark.parametrize("kind", LOADERS)
def test_the_samples_that_torch_draws_are_trained_on(kind, data):
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[2]
    content = as_data(LOADERS[kind](data)).content
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[2]) == states[1:]
    found = [(*row, label) for row, label in zip(content.x.tolist(), content.y.tolist(), strict=True)]
    assert sorted(found) == sorted(drawn(LOADERS[kind](data)))
    assert content.classes == (("no", "yes") if isinstance(data, Samples) else ("0", "1"))


def test_what_is_held_out_by_a_sampler_is_not_trained_on():
    """Both ways to validate, with the samples of a Subset, bit for bit."""
    train, held_out = (DataLoader(WHOLE, sampler=SubsetRandomSampler(own)) for own in (OWN, REST))
    plain = Subset(WHOLE, sorted(OWN)), Subset(WHOLE, REST)
    expected = ps.run(toy_experiment(data=plain, model="logistic"))
    for data in ((train, held_out), ps.data(train, validation=held_out)):
        run = ps.run(toy_experiment(data=data, model="logistic"))
        assert torch.equal(run.parameters, expected.parameters)
        assert run.summary()["final"] == expected.summary()["final"]


def test_loaders_for_each_worker_have_their_shares():
    loaders = [DataLoader(WHOLE, sampler=DistributedSampler(WHOLE, 5, rank)) for rank in range(5)]
    data = ps.data(loaders, val_fraction=0).load(Streams(0))
    for shard, loader in zip(data.shards, loaders, strict=True):
        assert {(*row,) for row in data.train_x[shard].tolist()} == {row[:-1] for row in drawn(loader)}


REFUSED = {
    "weighted": (lambda: WeightedRandomSampler([1.0] * 50, 30), "weight the classes in your own loss"),
    "with replacement": (lambda: RandomSampler(WHOLE, replacement=True), "at random with replacement"),
    "some": (lambda: RandomSampler(WHOLE, num_samples=20), "draws 20 of 50 samples at random"),
    "a user's, by chance": (Half, "the Half of the DataLoader draws different samples in every pass"),
    "without end": (Endless, "more than 500 samples in a pass"),
    "again": (lambda: [3, 4, 3], "draws sample 3 more than once in a pass"),
    "outside": (lambda: [3, 50], "draws sample 50, but there are 50"),
    "none": (lambda: [], "draws no sample"),
    "no numbers": (lambda: ["a"], "'a', which is not the index of a sample"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_sampler_without_samples_of_its_own_is_refused_in_one_line(case):
    make, expected = REFUSED[case]
    with pytest.raises(DataError) as refused:
        as_data(DataLoader(WHOLE, sampler=make()))
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)
    if case not in ("outside", "none", "no numbers"):
        with pytest.raises(DataError):
            as_data(DataLoader(WHOLE, batch_sampler=BatchSampler(make(), 5, drop_last=False)))


# ------------------------------------------------------------------ samples on both sides


def parts(train, val):
    return (X[train], Y[train], X[val], Y[val])


SHARED = {
    "loaders": lambda: (DataLoader(WHOLE, shuffle=True), DataLoader(WHOLE, sampler=REST)),
    "a whole loader": lambda: (DataLoader(WHOLE), DataLoader(WHOLE)),
    "arrays": lambda: parts(slice(50), slice(45, 50)),
    "Subsets": lambda: (Subset(WHOLE, range(40)), Subset(WHOLE, range(35, 50))),
    "several inputs": lambda: ({"a": X, "b": X}, Y, {"a": X[:5], "b": X[:5]}, Y[:5]),
}


@pytest.mark.parametrize("form", SHARED)
def test_samples_that_are_trained_on_and_validated_on_are_said(form):
    shared = {"loaders": 20, "a whole loader": 50}.get(form, 5)
    with pytest.warns(DoubtfulComposition, match=rf"{shared} of the \d+ validation samples are training"):
        as_data(SHARED[form]())


def test_samples_that_workers_train_and_validate_on_are_said():
    listed = as_data([WHOLE, DataLoader(WHOLE, shuffle=True)])
    with pytest.warns(DoubtfulComposition, match="of the 20 validation samples are training samples too"):
        listed.load(Streams(0))
    as_data(list(random_split(WHOLE, [0.5, 0.5]))).load(Streams(0))


def test_rows_that_are_equal_by_chance_are_not_called_shared():
    x, y = RNG.integers(0, 2, (300, 3)).astype(np.float32), RNG.integers(0, 2, 300)
    as_data((x[:200], y[:200], x[200:], y[200:]))
    as_data(parts(slice(40), slice(40, 50)))
    as_data((X, Y, X, 1 - Y))  # the same inputs with another target
