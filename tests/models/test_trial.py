"""What cannot work is one clear line before training: networks, losses and metrics of one's own."""

from __future__ import annotations

import pytest
import torch
from models.networks import Net, Words
from torch import nn
from torch.nn import functional

from psbench.errors import DoubtfulComposition, ParameterError, UnknownName
from psbench.runs.execution import run
from psbench.testing import toy_experiment
from psbench.training.workload import Workload


class Holding(nn.Module):
    """Holds what cannot be copied."""

    def __init__(self, thing):
        super().__init__()
        self.layer, self.thing = nn.Linear(4, 3), thing

    def forward(self, x):
        return self.layer(x)


class Wrapped(nn.Module):
    """Does something with the outputs of a layer."""

    def __init__(self, then):
        super().__init__()
        self.layer, self.then = nn.Linear(4, 3), then

    def forward(self, x):
        return self.then(self.layer(x))


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(0))

    def forward(self, x):
        self.seen = torch.cat([self.seen, x.detach().sum().reshape(1)])
        return self.layer(x)


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 3, dtype=torch.complex64))

    def forward(self, x):
        return (x.to(torch.complex64) @ self.weight).abs()


def frozen():
    return nn.Linear(4, 3).requires_grad_(False)


REFUSED = {
    "no parameters": (nn.Identity, "has no parameters to train: it has none at all"),
    "frozen": (frozen, "has no parameters to train: all of them are frozen"),
    "doubles": (lambda: nn.Linear(4, 3).double(), "parameter 'weight' is float64, .*call its .float()"),
    "complex": (
        Spectral,
        "parameter 'weight' is complex64, .*make it two of real numbers, and torch.complex of them",
    ),
    "too few classes": (
        lambda: nn.Linear(4, 2),
        r"answers with float32 of shape \(4, 2\), and data 'mixture' has 3 classes.*shape \(4, 3\)",
    ),
    "wrong shape of samples": (
        lambda: nn.Linear(5, 3),
        r"cannot take a batch of data 'mixture', float32 of shape \(4, 4\): ",
    ),
    "tokens expected": (lambda: nn.Embedding(9, 3), r"cannot take a batch .*float32 .*Error: "),
    "not finite": (lambda: Wrapped(lambda y: y / 0), "its loss is nan before the first step"),
    "no gradient": (lambda: Wrapped(lambda y: y.detach()), "its loss has no gradient"),
    "infinite gradient": (
        lambda: Wrapped(lambda y: (y * 0).abs().sqrt()),
        "gradient of its loss is not finite",
    ),
    "several outputs": (
        lambda: Wrapped(lambda y: (y, y)),
        "takes one tensor, and the model gives tuple; give a",
    ),
    "no tensor": (lambda: Wrapped(lambda y: y.tolist()), "takes one tensor, and the model gives list"),
    "no module": (lambda: 3, "gives int, and must give a torch.nn.Module"),
    "fails to be made": (lambda: Net("wide"), "cannot be made: TypeError"),
    "a buffer that grows": (
        Growing,
        r"buffer 'seen' changes its shape in the forward, from \(0,\) to \(1,\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_network_that_cannot_work_is_one_line(case):
    make, message = REFUSED[case]
    with pytest.raises(ParameterError, match=message) as refused:
        Workload.build(toy_experiment(model=make))
    assert "\n" not in str(refused.value)


def test_an_open_file_is_refused_when_the_module_is_passed():
    with (
        open(__file__) as file,
        pytest.raises(ParameterError, match=r"Holding' cannot be copied: "),
    ):
        toy_experiment(model=Holding(file))


def test_what_is_no_model_at_all_is_refused():
    with pytest.raises(ParameterError, match="model: expected a name or a mapping with a name, got 3"):
        toy_experiment(model=3)
    with pytest.raises(UnknownName, match="did you mean 'mlp'"):
        toy_experiment(model="mlpp")


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda outputs, targets: 1.0, "loss 'own' gives float, and must give a tensor of one number"),
        (lambda outputs, targets: outputs.sum(1), r"gives float32 of shape \(4,\), and must give"),
        (lambda outputs, targets: outputs @ targets, "loss 'own' cannot take the outputs of model"),
        (lambda outputs, targets: outputs.sum() * float("inf"), "its loss is -?inf|nan before"),
        (nn.CrossEntropyLoss(reduction="sum"), "is a sum over the batch: with every sample twice it is"),
        (lambda outputs, targets: torch.zeros((), requires_grad=True), "depends on none of its parameters"),
        ("mse", r"loss 'mse': outputs of shape \(4, 3\) do not fit targets of shape \(4,\)"),
    ],
)
def test_a_loss_that_cannot_work_is_one_line(loss, message):
    with pytest.raises(ParameterError, match=message):
        Workload.build(toy_experiment(loss=loss))


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(), "hinge", lambda o, t: (o**2).mean() + 1])
def test_a_mean_is_no_sum(loss):
    Workload.build(toy_experiment(model=lambda: nn.Linear(4, 3), loss=loss))


