"""What cannot work is one clear line before training: networks, losses and metrics of one's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from models.networks import Net, Words
from torch import nn
from torch.nn import functional

from psbench.data import data as ps_data
from psbench.errors import DataError, DoubtfulComposition, ParameterError, UnknownName
from psbench.experiment import Experiment
from psbench.runs.execution import run
from psbench.testing import toy_experiment
from psbench.training.build import Workload


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
        "parameter 'weight' is complex64, .*as two parameters, and combine them in forward",
    ),
    "too few classes": (
        lambda: nn.Linear(4, 2),
        r"returns float32 of shape \(4, 2\), but data 'mixture' has 3 classes.*shape \(4, 3\)",
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
        "takes one tensor, but the model returns tuple; use a",
    ),
    "no tensor": (lambda: Wrapped(lambda y: y.tolist()), "takes one tensor, but the model returns list"),
    "no module": (lambda: 3, "returns int, but must return a torch.nn.Module"),
    "fails to be made": (lambda: Net("wide"), "cannot be created: TypeError"),
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
        (lambda outputs, targets: 1.0, "loss 'own' returns float, but must return a tensor of one number"),
        (lambda outputs, targets: outputs.sum(1), r"returns float32 of shape \(4,\), but must return"),
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
    with pytest.warns(
        DoubtfulComposition, match="1000 numbers per sample, but data 'mixture' has 3 classes: "
    ):
        Workload.build(many)


def test_an_optimizer_that_only_the_servers_have_is_doubtful():
    adam = {"name": "adam", "lr": 0.01}
    with pytest.warns(DoubtfulComposition, match="'osp': optimizer 'adam' under osp: local steps of workers"):
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
    with pytest.raises(ParameterError, match=r"target_accuracy: .* are not classes"):
        Workload.build(toy_experiment(model=model, loss=loss, stop={"target_accuracy": 0.9}))


def test_a_trial_changes_nothing():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    before = torch.get_rng_state()
    workload = Workload.build(toy_experiment(model=module))
    assert torch.equal(before, torch.get_rng_state())
    built = workload.model.module.state_dict()
    assert all(torch.equal(built[name], values) for name, values in module.state_dict().items())


class Remembering(nn.Module):
    """Keeps something in its forward: `what` says what."""

    def __init__(self, what):
        super().__init__()
        self.layer, self.teacher = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)
        self.what, self.temperature, self.calls, self.largest, self.ramp = what, 5.0, 0, None, None
        self.own, self.hidden, self.held = (
            {"seen": 0},
            [nn.Linear(4, 3)],
            SimpleNamespace(mean=torch.zeros(4)),
        )
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x):
        getattr(self, self.what)(x)
        return self.layer(x) / self.temperature

    def anneal(self, x):
        if self.training:
            self.temperature = max(1.0, self.temperature * 0.97)

    def count_in_evaluation(self, x):
        self.calls += not self.training

    def running_maximum(self, x):
        self.largest = x.max() if self.largest is None else torch.maximum(self.largest, x.max())

    def first_batch(self, x):
        self.ramp = x if self.ramp is None else self.ramp

    def in_a_container(self, x):
        self.own["seen"] += len(x)

    def in_an_object(self, x):
        self.held.mean = 0.9 * self.held.mean + 0.1 * x.mean(0)

    @torch.no_grad()
    def ema_teacher(self, x):
        self.teacher.weight.data.mul_(0.9).add_(self.layer.weight, alpha=0.1)

    @torch.no_grad()
    def hidden_teacher(self, x):
        self.hidden[0].weight.mul_(0.9)

    @torch.no_grad()
    def own_weights(self, x):
        self.layer.weight.clamp_(-0.01, 0.01)

    def in_buffers(self, x):
        self.step += 1
        self.average = 0.9 * self.average + 0.1 * x.mean(0)

    def cache(self, x):
        if self.ramp is None or len(self.ramp) != len(x):
            self.ramp = torch.linspace(0, 1, len(x))

    def last_outputs(self, x):
        self.held.mean, self.own["last"] = x, self.layer(x)


KEPT = {
    "anneal": "attribute 'temperature'",
    "count_in_evaluation": "attribute 'calls'",
    "running_maximum": "attribute 'largest'",
    "first_batch": "attribute 'ramp'",
    "in_a_container": "attribute 'own'",
    "in_an_object": "attribute 'held'",
    "hidden_teacher": "attribute 'hidden'",
    "ema_teacher": "parameter 'teacher.weight'",
    "own_weights": "parameter 'layer.weight'",
}


@pytest.mark.parametrize("what", KEPT)
def test_a_forward_remembers_in_buffers_only(what):
    message = f"its forward changes (the )?{KEPT[what]}.* depend on the process.*make it a buffer"
    with pytest.raises(ParameterError, match=message):
        Workload.build(toy_experiment(model=lambda: Remembering(what)))


class Drawing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.draw = nn.Linear(4, 3), torch.Generator().manual_seed(0)

    def forward(self, x):
        return self.layer(x) + torch.rand(1, generator=self.draw)


def test_a_generator_of_ones_own_is_no_buffer():
    with pytest.raises(ParameterError, match="attribute 'draw'"):
        Workload.build(toy_experiment(model=Drawing))


@pytest.mark.parametrize("what", ["in_buffers", "cache", "last_outputs"])
def test_buffers_and_what_is_left_of_the_last_batch_are_fine(what):
    done = run(toy_experiment(model=lambda: Remembering(what), stop={"updates": 3}))
    assert done.summary()["status"] == "finished"


class Scripted(nn.Module):
    def __init__(self, counts: bool):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
        self.calls, self.counts = 0, counts

    def forward(self, x):
        if self.counts:
            self.calls += 1
        return self.layers(x)


@pytest.mark.filterwarnings("ignore")  # torch's own, about TorchScript
def test_a_scripted_module_is_trained_as_the_module_is():
    plain = Scripted(False)
    both = [run(toy_experiment(model=each)) for each in (torch.jit.script(plain), plain)]
    torch.testing.assert_close(both[0].parameters, both[1].parameters)
    assert both[0].log.evaluations()[-1] == pytest.approx(both[1].log.evaluations()[-1])
    with pytest.raises(ParameterError, match="attribute 'calls'"):
        Workload.build(toy_experiment(model=torch.jit.script(Scripted(True))))


class Annealed(nn.Module):
    """A loss whose weight changes from call to call."""

    def __init__(self):
        super().__init__()
        self.weight = 1.0

    def forward(self, outputs, targets):
        self.weight *= 0.9
        return self.weight * functional.cross_entropy(outputs, targets)


def test_a_loss_remembers_nothing():
    with pytest.raises(ParameterError, match="loss 'own' keeps state from earlier batches"):
        Workload.build(toy_experiment(loss=Annealed()))


X = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
Y = X @ torch.tensor([[2.0], [-1.0], [0.5]]) + 4


class Vector(nn.Module):
    """Answers with one number a sample, (N,)."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(x)[:, 0]


