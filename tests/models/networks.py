"""Networks that a person might bring, and plain torch that trains them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from psbench.data import Dataset, DataSource
from psbench.training.batches import Batches
from psbench.training.build import Workload

TOKENS, VOCABULARY, CLASSES = 6, 11, 3


class Words(DataSource):
    """Sentences of six tokens in three classes."""

    def load(self, streams):
        rng = streams.generator("words")
        x = torch.from_numpy(rng.integers(0, VOCABULARY, (60, TOKENS)))
        y = torch.from_numpy(rng.integers(0, CLASSES, 60))
        return Dataset("words", x[:48], y[:48], x[48:], y[48:], ("a", "b", "c"))


class Net(nn.Module):
    """Four numbers in, three classes out, through a normalised layer."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, 3))

    def forward(self, x):
        return self.layers(x)


class Encoder(nn.Module):
    """A transformer of torch's own layers, for classes of sentences."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.register_buffer("positions", torch.arange(TOKENS))
        self.places = nn.Embedding(TOKENS, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.places(self.positions)
        return self.head(self.encoder(x).mean(1))


class Recurrent(nn.Module):
    """An LSTM over tokens, whose output layer is the embedding (as in torch's word_language_model)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.lstm = nn.LSTM(8, 8, 2, batch_first=True)
        self.out = nn.Linear(8, VOCABULARY, bias=False)
        self.out.weight = self.embedding.weight
        self.head = nn.Linear(VOCABULARY, CLASSES)

    def forward(self, tokens):
        return self.head(self.out(self.lstm(self.embedding(tokens))[0][:, -1]))


class Normed(nn.Module):
    """Batch normalisation, with running means and, if asked, their cumulative average."""

    def __init__(self, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=momentum), nn.ReLU(), nn.Linear(8, 3)
        )

    def forward(self, x):
        return self.layers(x)


class Buffered(nn.Module):
    """Buffers of every type, some of which the forward changes, by putting another tensor in their place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.bool))
        self.register_buffer("phase", torch.ones(3, dtype=torch.complex64))

    def forward(self, x):
        if self.training:
            self.calls += 1
            self.seen[0] = True
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
            self.scale = self.scale * 0.75
        return self.layer(x - self.mean.float()) * self.scale + self.mask * self.phase.real


def plain(experiment, updates, module, seeded=False, loss_of=functional.cross_entropy, lr=0.1):
    """Train a module with torch alone on the batches of the workers, taken one after another.

    With two, four, ... equal workers the mean of their gradients is exact.
    """
    workload = Workload.build(experiment)
    data, workers = workload.data, len(workload.shards)
    sources = [Batches(shard, workload.streams, worker) for worker, shard in enumerate(workload.shards)]
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=lr, momentum=0.9)
    module.train()
    for step in range(updates):
        optimizer.zero_grad()
        for worker, source in enumerate(sources):
            where = torch.from_numpy(source.take(workload.batch_sizes[worker]))
            with torch.random.fork_rng():
                if seeded:
                    torch.manual_seed(workload.streams.integer("forward", worker, step))
                loss = loss_of(module(data.train_x[where]), data.train_y[where])
            (loss / workers).backward()
        optimizer.step()
    return module


def start(experiment):
    """Return the module that a run of the experiment starts from."""
    workload = Workload.build(experiment)
    data = workload.data
    return experiment.model.build(data.input_shape, data.num_outputs, workload.streams, data.train_x[:4])


def flat(module):
    """Return the trained parameters as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad])


def numbers(tensor):
    """Return a tensor as plain numbers."""
    return np.asarray(tensor.tolist())


class Branching(nn.Module):
    """Uses one layer in some batches only, and another in none."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.always, self.sometimes = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        y = self.always(x)
        return y + self.sometimes(x) if float(x[0, 0]) > 0 else y


def plain_parallel(experiment, updates, module, optimizer):
    """Train as DistributedDataParallel does: a parameter that no worker has used has no gradient."""
    workload = Workload.build(experiment)
    data, workers = workload.data, len(workload.shards)
    sources = [Batches(shard, workload.streams, worker) for worker, shard in enumerate(workload.shards)]
    parameters, used = list(module.parameters()), []
    for _ in range(updates):
        found = []
        for worker, source in enumerate(sources):
            where = torch.from_numpy(source.take(workload.batch_sizes[worker]))
            loss = functional.cross_entropy(module(data.train_x[where]), data.train_y[where])
            found.append(torch.autograd.grad(loss, parameters, allow_unused=True))
        for parameter, gradients in zip(parameters, zip(*found, strict=True), strict=True):
            there = [gradient for gradient in gradients if gradient is not None]
            parameter.grad = sum(there) / workers if there else None
        used.append([None not in gradients for gradients in zip(*found, strict=True)])
        optimizer.step()
    return module, used
