"""A person's own data: the training of data with a name, whatever it comes in; bad data in one line."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pyarrow
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, DatasetInfo, Features
from datasets import Image as HuggingFaceImage
from PIL import Image as Picture
from scipy.sparse import csr_array
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, TensorDataset
from torchvision.transforms import RandomHorizontalFlip

import psbench as ps
from psbench.data import Digits, as_data
from psbench.data.own.content import Content
from psbench.errors import DataError, PsbenchError, SpecError
from psbench.seeds import Streams
from psbench.testing import toy_experiment
from psbench.training.build import Workload

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


def hugging_face(**columns):
    """A real Dataset of Hugging Face, whose labels have names."""
    made = Dataset.from_dict({name: np.asarray(values).tolist() for name, values in columns.items()})
    kinds = made.features | {"label": ClassLabel(names=["a", "b", "c"])}
    return Dataset(made.data.table, info=DatasetInfo(features=Features(kinds)))


HALVES = (slice(40), slice(40, 60))
KINDS = np.array(["a", "b", "c"])
MASKED = np.ma.array(X, mask=np.arange(240).reshape(60, 4) == 13)
NULLABLE = pd.DataFrame({"w": pd.array([1] * 5 + [pd.NA] + [2] * 54), "x": pd.array([0.5] * 60)})
FRAME = pd.DataFrame(X, columns=list("wxyz")).assign(kind=KINDS[Y], site=np.arange(60) % 3)


def wrapped(loader):
    with pytest.warns(UserWarning, match="batch size and order come from the experiment"):
        return as_data(loader)


def first():
    return hugging_face(x=X[:40], label=Y[:40])


def second():
    return hugging_face(x=X[40:], label=Y[40:])


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
    "masked nowhere": lambda: (np.ma.array(X), np.ma.array(Y)),
    "nullable": lambda: (pd.DataFrame(X).convert_dtypes(), pd.Series(Y, dtype="Int64")),
    "pyarrow": lambda: ps.data(pyarrow.table(FRAME), target="kind", keep=["site"]),
    "two Datasets": lambda: (Pairs(X[:40], Y[:40]), Pairs(X[40:], Y[40:])),
    "two DataLoaders": lambda: wrapped(
        (DataLoader(Pairs(X[:40], Y[:40])), DataLoader(Pairs(X[40:], Y[40:])))
    ),
    "frame": lambda: ps.data(FRAME, target="kind", keep=["site"]),
    "features": lambda: ps.data(FRAME, target="kind", features=list("wxyz")),
    "Hugging Face": lambda: hugging_face(x=X, label=Y),
    "Hugging Face, target": lambda: ps.data(hugging_face(x=X, label=Y), target="label"),
    "Hugging Face, transformed": lambda: hugging_face(x=X, label=Y).with_transform(
        lambda rows: {"input": torch.tensor(rows["x"]), "label": rows["label"]}
    ),
    "Hugging Face, torch": lambda: ps.data(hugging_face(x=X, label=Y).with_format("torch"), target="label"),
    "columns": lambda: hugging_face(**{name: X[:, i] for i, name in enumerate("wxyz")}, label=Y),
    "columns, target": lambda: ps.data(
        hugging_face(**{name: X[:, i] for i, name in enumerate("wxyz")}, site=Y, label=Y),
        target="label",
        keep=["site"],
    ),
    "splits": lambda: {"train": first(), "test": second()},
    "DatasetDict": lambda: DatasetDict(train=first(), test=second()),
    "DatasetDict, target": lambda: ps.data(DatasetDict(train=first(), test=second()), target="label"),
    "two of Hugging Face": lambda: (first(), second()),
    "validation": lambda: ps.data(first(), target="label", validation=second()),
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
    if form.startswith(("splits", "two ", "DatasetDict", "validation")):
        assert torch.equal(data.train_x, torch.from_numpy(X[:40]))
    else:
        assert sorted(torch.cat([data.train_x, data.val_x]).tolist()) == sorted(X.tolist())
    assert data.classes in [("0", "1", "2"), ("a", "b", "c")]
    assert torch.equal(ps.run(experiment).parameters, plainly(data))


def test_a_list_of_hugging_face_datasets_has_one_for_each_worker():
    for listed in ([first(), second()], ps.data([first(), second()], target="label")):
        experiment = toy_experiment(data=listed, model="logistic", cluster={"workers": 2})
        assert experiment.data.num_shards == 2
        assert ps.run(experiment).meta["classes"] == ["a", "b", "c"]


def of_frame():
    return ps.data(FRAME, target="kind", keep=["site"])


def of_two_frames():
    return ps.data([FRAME[:30], FRAME[30:]], target="kind", keep=["site"])


def with_validation():
    return ps.data(FRAME[:40], target="kind", keep=["site"], validation=FRAME[40:])


@pytest.mark.parametrize("make", [of_frame, of_two_frames, with_validation])
def test_columns_that_are_kept_divide_validation_samples_too(make):
    """Neighbourhoods by a column: each sample has its row's, wherever the validation set comes from."""
    spec = toy_experiment(
        {
            "name": "bsp",
            "selection": {"name": "data_aware", "neighbourhoods": {"name": "column", "column": "site"}},
        },
        data=make(),
        cluster={"workers": 2},
        stop={"updates": 2},
    )
    data = spec.data.load(Streams(0))
    sites = {tuple(row): site for row, site in zip(X.tolist(), FRAME["site"], strict=True)}
    for rows, found in ((data.train_x, data.column("site")), (data.val_x, data.val_column("site"))):
        assert [sites[tuple(row)] for row in rows.tolist()] == found.tolist()
    done = ps.run(spec)
    assert done.meta["neighbourhoods"]["names"] == ["site 0", "site 1", "site 2"]
    assert {f"neighbourhood_loss:{h}" for h in range(3)} <= set(done.log.evaluations()[-1])