def squared(outputs, targets):
    return ((outputs - targets) ** 2).mean()


def column(y=Y, **changes):
    settings = {
        "data": (X, y),
        "model": lambda: nn.Linear(3, 1),
        "cluster": {"workers": 2},
        "batch_size": 40,
        "stop": {"epochs": 20},
    }
    return Experiment(strategy="bsp", **settings | changes)


def test_a_loss_of_ones_own_is_given_targets_in_their_shape():
    """psbench's own `mse` of the same data is the oracle of the run, and torch's of its number."""
    metrics = {"shape": lambda o, t: float(t.shape == o.shape), "mse": squared}
    own, named = run(column(loss=squared, metrics=metrics)), run(column(loss="mse"))
    torch.testing.assert_close(own.parameters, named.parameters)
    final = own.log.evaluations()[-1]
    assert final["val_loss"] == pytest.approx(final["val_mse"]) == pytest.approx(0, abs=0.05)
    assert final["val_shape"] == 1.0


@pytest.mark.parametrize("y", [Y, Y[:, 0]], ids=["column", "vector"])
def test_losses_by_name_and_metrics_take_either_shape(y):
    vector = run(column(y, loss="huber", metrics=["mae", "r2"]))
    expected = run(column(Y[:, 0], model=Vector(), loss="huber", metrics=["mae", "r2"], seed=0))
    assert vector.log.evaluations()[-1].keys() == expected.log.evaluations()[-1].keys()
    labels = (y > 4).long()
    classes = run(column(labels, model=lambda: nn.Linear(3, 2), metrics=["top_k", "macro_f1", "perplexity"]))
    flat = run(
        column(labels.flatten(), model=lambda: nn.Linear(3, 2), metrics=["top_k", "macro_f1", "perplexity"])
    )
    torch.testing.assert_close(classes.parameters, flat.parameters)
    assert classes.log.evaluations()[-1] == flat.log.evaluations()[-1]


@pytest.mark.parametrize(
    ("y", "model"), [(Y[:, 0], lambda: nn.Linear(3, 1)), (Y, Vector)], ids=["column", "vector"]
)
def test_a_loss_that_broadcasts_is_refused(y, model):
    message = r"compares every output with every target: outputs of shape \(4(, 1)?,?\) and targets of shape"
    with pytest.raises(ParameterError, match="loss 'own' " + message):
        Workload.build(column(y, model=model, loss=squared))
    with pytest.raises(ParameterError, match="metric 'error' " + message):
        Workload.build(column(y, model=model, metrics={"error": squared}))


class Pair(NamedTuple):
    mean: torch.Tensor
    log_variance: torch.Tensor