def test_more_outputs_than_classes_are_doubtful():
    many = toy_experiment(model=lambda: nn.Linear(4, 1000))
    with pytest.warns(DoubtfulComposition, match="1000 numbers a sample, and data 'mixture' has 3 classes: "):
        Workload.build(many)


def test_an_optimizer_that_only_the_servers_have_is_doubtful():
    adam = {"name": "adam", "lr": 0.01}
    with pytest.warns(DoubtfulComposition, match="'osp': optimizer 'adam' under osp: the steps that workers"):
        toy_experiment("osp", optimizer=adam)
    for strategy, optimizer in (("osp", "sgd"), ("local_sgd", adam), ("bsp", adam)):
        toy_experiment(strategy, optimizer=optimizer)


def test_names_of_losses_and_metrics_are_checked():
    with pytest.raises(UnknownName, match="'huper'; did you mean 'huber'"):
        toy_experiment(loss="huper")
    with pytest.raises(UnknownName, match="'perplexty'; did you mean 'perplexity'"):
        toy_experiment(metrics=["perplexty"])
    with pytest.raises(ParameterError, match="metrics: 'loss' is not a valid name of a metric"):
        toy_experiment(metrics={"loss": len})
    with pytest.raises(ParameterError, match="expected a mapping of name to function, or a list, got 'f1'"):
        toy_experiment(metrics="f1")
    with pytest.raises(ParameterError, match="has parameters, which would not be trained"):
        toy_experiment(loss=nn.Linear(3, 1))


def test_a_metric_that_fails_is_one_line_before_the_first_step():
    with pytest.raises(
        ParameterError, match=r"metric 'odd' cannot be computed .* 24 validation.*ZeroDivision"
    ):
        run(toy_experiment(metrics={"odd": lambda outputs, targets: 1 / 0}))


def test_a_target_accuracy_needs_outputs_that_name_a_class():
    def loss(outputs, targets):
        return functional.cross_entropy(outputs[0], targets)

    model = lambda: Wrapped(lambda y: (y, y))  # noqa: E731
    with pytest.raises(ParameterError, match=r"target_accuracy: .* names no classes"):
        Workload.build(toy_experiment(model=model, loss=loss, stop={"target_accuracy": 0.9}))


def test_a_trial_changes_nothing():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    before = torch.get_rng_state()
    workload = Workload.build(toy_experiment(model=module))
    assert torch.equal(before, torch.get_rng_state())
    built = workload.model.module.state_dict()
    assert all(torch.equal(built[name], values) for name, values in module.state_dict().items())


def test_a_gpu_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ParameterError, match="device: 'cuda', but torch sees no GPU here; use 'cpu', or 'auto'"
    ):
        run(toy_experiment(device="cuda"))
    assert (
        run(toy_experiment(device="auto")).meta["params_digest"]
        == run(toy_experiment()).meta["params_digest"]
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("strategy", ["bsp", "asp", "local_sgd"])
def test_on_a_gpu_it_is_the_same_but_for_rounding(strategy):
    host = run(toy_experiment(strategy, model=Net, seed=1))
    gpu = run(toy_experiment(strategy, model=Net, seed=1, device="cuda"))
    assert gpu.parameters.device.type == "cpu"
    torch.testing.assert_close(gpu.parameters, host.parameters, rtol=1e-4, atol=1e-5)
    assert torch.equal(Workload.build(gpu.experiment).parameters, Workload.build(host.experiment).parameters)


def test_tokens_suit_no_layer_of_numbers():
    with pytest.raises(
        ParameterError, match=r"model 'mlp' cannot take a batch of data 'words', int64 .*\(4, 6\)"
    ):
        Workload.build(toy_experiment(model="mlp", data=Words()))
