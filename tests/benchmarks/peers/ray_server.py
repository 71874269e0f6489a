"""Ray's asynchronous parameter server: an actor that holds the model, two that compute gradients.

Whoever's gradient is ready is taken, applied, and sent the new weights: the pattern of Ray's own example.
Usage: ray_server.py STEPS BATCH SIZES...
"""

from __future__ import annotations

import sys
import time
from itertools import pairwise

import numpy as np
import ray
import torch
from torch import nn


def build(sizes: list[int]) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@ray.remote(num_cpus=0)
class Server:
    def __init__(self, sizes: list[int]) -> None:
        torch.set_num_threads(1)
        self.model = build(sizes)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def apply(self, gradients: list[np.ndarray]) -> list[np.ndarray]:
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.grad = torch.from_numpy(gradient.copy())
        self.optimizer.step()
        return self.weights()

    def weights(self) -> list[np.ndarray]:
        return [p.detach().numpy().copy() for p in self.model.parameters()]


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, sizes: list[int], batch: int) -> None:
        torch.set_num_threads(1)
        self.model, self.batch = build(sizes), batch
        self.x, self.y = torch.randn(1437, sizes[0]), torch.arange(1437) % sizes[-1]
        self.rng = np.random.default_rng(0)

    def gradient(self, weights: list[np.ndarray]) -> list[np.ndarray]:
        for parameter, weight in zip(self.model.parameters(), weights, strict=True):
            parameter.data = torch.from_numpy(weight.copy())
        where = torch.from_numpy(self.rng.integers(0, len(self.y), self.batch))
        self.model.zero_grad()
        nn.functional.cross_entropy(self.model(self.x[where]), self.y[where]).backward()
        return [p.grad.numpy() for p in self.model.parameters()]


def main() -> None:
    steps, batch, *sizes = map(int, sys.argv[1:])
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, configure_logging=False)
    server, workers = Server.remote(sizes), [Worker.remote(sizes, batch) for _ in range(2)]
    under_way = {worker.gradient.remote(server.weights.remote()): worker for worker in workers}
    began = 0.0
    for step in range(steps):
        if step == steps // 5:
            began = time.perf_counter()
        (ready,), _ = ray.wait(list(under_way))
        worker = under_way.pop(ready)
        under_way[worker.gradient.remote(server.apply.remote(ready))] = worker
    print((steps - steps // 5) / (time.perf_counter() - began))
    ray.shutdown()


if __name__ == "__main__":
    main()