# ------------------------------------------------------------------ what y is, and options


def test_numbers_are_predicted_and_may_be_several():
    one = as_data((X, NUMBERS)).load(Streams(0))
    assert (one.task, one.num_outputs, one.train_y.dtype, one.classes) == ("regression", 1, torch.float32, ())
    two = as_data((X, np.stack([NUMBERS, -NUMBERS], 1))).load(Streams(0))
    assert (two.task, two.num_outputs, tuple(two.val_y.shape)) == ("regression", 2, (12, 2))


def test_whole_numbers_after_whole_numbers_are_tokens():
    tokens = RNG.integers(0, 7, (30, 9))
    data = as_data((tokens[:, :-1], tokens[:, 1:] % 5)).load(Streams(0))
    assert (data.task, data.num_outputs, data.train_x.dtype, data.sample_bytes) == (
        "sequence",
        7,
        torch.int64,
        64,
    )
    assert len(data.strata[1]) == 10
    numbers = ps.data((tokens, tokens[:, 0]), inputs="numbers").load(Streams(0))
    assert (numbers.task, numbers.train_x.dtype) == ("classification", torch.float32)
    column = ps.data((X, NUMBERS[:, None]), task="own").load(Streams(0))
    assert column.train_y.shape == (len(column.train_y), 1)  # as it is, for a loss of one's own
    own = ps.data((tokens, tokens % 2), task="own").load(Streams(0))
    assert (own.task, own.num_outputs, own.classes, own.train_y.dtype) == ("own", 9, (), torch.int64)


def test_minus_one_and_one_are_two_classes():
    assert as_data((X, np.where(Y == 2, -1, 1))).load(Streams(0)).classes == ("-1", "1")


def test_labels_with_gaps_are_numbered_and_called_by_their_values():
    data = as_data((X[:6], np.array([5, -2, 5, 7, 7, -2]), X[6:7], [5])).load(Streams(0))
    assert (data.train_y.tolist(), data.val_y.tolist(), data.classes) == (
        [1, 0, 1, 2, 2, 0],
        [1],
        ("-2", "5", "7"),
    )
    ten = ps.data((X, Y), classes=10).load(Streams(0))
    assert (ten.num_classes, sorted(set(ten.train_y.tolist()))) == (10, [0, 1, 2])
    named = ps.data(X, KINDS[Y], classes=["c", "b", "a"], val_fraction=0).load(Streams(0))
    assert named.train_y.tolist() == (2 - Y).tolist()


