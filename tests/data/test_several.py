"""Samples that are several tensors: plain torch in float64 is the oracle, one sample at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import psbench as ps
from psbench.data import as_data
from psbench.data.own.padded import with_lengths_of_mask
from psbench.data.several import Several, zeros
from psbench.errors import PsbenchError
from psbench.seeds import Streams
from psbench.testing import toy_experiment
from psbench.training.build import Workload
from tests.networks import MaskedText, Siamese

RNG = np.random.default_rng(3)
LEFT, RIGHT = RNG.normal(size=(2, 60, 4)).astype(np.float32)
ALIKE = (np.abs(LEFT - RIGHT).mean(1) < 1).astype(int)
TEXTS = [RNG.integers(1, 9, RNG.integers(2, 8)) for _ in range(60)]
MASKS = [np.ones(len(text), dtype=int) for text in TEXTS]
KINDS = np.array([text[0] % 2 for text in TEXTS])
WIDE = np.array([np.pad(text, (0, 9 - len(text))) for text in TEXTS])
WIDE_MASK = np.array([np.pad(mask, (0, 9 - len(mask))) for mask in MASKS])
NAMED = [{"input_ids": a, "attention_mask": b} for a, b in zip(TEXTS, MASKS, strict=True)]


class Samples:
    """A map-style Dataset of whatever samples are listed."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, place):
        return self.samples[place]


def hugging_face(**more):
    texts = {"input_ids": [t.tolist() for t in TEXTS], "attention_mask": [m.tolist() for m in MASKS]}
    return Dataset.from_dict(texts | {"label": KINDS.tolist()} | more)


def padding(batch):
    """Collate as Hugging Face's DataCollatorWithPadding does."""
    width = max(len(each["input_ids"]) for each, _ in batch)
    wide = {
        name: torch.stack([torch.from_numpy(np.pad(x[name], (0, width - len(x[name])))) for x, _ in batch])
        for name in batch[0][0]
    }
    return wide, torch.tensor([y for _, y in batch])


def drawing(batch):
    return torch.rand(len(batch), 3), [0] * len(batch)


def loaded():
    with pytest.warns(UserWarning, match="batch size and order come from the experiment"):
        return as_data(DataLoader(Samples(list(zip(NAMED, KINDS, strict=True))), collate_fn=padding))


PAIRS = {
    "((a, b), y)": lambda: ((LEFT, RIGHT), ALIKE),
    "with validation": lambda: ((LEFT, RIGHT), ALIKE, (LEFT[:9] + 1, RIGHT[:9]), ALIKE[:9]),
    "TensorDataset": lambda: TensorDataset(*map(torch.from_numpy, (LEFT, RIGHT, ALIKE))),
    "(a, b, y)": lambda: Samples(list(zip(LEFT, RIGHT, ALIKE, strict=True))),
    "((a, b), y) of a Dataset": lambda: Samples(
        [((a, b), y) for a, b, y in zip(LEFT, RIGHT, ALIKE, strict=True)]
    ),
    "by name": lambda: ps.data({"right": RIGHT, "left": LEFT, "same": ALIKE}, target="same"),
}
TEXT = {
    "mapping": lambda: ({"input_ids": WIDE, "attention_mask": WIDE_MASK}, KINDS),
    "Hugging Face, ragged": hugging_face,
    "padded with 7": lambda: ps.data(hugging_face(), padding={"input_ids": 7}),
    "dicts": lambda: Samples([x | {"label": y} for x, y in zip(NAMED, KINDS, strict=True)]),
    "a collate_fn of its own": loaded,
}  # fmt: skip
MODELS = dict.fromkeys(PAIRS, Siamese) | dict.fromkeys(TEXT, MaskedText)


