"""Losses and metrics by name against torch and scikit-learn, and of one's own, in runs."""

from __future__ import annotations

import pytest
import torch
from models.networks import Net, flat, plain, start
from sklearn import metrics as sklearn_metrics
from torch import nn
from torch.nn import functional

from psbench.core.part import REGISTRY
from psbench.errors import SpecError
from psbench.optimization.own_functions import as_loss, as_metrics
from psbench.results.run import Run
from psbench.runs.execution import resume, run
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster


def drawn(*shape):
    return torch.empty(shape).normal_(generator=torch.Generator().manual_seed(3))


LOGITS, CLASSES = drawn(7, 3), torch.arange(7) % 3
NUMBERS, TARGETS = drawn(7, 1), drawn(7)
#: name, parameters: outputs, targets, and torch's own value
LOSSES = [
    ("cross_entropy", {}, LOGITS, CLASSES, functional.cross_entropy(LOGITS, CLASSES)),
    (
        "cross_entropy",
        {"label_smoothing": 0.2},
        LOGITS,
        CLASSES,
        functional.cross_entropy(LOGITS, CLASSES, label_smoothing=0.2),
    ),
    ("nll", {}, LOGITS.log_softmax(1), CLASSES, functional.cross_entropy(LOGITS, CLASSES)),
    ("hinge", {}, LOGITS, CLASSES, functional.multi_margin_loss(LOGITS, CLASSES)),
    (
        "bce",
        {},
        NUMBERS,
        CLASSES % 2,
        functional.binary_cross_entropy_with_logits(NUMBERS[:, 0], (CLASSES % 2).float()),
    ),
    ("mse", {}, NUMBERS, TARGETS, functional.mse_loss(NUMBERS[:, 0], TARGETS)),
    ("l1", {}, NUMBERS, TARGETS, functional.l1_loss(NUMBERS[:, 0], TARGETS)),
    ("huber", {"delta": 0.5}, NUMBERS, TARGETS, functional.huber_loss(NUMBERS[:, 0], TARGETS, delta=0.5)),
]


@pytest.mark.parametrize(("name", "values", "outputs", "targets", "expected"), LOSSES)
def test_losses_are_torchs(name, values, outputs, targets, expected):
    loss = as_loss({"name": name, **values})
    torch.testing.assert_close(loss.mean(outputs, targets), expected)
    parts = [loss.total(outputs[i : i + 3], targets[i : i + 3]) for i in (0, 3, 6)]
    torch.testing.assert_close(sum(part.loss for part in parts) / 7, expected)
    assert sum(part.samples for part in parts) == 7


def test_every_loss_is_compared_with_torch():
    assert {name for name, *_ in LOSSES} | {"import"} == set(REGISTRY["loss"])


def test_a_sequence_counts_each_token():
    logits, tokens = drawn(4, 5, 3), torch.arange(20).reshape(4, 5) % 3
    expected = functional.cross_entropy(logits.reshape(20, 3), tokens.reshape(20))
    loss = as_loss("cross_entropy")
    torch.testing.assert_close(loss.mean(logits, tokens), expected)
    torch.testing.assert_close(loss.total(logits, tokens).loss / 4, expected)


def test_metrics_are_those_of_scikit_learn():
    found = as_metrics(["macro_f1", {"name": "top_k", "k": 2}, "perplexity"])
    values = {name: metric.value(LOGITS, CLASSES) for name, metric in found.items()}
    classes, answers = CLASSES.numpy(), LOGITS.argmax(1).numpy()
    assert values["macro_f1"] == pytest.approx(sklearn_metrics.f1_score(classes, answers, average="macro"))
    expected = sklearn_metrics.top_k_accuracy_score(classes, LOGITS.numpy(), k=2)
    assert values["top_k"] == pytest.approx(expected)
    assert values["perplexity"] == pytest.approx(functional.cross_entropy(LOGITS, CLASSES).exp().item())
    numbers = as_metrics(["mae", "r2"])
    targets, answers = TARGETS.numpy(), NUMBERS[:, 0].numpy()
    assert numbers["mae"].value(NUMBERS, TARGETS) == pytest.approx(
        sklearn_metrics.mean_absolute_error(targets, answers)
    )
    assert numbers["r2"].value(NUMBERS, TARGETS) == pytest.approx(sklearn_metrics.r2_score(targets, answers))


# -------------------------------------------------------------------- in runs


def focal(outputs, targets):
    """A loss of one's own: that of Lin et al. 2017, of power 2."""
    each = functional.cross_entropy(outputs, targets, reduction="none")
    return ((1 - (-each).exp()) ** 2 * each).mean()


def largest(outputs, targets):
    return outputs.max()


LOSS_FORMS = {
    "function": (focal, focal),
    "module": (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])), None),
    "class": (nn.MultiMarginLoss, functional.multi_margin_loss),
    "import": ({"name": "import", "target": "models.test_losses:focal"}, focal),
    "import of a class": (
        {"name": "import", "target": "torch.nn:MultiMarginLoss", "arguments": {"margin": 0.5}},
        nn.MultiMarginLoss(margin=0.5),
    ),
}


@pytest.mark.parametrize("form", LOSS_FORMS)
def test_a_loss_of_ones_own_is_what_plain_torch_minimises(form):
    loss, loss_of = LOSS_FORMS[form]
    settings = {"cluster": toy_cluster([1.0] * 2), "batch_size": 8, "stop": {"updates": 4}}
    momentum = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
    experiment = toy_experiment("bsp", model=Net, loss=loss, optimizer=momentum, **settings)
    module = plain(experiment, 4, start(experiment), loss_of=loss_of or loss)
    done = run(experiment)
    assert torch.equal(done.parameters, flat(module))


def test_metrics_are_in_the_log_the_frame_and_the_charts(tmp_path):
    experiment = toy_experiment(metrics={"largest": largest, "f1": "macro_f1"})
    done = run(experiment, folder=tmp_path)
    opened = Run.load(tmp_path)
    assert opened.metrics.equals(done.metrics)
    assert (done.metrics["val_f1"] >= 0).all()
    assert "val_largest" in done.log.evaluations()[0]
    assert "Validation largest" in str(opened.chart("val_largest").to_dict())


def test_a_run_with_functions_of_ones_own_goes_on_with_them(tmp_path):
    experiment = toy_experiment(loss=focal, metrics={"largest": largest}, checkpoint_every=0.5)
    run(experiment.but(stop={"epochs": 1}), folder=tmp_path)
    longer = {"stop.epochs": 2}
    with pytest.raises(SpecError, match=r"test_losses.focal. is a Python object.*resume\(folder, loss="):
        resume(tmp_path, longer)
    later = resume(tmp_path, longer, loss=focal, metrics={"largest": largest})
    assert torch.equal(later.parameters, run(experiment).parameters)
