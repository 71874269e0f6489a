"""Tokens of known entropy, texts of a folder, and the transformers that fit two cores."""

import numpy as np
import pytest

import psbench as ps
from psbench.data import Markov, Text
from psbench.errors import DataError, ParameterError
from psbench.models import TransformerLarge, TransformerMedium, TransformerSmall
from psbench.seeds import Streams


def test_entropy_is_that_of_the_stationary_chain():
    source = Markov(vocabulary_size=6, concentration=0.5, seed=3)
    p = source.transitions
    assert np.allclose(p.sum(axis=1), 1)
    stationary = np.linalg.matrix_power(p, 4096)[0]
    by_hand = -sum(stationary[i] * p[i, j] * np.log(p[i, j]) for i in range(6) for j in range(6))
    assert source.entropy_rate == pytest.approx(by_hand, rel=1e-9)
    alike = Markov(vocabulary_size=5, concentration=1e9)
    assert alike.entropy_rate == pytest.approx(np.log(5), rel=1e-4)


def test_the_draw_has_the_chains_probabilities_and_no_model_is_better():
    source = Markov(vocabulary_size=4, num_tokens=40_000, context=8, seed=1)
    made, p = source.load(Streams(7)), source.transitions
    assert made.train_x.shape[1] == 8
    assert (made.train_x[:, 1:] == made.train_y[:, :-1]).all()  # the next token is the target
    x, y = made.train_x.flatten().numpy(), made.train_y.flatten().numpy()
    counts = np.zeros((4, 4))
    np.add.at(counts, (x, y), 1)
    assert np.abs(counts / counts.sum(axis=1, keepdims=True) - p).max() < 0.02
    assert -np.log(p[x, y]).mean() == pytest.approx(source.entropy_rate, abs=0.02)
    again = source.load(Streams(8))
    assert (again.val_x == made.val_x).all()


def test_too_short_a_chain_is_refused():
    with pytest.raises(ParameterError, match="raise num_tokens or lower context"):
        Markov(num_tokens=20).load(Streams(0))


@pytest.mark.nightly
def test_a_transformer_comes_near_the_entropy():
    source = Markov(vocabulary_size=4, num_tokens=8000, context=8, concentration=0.3)
    done = ps.run(
        ps.Experiment(
            **{"data": source, "model": "transformer_small", "strategy": "diloco", "seed": 0},
            cluster={"workers": 2},
            optimizer={"name": "adam", "lr": 0.01},
            batch_size=64,
            stop={"epochs": 9},
        )
    )
    above = done.metrics["val_loss"] - source.entropy_rate
    assert above.iloc[0] > 0.2
    assert abs(above.iloc[-1]) < 0.1


def test_three_sizes_are_each_several_times_the_one_before():
    counts = [
        sum(p.numel() for p in kind().network((32,), 32).parameters())
        for kind in (TransformerSmall, TransformerMedium, TransformerLarge)
    ]
    assert 20_000 < counts[0] < counts[1] / 4 < counts[2] / 16 < 100_000


def test_a_folder_is_read_file_after_file(tmp_path):
    (tmp_path / "b").mkdir()
    for name, text in (("b/second.md", "two"), ("a.txt", "one"), ("c.png", "no text")):
        (tmp_path / name).write_text(text)
    text = Text(path=str(tmp_path), context=2, val_fraction=0.0)
    assert text.decode(text.load(Streams(0)).train_x.flatten()) == "one\ntw"
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"no file in it ends in \.txt"):
        Text(path=str(tmp_path / "none")).load(Streams(0))