def test_a_sample_is_as_long_as_the_last_one_of_its_mask():
    """Ones need not be at its beginning, nor beside each other."""
    mask = np.array([[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
    found = with_lengths_of_mask(Several((mask + 5, mask), ("input_ids", "attention_mask")))
    assert [each.tolist() for each in found.lengths] == [[3, 2, 0]] * 2


def inputs_of(data, place):
    """Return what the model is given for one sample, without padding, in float64 where it is a number."""
    found = []
    for part in data.train_x.parts:
        row = part[place].double() if part.is_floating_point() else part[place]
        found.append(row[None])
    named = dict(zip(data.train_x.names, found, strict=False))
    if "attention_mask" in named:
        length = int(named["attention_mask"].sum())
        return [], {name: each[:, :length] for name, each in named.items()}
    return ([], named) if named else (found, {})


def plainly(experiment, lr=0.1):
    """Train in plain torch on the batches that one worker draws: sample by sample, in float64."""
    workload = Workload.build(experiment)
    data, model = workload.data, workload.model.module.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    left, passes = np.arange(0), 0
    for _ in range(experiment.stop.updates):
        while len(left) < experiment.batch_size:
            fresh = Streams(0).generator("shuffle", 0, passes).permutation(len(data.train_y))
            left, passes = np.concatenate([left, fresh]), passes + 1
        batch, left = left[: experiment.batch_size], left[experiment.batch_size :]
        optimizer.zero_grad()
        for place in batch:
            given, named = inputs_of(data, place)
            loss = cross_entropy(model(*given, **named), data.train_y[place : place + 1])
            (loss / len(batch)).backward()
        optimizer.step()
    return torch.cat([values.detach().reshape(-1) for values in model.parameters()])


@pytest.mark.by_day(5)
@pytest.mark.parametrize("form", MODELS)
def test_several_inputs_train_as_plain_torch_sample_by_sample(form):
    data = {**PAIRS, **TEXT}[form]()
    alone = {"workers": 1, "step_time": "constant"}
    experiment = toy_experiment(
        data=data,
        model=MODELS[form],
        cluster=alone,
        sharding="modular",
        stop={"updates": 9},
        metrics=["macro_f1"],
    )
    run = ps.run(experiment)
    torch.testing.assert_close(run.parameters.double(), plainly(experiment), rtol=1e-5, atol=1e-6)
    assert run.metrics["val_macro_f1"].between(0, 1).all()
    assert [tuple(p.shape) for p in run.model().parameters()] == [
        tuple(p.shape) for p in MODELS[form]().parameters()
    ]
    if form in TEXT:
        x = experiment.data.load(Streams(0)).train_x
        width = x[torch.tensor([0])].trimmed().parts[0].shape[1]
        longest = (
            WIDE.shape[1] if form == "mapping" else int(x.parts[x.names.index("attention_mask")][0].sum())
        )
        assert width == longest  # a batch is as long as its longest sample, if it was psbench that padded


def test_every_way_of_computing_gives_the_same_bits():
    """In processes; with one set a worker, of other lengths; and scanning shards, as MapReduce does."""
    given = {"data": hugging_face(), "model": MaskedText, "cluster": {"workers": 2}, "stop": {"updates": 4}}
    one = ps.run(toy_experiment(**given))
    two = ps.run(toy_experiment(processes=2, **given))
    assert torch.equal(one.parameters, two.parameters)
    assert one.log.digest() == two.log.digest()
    torch.testing.assert_close(ps.run(toy_experiment("map_reduce", **given)).parameters, one.parameters)
    each = [ps.data(hugging_face().select(range(*ends)), padding=0) for ends in ((0, 30), (30, 60))]
    whole = Workload.build(toy_experiment(**{**given, "data": each})).data
    assert whole.train_x.parts[0].shape[1] == max(map(len, TEXTS))
    example = zeros(whole.input_layout, whole.train_x.names, 2)
    assert (example.called, example.parts[0].shape) == ("input_ids, attention_mask", (2, 1))


def test_shardings_and_memory_look_at_all_parts():
    for sharding in ("distribution_aware", {"name": "dirichlet", "alpha": 0.5}, "seldp"):
        ps.run(
            toy_experiment(data=((LEFT, RIGHT), ALIKE), model=Siamese, sharding=sharding, stop={"updates": 1})
        )
    data = as_data(((LEFT, RIGHT[:, :2]), ALIKE)).load(Streams(0))
    assert (data.sample_bytes, data.train_x.nbytes) == (24, 24 * len(data.train_y))
    assert data.train_x.numpy().shape == (len(data.train_y), 6)


def test_outputs_with_logits_are_those_of_hugging_face():
    class Answers(nn.Module):
        def __init__(self):
            super().__init__()
            self.text = MaskedText()

        def forward(self, input_ids, attention_mask=None, labels=None):
            return {"logits": self.text(input_ids, attention_mask), "hidden": input_ids}

    class Whole(nn.Module):
        """Takes the batch in one argument."""

        def __init__(self):
            super().__init__()
            self.text = MaskedText()

        def forward(self, batch):
            return self.text(**batch)

    data = TEXT["mapping"]()
    runs = [
        ps.run(toy_experiment(data=data, model=model, stop={"updates": 3}, metrics=["macro_f1"]))
        for model in (MaskedText, Answers, Whole)
    ]
    assert torch.equal(runs[0].parameters, runs[1].parameters)
    assert torch.equal(runs[0].parameters, runs[2].parameters)
    assert runs[0].summary()["final"] == runs[1].summary()["final"]


BAD = {
    "rows": (lambda: as_data(((LEFT, RIGHT[1:]), ALIKE)), "X has (60, 4) as '0' and (59, 4) as '1'"),
    "NaN": (lambda: as_data(({"a": LEFT, "b": RIGHT * np.nan}, ALIKE)), "X['b'] has nan in row 0"),
    "other names": (
        lambda: as_data(Samples([({"a": LEFT[0]}, 0), ({"b": LEFT[0]}, 0)])),
        "sample 1 has the inputs b, but sample 0 a",
    ),
    "ragged, and no mask": (
        lambda: ps.data(hugging_face(), features=["input_ids"]),
        "ps.data(..., padding=0)",
    ),
    "no such padding": (lambda: ps.data(hugging_face(), padding={"input_id": 0}), "did you mean 'input_ids'"),
    "target": (lambda: ps.data({"a": LEFT, "b": ALIKE}), "ps.data(..., target=...)"),
    "standardised": (
        lambda: ps.data(((LEFT, RIGHT), ALIKE), standardise=True).load(Streams(0)),
        "2 tensors, but only a single array can be standardised",
    ),
    "psbench's model": (
        lambda: ps.run(toy_experiment(data=((LEFT, RIGHT), ALIKE), model="mlp")),
        "model 'mlp' takes one tensor, but a sample of data 'own' is 2 tensors",
    ),
    "arguments": (
        lambda: ps.run(toy_experiment(data=((LEFT, RIGHT, LEFT), ALIKE), model=lambda: nn.Bilinear(4, 4, 2))),
        "Bilinear.forward takes (input1, input2), but a sample of the data is 3 tensors",
    ),
    "names": (
        lambda: ps.run(toy_experiment(data=({"a": LEFT, "b": RIGHT}, ALIKE), model=Siamese)),
        "Siamese.forward takes (left, right), but a sample of the data is a, b",
    ),
    "a drawing collate_fn": (
        lambda: as_data(DataLoader(Samples([(LEFT[0], 0)] * 3), collate_fn=drawing)),
        "sample 0 changes each time the collate_fn is called",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:data. only the samples that the DataLoader")
@pytest.mark.parametrize("case", BAD)
def test_inputs_that_do_not_fit_are_one_line_before_any_work(case):
    make, expected = BAD[case]
    with pytest.raises(PsbenchError) as refused:
        make()
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.filterwarnings("ignore:data. only the samples that the DataLoader")
def test_samples_that_are_texts_count_as_memory(monkeypatch):
    """2 GB of texts for a collate_fn: refused after a few, and not if the Dataset has them already."""
    monkeypatch.setattr("psbench.system.limits.available_memory", lambda: 10**9)
    read, long = [], ["word" * 5000]

    class Many(Samples):
        def __len__(self):
            return 100_000

        def __getitem__(self, place):
            read.append(place)
            return self.samples(place)

    def tokens(batch):
        if len(batch) > 2:
            raise StopIteration
        return torch.tensor([[len(text)] for (text,), _ in batch]), [label for _, label in batch]

    with pytest.raises(PsbenchError, match=r"what the Many gives: 100000 samples, all at once, would need"):
        as_data(DataLoader(Many(lambda place: (["word" * 5000], place % 2)), collate_fn=tokens))
    assert len(read) < 150
    with pytest.raises(StopIteration):
        as_data(DataLoader(Many(lambda place: (long, place % 2)), collate_fn=tokens))
    labels = ["a"] * 9_999 + ["b" * 40_000]
    with pytest.raises(
        PsbenchError, match=r"y, 10000 texts of up to 40000 characters, would need about 1.6 GB"
    ):
        as_data((np.zeros((10_000, 1)), labels)).load(Streams(0))
