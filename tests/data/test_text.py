"""A text as tokens: samples in its order, targets one further, the vocabulary its own."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import psbench as ps
from psbench.data import Text
from psbench.errors import DataError
from psbench.seeds import Streams
from psbench.testing import toy_experiment

SENTENCE = "ein Käfer läuft über den Tisch, 'über den Käfer läuft'. " * 4


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "sentence.txt"
    path.write_text(SENTENCE, encoding="utf-8")
    return path


@pytest.mark.parametrize("tokens", ["characters", "bytes"])
def test_targets_are_the_inputs_one_further(file, tokens):
    text = Text(path=str(file), tokens=tokens, context=7, val_fraction=0.25)
    data = text.load(Streams(0))
    units = list(SENTENCE) if tokens == "characters" else list(SENTENCE.encode())
    names = data.classes if tokens == "characters" else [int(name, 16) for name in data.classes]
    x, y = torch.cat([data.train_x, data.val_x]), torch.cat([data.train_y, data.val_y])
    count = (len(units) - 1) // 7
    assert len(x) == count
    assert [names[token] for token in x.flatten().tolist()] == units[: 7 * count]
    assert [names[token] for token in y.flatten().tolist()] == units[1 : 7 * count + 1]
    assert (len(data.val_x), data.task) == (round(count / 4), "sequence")
    assert list(names) == sorted(set(units))
    assert data.num_outputs == len(names)
    assert text.decode(text.encode("Käfer läuft")) == "Käfer läuft"
    assert text.vocabulary() == data.classes


def test_the_text_that_ships_with_python_needs_no_file():
    data = Text().load(Streams(0))
    assert data.train_x.shape[1] == 64
    assert len(data.train_x) > 1000
    assert len(data.val_x) == pytest.approx(len(data.train_x) / 9, abs=1)
    assert set("etaoin shrdlu") < set(data.classes)
    said = "".join(data.classes[token] for token in data.train_x[:3].flatten().tolist())
    assert said == Text().decode(Text().encode(said))


class AtEachPlace(torch.nn.Module):
    """The logits of the next token from the one at each place: a table of bigrams."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(len(set(SENTENCE)), len(set(SENTENCE)))

    def forward(self, tokens):
        return self.table(tokens)


def test_training_on_it_is_that_of_plain_torch(file):
    text = {"name": "text", "path": str(file), "context": 7}
    module = AtEachPlace()
    experiment = toy_experiment(
        data=text, model=module, cluster={"workers": 1}, sharding="modular", stop={"updates": 6}
    )
    data = Text(**{key: text[key] for key in ("path", "context")}).load(Streams(0))
    orders = [Streams(0).generator("shuffle", 0, n).permutation(len(data.train_x)) for n in range(4)]
    order = torch.from_numpy(np.concatenate(orders))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for where in order[: 6 * 12].split(12):
        optimizer.zero_grad()
        logits, targets = module(data.train_x[where]), data.train_y[where]
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    expected = module.table.weight.detach().flatten()
    assert torch.equal(ps.run(experiment).parameters, expected)


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        (b"", {}, "is empty"),
        (b"too short", {}, "has 9 characters, but a sample takes 64"),
        (b"ab\xff\xfe", {"context": 1}, "byte 2 is not UTF-8; convert the file, or set tokens: bytes"),
        (None, {}, "did you mean"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path, content, options, expected):
    (tmp_path / "text.txt").write_bytes(b"abc" if content is None else content)
    path = tmp_path / ("texts.txt" if content is None else "text.txt")
    with pytest.raises(DataError, match=expected):
        Text(path=str(path), **options).load(Streams(0))
    if content is None:
        text = Text(path=str(tmp_path / "text.txt"), context=1)
        for strange in ("#", "\ud800"):
            with pytest.raises(DataError, match=re.escape(f"{strange!a} does not occur")):
                text.encode(f"a{strange}")
        for token in (3, -1):
            with pytest.raises(DataError, match=f"has tokens 0 to 2, but not {token}"):
                text.decode([0, token])
