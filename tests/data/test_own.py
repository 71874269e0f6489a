"""A person's own data: the training of data with a name, whatever it comes in; bad data in one line."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import psbench as ps
from psbench.data import Digits, as_data
from psbench.seeds import Streams
from psbench.testing import toy_experiment

RNG = np.random.default_rng(0)
DIGITS = Digits().load(Streams(0))
X, Y = RNG.normal(size=(60, 4)).astype(np.float32), RNG.integers(0, 3, 60)
NUMBERS = X @ np.array([1.0, -2.0, 0.5, 3.0], dtype=np.float32)


class Pairs:
    """A map-style torch Dataset."""

    classes = ["a", "b", "c"]

    def __init__(self, x=X, y=Y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        return torch.from_numpy(self.x[place]), int(self.y[place])


class Feature:
    names = ["a", "b", "c"]


class HuggingFace:
    """What the library's Dataset has, as far as it is looked at."""

    def __init__(self, **columns):
        self.columns = columns
        self.features = {name: Feature() if name == "label" else None for name in columns}
        self.column_names = list(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name):
        return self.columns[name]


KINDS = np.array(["a", "b", "c"])
FRAME = pd.DataFrame(X, columns=list("wxyz")).assign(kind=KINDS[Y], site=np.arange(60) % 3)


def wrapped(loader):
    with pytest.warns(UserWarning, match="batch size and the order are the experiment's"):
        return as_data(loader)


#: the same 60 samples of three classes
FORMS = {
    "numpy": lambda: (X, Y),
    "torch": lambda: (torch.from_numpy(X), torch.from_numpy(Y)),
    "lists": lambda: (X.tolist(), Y.tolist()),
    "float64": lambda: (X.astype(np.float64), Y.astype(np.int8)),
    "texts": lambda: (X, KINDS[Y]),
    "objects": lambda: (X, np.array(["a", "b", "c"], dtype=object)[Y]),
    "Dataset": Pairs,
    "TensorDataset": lambda: TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
    "DataLoader": lambda: wrapped(DataLoader(Pairs(), batch_size=7)),
    "frame": lambda: ps.data(FRAME, target="kind", keep=["site"]),
    "features": lambda: ps.data(FRAME, target="kind", features=list("wxyz")),
    "Hugging Face": lambda: HuggingFace(x=list(X), label=Y.tolist()),
    "columns": lambda: HuggingFace(**{name: X[:, i] for i, name in enumerate("wxyz")}, label=Y.tolist()),
    "splits": lambda: {
        "train": HuggingFace(x=X[:40], label=Y[:40]),
        "test": HuggingFace(x=X[40:], label=Y[40:]),
    },
}


def plainly(data, lr=0.1, updates=12, batch=12):
    """Train a linear model in plain torch, on the mini-batches that one worker of psbench draws."""
    streams = Streams(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, data.num_outputs))
    with torch.no_grad():
        for values in model.parameters():
            values.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    order, left = [], np.arange(0)
    for _ in range(updates):
        while len(left) < batch:
            order.append(streams.generator("shuffle", 0, len(order)).permutation(len(data.train_y)))
            left = np.concatenate([left, order[-1]])
        where, left = torch.from_numpy(left[:batch]), left[batch:]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data.train_x[where]), data.train_y[where]).backward()
        optimizer.step()
    return torch.cat([values.detach().reshape(-1) for values in model.parameters()])


ALONE = {"workers": 1, "step_time": "constant"}


def test_digits_as_arrays_are_the_digits_bit_for_bit():
    """Without a split of their own too: theirs is drawn from the same stream, of every class alike."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    whole = (bunch.images / 16.0).astype(np.float32)[:, None], bunch.target
    halves = (DIGITS.train_x, DIGITS.train_y, DIGITS.val_x, DIGITS.val_y)
    named, *own = (
        ps.run(ps.Experiment(data=data, model="linear", strategy="ssp", stop={"epochs": 1}))
        for data in ("digits", whole, halves)
    )
    for run in own:
        assert torch.equal(run.parameters, named.parameters)
        assert run.log.digest() == named.log.digest()
        assert run.meta["classes"] == named.meta["classes"]


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_data_is_the_training_in_plain_torch(form):
    experiment = toy_experiment(
        data=FORMS[form](), model="logistic", cluster=ALONE, sharding="modular", stop={"updates": 12}
    )
    data = experiment.data.load(Streams(0))
    if form == "splits":
        assert torch.equal(data.train_x, torch.from_numpy(X[:40]))
    else:
        assert sorted(torch.cat([data.train_x, data.val_x]).tolist()) == sorted(X.tolist())
    assert data.classes in [("0", "1", "2"), ("a", "b", "c")]
    assert torch.equal(ps.run(experiment).parameters, plainly(data))