FORMS = {
    "tuple": ((lambda m, v: (m, v)), (lambda o: o[0], lambda o: o[1])),
    "named": (Pair, (lambda o: o.mean, lambda o: o.log_variance)),
    "nested": ((lambda m, v: {"head": [m], "v": v}), (lambda o: o["head"][0], lambda o: o["v"])),
}


def two_outputs(form):
    """Return a model of a mean and a variance, and its loss, which takes targets of the mean's shape."""
    make, (mean, log_variance) = FORMS[form]

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.log_variance = nn.Linear(3, 1), nn.Linear(3, 1)

        def forward(self, x):
            return make(self.mean(x), self.log_variance(x))

    def likelihood(outputs, targets):
        v = log_variance(outputs)
        return ((mean(outputs) - targets) ** 2 / v.exp() + v).mean()

    return Two, likelihood


@pytest.mark.parametrize("form", FORMS)
def test_a_loss_of_several_outputs_that_broadcasts_is_refused(form):
    model, likelihood = two_outputs(form)
    Workload.build(column(Y, model=model, loss=likelihood))
    Workload.build(column(Y[:, 0], model=model, loss=lambda o, t: likelihood(o, t[:, None])))
    with pytest.raises(ParameterError, match=r"of shape \(4, 1\) and targets of shape \(4,\) broadcast"):
        Workload.build(column(Y[:, 0], model=model, loss=likelihood))


def test_a_loss_that_reads_no_targets_does_not_broadcast():
    Workload.build(column(Y[:, 0], loss=lambda outputs, targets: (outputs**2).mean()))


@pytest.mark.parametrize("model", [nn.Linear(3, 1), Vector()])
def test_a_loss_that_brings_both_to_one_shape_is_not(model):
    with torch.no_grad():
        for values in model.parameters():
            values.zero_()  # all outputs are alike
    for y in (Y, Y[:, 0]):
        Workload.build(column(y, model=model, loss=lambda o, t: squared(o.reshape(-1), t.reshape(-1))))


def test_targets_of_one_set_and_the_other_have_one_shape():
    with pytest.raises(DataError, match=r"y has shape \(200, 1\), but y_val \(200,\)"):
        column(data=(X, Y, X, Y[:, 0]))


@pytest.mark.parametrize("strategy", ["lb_bsp", "flex_rr", "dbs_sgd"])
def test_a_batch_that_may_shrink_to_one_sample_is_refused_under_batchnorm(strategy):
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(ParameterError, match=f"one sample .*stragglers '{strategy}' may reduce a batch"):
        Workload.build(toy_experiment(strategy, model=net))
    Workload.build(toy_experiment("bsp", model=net))
    Workload.build(toy_experiment(strategy, model=Net))


def test_a_piece_of_one_sample_is_refused_under_batchnorm():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    cut = {"consistency": "bsp", "communication": {"name": "micro_steps", "pieces": 2}}
    Workload.build(toy_experiment(cut, model=net))  # of 4 samples, 2 and 2
    with pytest.raises(ParameterError, match=r"one sample .*communication 'micro_steps' may reduce a batch"):
        Workload.build(toy_experiment(cut, model=net, batch_size=9))  # of 3, 2 and 1


def test_targets_that_do_not_count_may_come_first():
    y = (torch.arange(200) > 80).long() * (1 + torch.arange(200) % 2)
    ignoring = nn.CrossEntropyLoss(ignore_index=0)
    assert run(column(y, model=lambda: nn.Linear(3, 3), loss=ignoring)).summary()["status"] == "finished"


@pytest.mark.parametrize(
    "loss",
    [nn.CrossEntropyLoss(weight=torch.tensor([1.0, 19.0])), nn.CrossEntropyLoss(ignore_index=0)],
    ids=["weights", "ignored"],
)
def test_the_loss_of_a_set_is_that_of_all_of_it(loss):
    """Of more samples than one batch of an evaluation, in the order of their classes."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(1990, 4, generator=draw), torch.arange(1990) % 2
    y[1100:] = 1
    experiment = column(
        data=(x[::5] + 9, y[::5], x, y), model=lambda: nn.Linear(4, 2), loss=loss, stop={"epochs": 1}
    )
    done = run(experiment)
    with torch.no_grad():
        expected = float(loss(done.model()(x), y))
    assert done.log.evaluations()[-1]["val_loss"] == pytest.approx(expected, rel=1e-6)


def test_targets_that_torch_ignores_do_not_count_in_a_loss_by_name():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(1990, 4, generator=draw), torch.arange(1990) % 2
    y[y.numel() // 3 :: 3] = -100
    data = ps_data(x[::5] + 9, y[::5], validation=(x, y), task="own")
    done = run(column(data=data, model=lambda: nn.Linear(4, 2), loss="cross_entropy", stop={"epochs": 1}))
    with torch.no_grad():
        expected = float(functional.cross_entropy(done.model()(x), y))
    assert done.log.evaluations()[-1]["val_loss"] == pytest.approx(expected, rel=1e-6)


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
