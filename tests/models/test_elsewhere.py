"""Networks of torchvision, and of torch's examples: one step each is plain torch's."""

from __future__ import annotations

import pytest
import torch
from models.networks import flat, plain, start
from torch import nn
from torch.nn import functional
from toybox import at_night

from psbench.data import data as own_data
from psbench.errors import ParameterError, UnknownName
from psbench.models import ImportedModel, Torchvision
from psbench.runs.execution import run
from psbench.seeds import Streams
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster


def numbers(*shape):
    return torch.empty(shape).normal_(generator=torch.Generator().manual_seed(1))


def classes(count, of=2):
    return torch.arange(count) % of


def samples(x, y):
    """Four to train on, two for validation."""
    return x[:4], y[:4], x[4:], y[4:]


def one_step(model, data, loss_of=functional.cross_entropy, lr=0.1, **changes):
    """Return the run and plain torch's module after one step on two samples."""
    alone = {"cluster": toy_cluster([1.0]), "batch_size": 2, "stop": {"updates": 1}, "evaluate_every": 100.0}
    optimizer = {"name": "sgd", "lr": lr}
    experiment = toy_experiment("bsp", model=model, data=data, optimizer=optimizer, **alone | changes)
    return run(experiment), plain(experiment, 1, start(experiment), seeded=True, loss_of=loss_of, lr=lr)


def check(done, module):
    assert torch.equal(done.parameters, flat(module))
    last = done.log.evaluations()[-1]
    assert last["val_loss"] == last["val_loss"]


def check_to_rounding(done, module):
    """A convolution may take another kernel where its weights lie otherwise in memory."""
    begun, expected = flat(start(done.experiment)), flat(module)
    assert torch.dist(done.parameters, expected) <= 1e-2 * torch.dist(begun, expected)
    assert "val_loss" in done.log.evaluations()[-1]


# -------------------------------------------------------------------- torchvision


NIGHTLY = ["squeezenet1_1", "resnet18", "efficientnet_b0", "regnet_y_400mf", "mnasnet0_5", "densenet121"]
ARCHITECTURES = ["shufflenet_v2_x0_5", "mobilenet_v3_small"]


@pytest.mark.by_day(1)
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *at_night(*NIGHTLY)])
def test_a_step_of_torchvisions_networks(architecture):
    data = samples(numbers(6, 3, 48, 48), classes(6))
    check_to_rounding(*one_step({"name": "torchvision", "architecture": architecture}, data, lr=0.001))


def auxiliary(outputs, targets):
    """GoogLeNet's loss: two more classifiers count with 0.3; in eval mode there is one output."""
    if isinstance(outputs, torch.Tensor):
        return functional.cross_entropy(outputs, targets)
    each = [functional.cross_entropy(logits, targets) for logits in outputs]
    return each[0] + 0.3 * (each[1] + each[2])


@pytest.mark.nightly
def test_several_outputs_need_a_loss_of_ones_own():
    data = samples(numbers(6, 3, 64, 64), classes(6))
    check_to_rounding(*one_step(Torchvision(architecture="googlenet"), data, auxiliary, loss=auxiliary))
    with pytest.raises(
        ParameterError, match="'cross_entropy' takes one tensor, but the model returns GoogLeNet"
    ):
        one_step(Torchvision(architecture="googlenet"), data)


def test_nothing_is_downloaded_and_names_are_checked():
    with pytest.raises(ParameterError, match="weights: nothing is downloaded"):
        Torchvision(arguments={"weights": "DEFAULT"})
    with pytest.raises(UnknownName, match=r"'resnet81'; did you mean 'resnet18'"):
        Torchvision(architecture="resnet81").build((3, 32, 32), 2, Streams(0))
    with pytest.raises(ParameterError, match=r"'resnet18' of torchvision cannot be created: "):
        Torchvision(arguments={"depth": 3}).build((3, 32, 32), 2, Streams(0))


# -------------------------------------------------------------------- by where they are


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("Net", "expected a module and a name in it, as my.package:Net, got 'Net'"),
        ("no.such:Net", "module 'no.such' cannot be imported: "),
        ("models.networks:Nett", "module 'models.networks' has no 'Nett'"),
        ("models.networks:TOKENS", "is int, which is not callable"),
        ("models.networks:flat", "'models.networks:flat' cannot be created: "),
        ("builtins:dict", "'builtins:dict' returns dict, but must return a torch.nn.Module"),
    ],
)
def test_what_is_not_there_is_one_line(target, message):
    with pytest.raises(ParameterError, match=message):
        ImportedModel(target=target).build((4,), 3, Streams(0))


# -------------------------------------------------------------------- torch's examples