def test_standardising_is_that_of_the_training_samples():
    data = ps.data((X + 5, NUMBERS), standardise=True).load(Streams(0))
    plain = ps.data((X + 5, NUMBERS)).load(Streams(0))
    x = plain.train_x.double()
    expected = (plain.val_x - x.mean(0)) / x.std(0, correction=0)
    torch.testing.assert_close(data.val_x.double(), expected, rtol=1e-4, atol=1e-5)
    mean, deviation = data.target_scale
    torch.testing.assert_close(data.train_y * deviation + mean, plain.train_y, rtol=1e-4, atol=1e-4)


def test_several_labels_a_sample_are_trained_on_as_bce_has_it():
    labels = (RNG.random((60, 3)) < 0.5).astype(int)
    with pytest.raises(DataError, match="as floats, with loss='bce'"):
        as_data((X, labels))
    data = ps.data(X, labels.astype(np.float32))
    run = ps.run(toy_experiment(data=data, model="linear", loss="bce", stop={"updates": 1}))
    x, y = data.load(Streams(0)).val_x, data.load(Streams(0)).val_y
    expected = torch.nn.functional.binary_cross_entropy_with_logits(run.model()(x), y)
    assert run.summary()["final"]["val_loss"] == pytest.approx(float(expected.detach()), rel=1e-5)


PALETTES = [[0, 0, 0, 255, 0, 0, 0, 0, 255], [0, 0, 0, 0, 0, 255, 255, 0, 0]]


def coloured(number):
    """A palette image; the same colour is another number in every other one."""
    image = Picture.fromarray(RNG.integers(0, 3, (5, 6)).astype(np.uint8), "P")
    image.putpalette(PALETTES[number % 2])
    return image


@pytest.mark.parametrize("form", ["Dataset", None, "numpy", "torch", "arrow"])
def test_palette_images_are_read_as_their_colours(form):
    """Grey ones of one bit too: as Pillow converts them."""
    images = [coloured(number) for number in range(12)]
    bits = [image.convert("L").convert("1") for image in images]
    for given, mode in ((images, "RGB"), (bits, "L")):
        labels = [number % 3 for number in range(12)]
        kinds = Features({"image": HuggingFaceImage(), "label": ClassLabel(names=["a", "b", "c"])})
        data = Dataset.from_dict({"image": given, "label": labels}, features=kinds)
        found = as_data(
            Listed(list(zip(given, labels, strict=True))) if form == "Dataset" else data.with_format(form)
        )
        expected = np.stack(
            [np.atleast_3d(np.asarray(image.convert(mode))).transpose(2, 0, 1) for image in given]
        )
        assert np.array_equal(found.content.x, expected)
        assert found.content.x.dtype == np.uint8


def test_a_palette_of_targets_is_classes():
    """Masks of a segmentation, as of Pascal VOC."""
    masks = [coloured(number) for number in range(6)]
    data = ps.data(Listed([(X[number], mask) for number, mask in enumerate(masks)]), task="own")
    assert np.array_equal(data.content.y, np.stack([np.asarray(mask) for mask in masks]))


def test_arrays_are_not_copied_even_if_they_cannot_be_written_to(tmp_path):
    np.save(tmp_path / "x.npy", X)
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = as_data((x[:50], Y[:50], x[50:], Y[50:])).load(Streams(0))
    assert data.train_x.data_ptr() == x.ctypes.data


# ------------------------------------------------------------------ what is refused


class Changing(Pairs):
    def __init__(self, sample=lambda place: (torch.rand(4), 0)):
        super().__init__()
        self.sample = sample

    def __getitem__(self, place):
        return self.sample(place)


class Flipped(Pairs):
    """Images that torchvision mirrors by chance."""

    def __init__(self, share):
        super().__init__(DIGITS.train_x[:60].numpy())
        self.flip = RandomHorizontalFlip(share)

    def __getitem__(self, place):
        return self.flip(torch.from_numpy(self.x[place])), int(self.y[place])


class Listed(Pairs):
    def __getitem__(self, place):
        return self.x[place]


class Masked(Pairs):
    """Rows of which one is masked."""

    def __getitem__(self, place):
        return np.ma.array(self.x[place], mask=place == 3), 0


class Lazy:
    """A frame of dask, whose rows are computed when they are asked for."""

    columns = ("kind",)
    shape = (None, 1)

    def compute(self):
        raise AssertionError("was computed")


class Renamed(Pairs):
    classes = ["b", "a", "c"]


