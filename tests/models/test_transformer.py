"""The small decoder-only transformer: plain torch's updates, causality, sizes, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from models.networks import flat, plain, start
from torch.nn import functional

from psbench.errors import ParameterError
from psbench.models import MLP, Transformer
from psbench.runs.execution import run
from psbench.seeds import Streams
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster

SMALL = {"name": "transformer", "width": 16, "heads": 2, "layers": 1}


def on_text(model=SMALL, strategy="bsp", **changes):
    settings = {
        "data": {"name": "text", "context": 8},
        "cluster": toy_cluster([1.0] * 4),
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
        "batch_size": 16,
        "stop": {"updates": 4},
    }
    return toy_experiment(strategy, model=model, **settings | changes)


def next_token_loss(logits, targets):
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


@pytest.mark.parametrize("model", [SMALL, SMALL | {"tied": False, "dropout": 0.2}], ids=["tied", "dropout"])
def test_on_text_under_bsp_it_is_plain_torch_to_the_last_bit(model):
    experiment = on_text(model)
    expected = plain(experiment, 4, start(experiment), seeded=True, loss_of=next_token_loss)
    done = run(experiment)
    assert torch.equal(done.parameters, flat(expected))
    assert torch.equal(flat(done.model()), done.parameters)


def test_a_token_sees_only_those_before_it():
    network = Transformer(width=16, heads=2).build((6,), 9, Streams(0)).eval()
    tokens = torch.arange(6).unsqueeze(0)
    changed = tokens.clone()
    changed[0, 4] = 8
    before, after = network(tokens), network(changed)
    assert before.shape == (1, 6, 9)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_first_loss_is_that_of_guessing_and_falls():
    done = run(on_text(metrics=["perplexity"], stop={"updates": 40}, evaluate_every=0.005))
    found = done.metrics
    classes = len(done.meta["classes"]) if done.meta["task"] == "classification" else done.meta["num_outputs"]
    assert found["val_loss"].iloc[0] == pytest.approx(math.log(classes), rel=0.02)
    assert found["val_loss"].iloc[-1] < 0.85 * found["val_loss"].iloc[0]
    assert found["val_perplexity"].tolist() == pytest.approx(
        found["val_loss"].map(math.exp).tolist(), rel=1e-5
    )


def size(model, context, vocabulary):
    return sum(p.numel() for p in model.build((context,), vocabulary, Streams(0)).parameters())


def test_size_in_closed_form():
    block = (
        12 * 16**2 + 9 * 16 + 4 * 16
    )  # four matrices of the attention, eight of the rest; biases; two norms
    assert size(Transformer(width=16, heads=2, layers=3), 5, 7) == (7 + 5) * 16 + 3 * block + 2 * 16
    untied = Transformer(width=16, heads=2, layers=3, tied=False, context=9)
    assert size(untied, 5, 7) == (7 + 9 + 7) * 16 + 3 * block + 2 * 16


def test_start_depends_on_the_seed_alone():
    before = torch.get_rng_state()
    first, again, other = (flat(Transformer().build((4,), 5, Streams(seed))) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_what_it_cannot_take_is_refused():
    with pytest.raises(ParameterError, match=r"needs sequences of tokens .*\(1, 8, 8\)"):
        Transformer().build((1, 8, 8), 10, Streams(0))
    with pytest.raises(ParameterError, match="samples have 9 tokens, but its context is 8"):
        Transformer(context=8).build((9,), 10, Streams(0))
    with pytest.raises(ParameterError, match="width 10 is not a multiple of its 4 heads"):
        Transformer(width=10)
    with pytest.raises(ParameterError, match=r"'transformer' is for sequence, .*use 'linear' or 'mlp'"):
        run(toy_experiment(model="transformer"))
    with pytest.raises(
        ParameterError, match=r"'mlp' is for .*targets are the next tokens; use 'transformer'"
    ):
        MLP().check_task("sequence")