class Digits(nn.Module):
    """`mnist`: convolutions, two kinds of dropout, log-probabilities."""

    def __init__(self):
        super().__init__()
        self.conv, self.drop2d = nn.Conv2d(1, 4, 3), nn.Dropout2d(0.25)
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(4 * 9, 2)

    def forward(self, x):
        x = self.drop2d(functional.max_pool2d(functional.relu(self.conv(x)), 2))
        return functional.log_softmax(self.out(self.drop(x.flatten(1))), dim=1)


class Variational(nn.Module):
    """`vae`: draws in its forward, and answers with three tensors."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 2 * 3), nn.Linear(3, 8)

    def forward(self, x):
        mean, logvar = self.encode(x).chunk(2, dim=1)
        latent = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        return {"output": self.decode(latent), "mean": mean, "logvar": logvar}


def evidence(outputs, targets):
    mean, logvar = outputs["mean"], outputs["logvar"]
    divergence = -0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(1)
    return (functional.mse_loss(outputs["output"], targets, reduction="none").sum(1) + divergence).mean()


class Siamese(nn.Module):
    """`siamese_network`: a pair in, one logit out, the same layers for both."""

    def __init__(self):
        super().__init__()
        self.embed, self.compare = nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.ReLU()), nn.Linear(8, 1)

    def forward(self, pairs):
        return self.compare(torch.cat([self.embed(pairs[:, 0]), self.embed(pairs[:, 1])], dim=1))


class Graph(nn.Module):
    """`gcn`: features of five nodes, mixed along the edges of a graph that is a constant buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("edges", (torch.eye(5) + torch.eye(5).roll(1, 0)) / 2)
        self.first, self.second = nn.Linear(3, 4, bias=False), nn.Linear(4, 2)

    def forward(self, nodes):
        return self.second(self.edges @ functional.relu(self.edges @ self.first(nodes))).mean(1)


class SuperResolution(nn.Module):
    """`super_resolution`: an image of twice the side."""

    def __init__(self):
        super().__init__()
        self.conv, self.shuffle = nn.Conv2d(1, 4, 3, padding=1), nn.PixelShuffle(2)

    def forward(self, x):
        return self.shuffle(self.conv(x))


class Sequence(nn.Module):
    """`time_sequence_prediction`: two LSTM cells, one number after another."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.LSTMCell(1, 4), nn.LSTMCell(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        one = two = (x.new_zeros(len(x), 4), x.new_zeros(len(x), 4))
        found = []
        for now in x.split(1, dim=1):
            one = self.first(now, one)
            two = self.second(one[0], two)
            found.append(self.out(two[0]))
        return torch.cat(found, dim=1)


class Words(nn.Module):
    """`word_language_model`: an LSTM whose output layer is the embedding."""

    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(7, 4), nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 7)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(self.lstm(self.embed(tokens))[0])


class Vision(nn.Module):
    """`vision_transformer`: patches, attention, a class token."""

    def __init__(self):
        super().__init__()
        self.patches, self.token = nn.Conv2d(1, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8))
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1)
        return self.head(self.encoder(tokens)[:, 0])


def next_tokens(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def one_logit(outputs, targets):
    return functional.binary_cross_entropy_with_logits(outputs[:, 0], targets.float())


TOKENS = torch.arange(6 * 6).reshape(6, 6) % 7
#: the module, its samples, plain torch's loss, and what the experiment is told of it
EXAMPLES = {
    "mnist": (Digits, samples(numbers(6, 1, 8, 8), classes(6)), functional.nll_loss, {"loss": "nll"}),
    "vae": (Variational, samples(numbers(6, 8), numbers(6, 8)), evidence, {"loss": evidence}),
    "siamese": (Siamese, samples(numbers(6, 2, 3, 3), classes(6)), one_logit, {"loss": "bce"}),
    "gcn": (Graph, samples(numbers(6, 5, 3), classes(6)), functional.cross_entropy, {}),
    "super_resolution": (
        SuperResolution,
        own_data(samples(numbers(6, 1, 4, 4), numbers(6, 1, 8, 8)), task="own"),
        functional.mse_loss,
        {"loss": "mse"},
    ),
    "time_sequence": (Sequence, samples(numbers(6, 5), numbers(6, 5)), functional.mse_loss, {}),
    "word_language_model": (Words, samples(TOKENS, TOKENS.roll(-1, 1)), next_tokens, {}),
    "vision_transformer": (Vision, samples(numbers(6, 1, 8, 8), classes(6)), functional.cross_entropy, {}),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_step_of_torchs_examples(name):
    model, data, loss_of, told = EXAMPLES[name]
    check(*one_step(model, data, loss_of, **told))