class Uneven(Pairs):
    def __getitem__(self, place):
        return torch.zeros(4 + place // 3), 0


class Endless(IterableDataset):
    def __iter__(self):
        return iter([])


class Single(Pairs):
    def __getitem__(self, place):
        return torch.zeros(4)


def changed(array, place, value):
    array = array.astype(type(value) if not isinstance(value, float) else array.dtype)
    array[place] = value
    return array


BAD = {
    "lengths": (lambda: as_data((X, Y[:-1])), "X has 60 samples, but y 59"),
    "marked": (lambda: as_data((X, np.where(Y == 2, -1, Y))), "y has the label -1, first in row"),
    "ignored": (
        lambda: as_data((X, Y, X[:2], [0, -100])),
        "the label -100, first in row 1, which usually marks",
    ),
    "validation lengths": (lambda: as_data((X, Y, X, Y[1:])), "X_val has 60 samples, but y_val 59"),
    "NaN": (lambda: as_data((changed(X, (17, 2), np.nan), Y)), "X has nan in row 17, column 2"),
    "infinite target": (lambda: as_data((X, changed(NUMBERS, 3, np.inf))), "y has inf in row 3"),
    "beyond 32 bits": (lambda: as_data((X.astype(float) * 1e60, Y)), "X as a 32-bit float has"),
    "texts as inputs": (lambda: as_data((X.astype(str), Y)), "X has dtype <U"),
    "objects as inputs": (lambda: as_data((changed(X.astype(object), (0, 0), "no"), Y)), "(such as 'no')"),
    "mixed targets": (lambda: as_data((X, np.array([1, "a"] * 30, dtype=object))), "holding int, str"),
    "no label": (
        lambda: as_data((X, np.array(["a", None] * 30, dtype=object))),
        "y has a missing value in row 1",
    ),
    "empty": (lambda: as_data((X[:0], Y[:0])), "X is empty"),
    "no features": (lambda: as_data((X[:, :0], Y)), "X is empty: its shape is (60, 0)"),
    "task": (lambda: ps.data((X, Y), task="classify"), "did you mean 'classification'?"),
    "kind of inputs": (lambda: ps.data((X, Y), inputs="number"), "did you mean 'numbers'?"),
    "one dimension": (lambda: as_data((X[:, 0], Y)), "X.reshape(-1, 1)"),
    "one-hot": (lambda: as_data((X, np.eye(3, dtype=int)[Y])), "give y.argmax(1)"),
    "no targets": (lambda: as_data(X), "an array of shape (60, 4) alone has no targets"),
    "list of two arrays": (lambda: as_data([X, Y]), "give inputs and targets as a tuple (X, y)"),
    "three arrays": (lambda: as_data((X, Y, X)), "a tuple of length 3"),
    "other shape": (lambda: as_data((X, Y, X[:, :2], Y)), "samples of X are (4,)"),
    "identifiers": (
        lambda: as_data((np.zeros((3000, 1)), np.arange(3000))),
        "3000 different whole numbers in 3000 samples",
    ),
    "few classes": (lambda: ps.data((X, Y), classes=2), "labels run from 0 to 2, but there are 2 classes"),
    "unknown class": (lambda: ps.data((X, KINDS[Y]), classes=["a", "b"]), "'c', which is not among classes"),
    "classes of numbers": (lambda: ps.data((X, NUMBERS), classes=2), "the task is 'regression'"),
    "fraction as class": (lambda: ps.data((X, NUMBERS), task="classification"), "is not a class"),
    "texts to predict": (lambda: ps.data((X, KINDS[Y]), task="regression"), "holds texts such as"),
    "validation twice": (lambda: ps.data((X, Y, X, Y), validation=(X, Y)), "given twice"),
    "share of given": (lambda: ps.data((X, Y, X, Y), val_fraction=0.5), "remove val_fraction = 0.5"),
    "share": (lambda: ps.data((X, Y), val_fraction=1.5), "val_fraction"),
    "frame without target": (lambda: as_data(FRAME), "ps.data(frame, target=...)"),
    "no such target": (lambda: ps.data(FRAME, target="kinds"), "did you mean 'kind'?"),
    "no such column": (lambda: ps.data(FRAME, target="kind", features=["w", "v"]), "'v'"),
    "text column": (lambda: ps.data(FRAME, target="w"), "column 'kind' is not numeric"),
    "missing in column": (
        lambda: ps.data(FRAME.assign(x=[np.nan] + [0.0] * 59), target="kind"),
        "X has nan in row 0, column 'x'",
    ),
    "missing label": (lambda: ps.data(FRAME.assign(kind=[None] + ["a"] * 59), target="kind"), "in row 0"),
    "no inputs": (lambda: ps.data(FRAME[["kind"]], target="kind"), "no column is left"),
    "target of arrays": (lambda: ps.data((X, Y), target="kind"), "are for tables"),
    "changing samples": (lambda: as_data(Changing()), "use a deterministic transform"),
    "uneven samples": (lambda: as_data(Uneven()), "sample 3 has shape (5,)"),
    "no pair": (lambda: as_data(Single()), "expected a pair (input, target)"),
    "iterable Dataset": (lambda: as_data(DataLoader(Endless())), "Endless is not map-style"),
    "two iterable Datasets": (lambda: as_data((Endless(), Endless())), "Endless is not map-style"),
    "chained Datasets": (lambda: as_data(ChainDataset([Endless()])), "ChainDataset is not map-style"),
    "iterable to validate on": (lambda: ps.data(X, Y, validation=Endless()), "Endless is not map-style"),
    "masked inputs": (lambda: as_data((MASKED, Y)), "X is masked in row 3, column 1"),
    "masked in a mapping": (lambda: as_data(({"a": X, "b": MASKED}, Y)), "X['b'] is masked in row 3"),
    "masked rows": (lambda: as_data((list(MASKED), Y)), "X is masked in row 3, column 1"),
    "masked to validate on": (lambda: as_data((X, Y, MASKED, Y)), "X_val is masked in row 3"),
    "masked targets": (lambda: as_data((X, np.ma.masked_equal(Y, Y[0]))), "y is masked in row 0"),
    "a masked sample": (lambda: as_data(Masked()), "input 0 of sample 3 is masked"),
    "NA in a frame": (lambda: as_data((NULLABLE, Y)), "column 'w' of X has a missing value in row 5"),
    "NA in a column": (lambda: ps.data(NULLABLE.assign(kind=Y), target="kind"), "X has nan in row 5"),
    "NA as target": (lambda: as_data((X, NULLABLE["w"])), "y has a missing value in row 5"),
    "NA among objects": (lambda: as_data((X, [pd.NA, "a"] * 30)), "y has a missing value in row 0"),
    "a sparse tensor": (lambda: as_data((torch.from_numpy(X).to_sparse(), Y)), "give its .to_dense()"),
    "sparse targets": (
        lambda: as_data((X, torch.from_numpy(Y).to_sparse())),
        "y is a tensor of layout torch.sparse_coo",
    ),
    "a sparse sample": (
        lambda: as_data(Listed([(torch.eye(4).to_sparse(), 0)])),
        "input 0 of sample 0 is a tensor of layout",
    ),
    "SciPy's sparse targets": (lambda: as_data((X, csr_array(Y[:, None]))), "y is a sparse matrix"),
    "a tensor without numbers": (
        lambda: as_data((torch.zeros(60, 4, device="meta"), Y)),
        "X is not an array",
    ),
    "several labels": (lambda: as_data((X[:3], [[1, 1, 0], [0, 0, 1], [0, 0, 0]])), "loss='bce'"),
    "several labels as classes": (
        lambda: ps.data(X[:2], [[1, 1, 0], [0, 0, 1]], task="classification"),
        "loss='bce'",
    ),
    "a lazy frame": (lambda: ps.data(Lazy(), target="kind"), "give its .compute()"),
    "chance in a transform of Hugging Face": (
        lambda: as_data(first().with_transform(lambda rows: rows | {"x": torch.rand(len(rows["x"]), 4)})),
        "sample 0 of the Dataset changes each time",
    ),
    "chance in targets": (lambda: as_data(Changing(lambda place: (X[place], torch.rand(1)))), "sample 0 of"),
    "iterable": (lambda: as_data(iter([1])), "has no length"),
    "number": (lambda: as_data(3), "got int: 3"),
    "text in Hugging Face": (lambda: as_data(hugging_face(t=["a"] * 3, label=Y[:3])), "'t' is not numeric"),
    "a stream of Hugging Face": (
        lambda: ps.data(first().to_iterable_dataset(), target="label"),
        "data: IterableDataset has no length",
    ),
    "no split": (lambda: as_data({"test": hugging_face(x=X, label=Y)}), "do not include 'train'"),
    "columns of a worker": (
        lambda: ps.data([FRAME, FRAME[FRAME.columns[::-1]]], target="kind").load(Streams(0)),
        "has inputs called w, x, y, z, site, but worker 1 site, z, y, x, w",
    ),
    "inputs of a worker": (
        lambda: as_data([({"a": X, "b": X}, Y), ({"b": X, "a": X}, Y)]).load(Streams(0)),
        "has inputs called a, b, but worker 1 b, a",
    ),
    "other classes to validate on": (
        lambda: as_data((Pairs(), Renamed())),
        "those of the validation set ('b', 'a', 'c'), so the same number means different classes",
    ),
    "a class twice": (
        lambda: ps.data((X, KINDS[Y]), classes=["a", "b", "c", "a"]),
        "classes contains a name twice",
    ),
    "name": (lambda: as_data("digitts"), "did you mean 'digits'?"),
    "options of a name": (lambda: ps.data(Digits(), classes=3), "has options of its own"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_trained_on_is_one_line_before_any_work(case):
    make, expected = BAD[case]
    with pytest.raises(PsbenchError) as refused:
        make()
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_images_that_are_mirrored_by_chance_are_refused_whatever_the_seed(share):
    for seed in range(20):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            with pytest.raises(DataError, match="changes each time it is read"):
                as_data(Flipped(share))


# ------------------------------------------------------------------ saved runs


def test_a_saved_run_opens_without_its_data_and_goes_on_with_it(tmp_path):
    experiment = toy_experiment(data=(X, Y), checkpoint_every=1.0, batch_size=12)
    ps.run(experiment, folder=tmp_path / "run")
    opened = ps.Run.load(tmp_path / "run")
    assert opened.experiment == experiment
    assert opened.summary()["status"] == "finished"
    with pytest.raises(SpecError, match=re.escape("resume(folder, data=...)")):
        ps.resume(tmp_path / "run", {"stop.epochs": 3})
    with pytest.raises(SpecError, match="fingerprint was"):
        ps.resume(tmp_path / "run", {"stop.epochs": 3}, data=(X + 1, Y))
    longer = ps.resume(tmp_path / "run", {"stop.epochs": 3}, data=(X, Y), folder=tmp_path / "longer")
    whole = ps.run(toy_experiment(data=(X, Y), stop={"epochs": 3}))
    assert torch.equal(longer.parameters, whole.parameters)


def test_data_that_changes_after_the_experiment_was_made_is_refused():
    x = X.copy()
    experiment = toy_experiment(data=(x, Y))
    x[3, 1] += 1
    with pytest.raises(DataError, match="has changed since"):
        ps.run(experiment)


@pytest.mark.parametrize(
    ("model", "shape", "says"),
    [
        ("mlp", (20, 8, 8), "X / 255 as float32"),
        ("cnn", (20, 3, 8, 8), "X / 255 as float32"),
        ("cnn", (20, 8, 8, 3), "X.transpose(0, 3, 1, 2)"),
    ],
)
def test_whole_numbered_images_for_a_model_by_name_name_the_remedy(model, shape, says):
    x = RNG.integers(0, 256, shape).astype(np.uint8)
    with pytest.raises(PsbenchError) as refused:
        Workload.build(
            ps.Experiment(model=model, data=(x, np.arange(20) % 2), cluster={"workers": 2}, batch_size=4)
        )
    assert says in str(refused.value)


def test_all_that_a_run_may_read_of_the_data_is_in_its_fingerprint():
    x, y = np.zeros((4, 2), np.float32), np.arange(4)
    whole = {"x": x, "y": y, "val_x": x, "val_y": y, "classes": (), "task": "regression"}
    other = {"x": x + 1, "y": y + 1, "val_x": x + 1, "val_y": y + 1, "classes": ("a",), "task": "own"}
    other |= {"columns": {"id": y}, "val_columns": {"id": y}, "features": ("a", "b"), "is_column": True}
    found = {Content(**whole).fingerprint()}
    found |= {Content(**whole | {name: value}).fingerprint() for name, value in other.items()}
    assert len(found) == 1 + len(other)
