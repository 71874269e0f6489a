"""Values and costs of the numbers that parts request with `Measure`, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from psbench.backends.pushes import bases_of_updates, versions_in_use
from psbench.backends.simulated.resources import Resources
from psbench.core import actions as act
from psbench.core.strategy import Strategy
from psbench.training.mixing import ModelVectors
from psbench.training.products import add_up, product_of, share_of


class SimulatedMeasurements:
    """Measures for one composition.

    A loss takes the time of a forward pass over its samples (`Profile.forward_s`) on a machine of speed 1,
    which a server or a node beside it is taken to be; a distance takes none. A server's load is the time that
    its link was busy.

    Parameters
    ----------
    composition : Strategy
    resources : Resources
    server_loads : callable
        Returns each server's load since it was called last, seconds.
    """

    def __init__(
        self, composition: Strategy, resources: Resources, server_loads: Callable[[], list[float]]
    ) -> None:
        self._resources, self._server_loads = resources, server_loads
        self.held: dict[int, Tensor] = {}  #: versions that workers or pushes started from
        self.holds_versions = composition.holds_versions
        self._bases = set[int]()  # of the updates of an answer

    def begin(self, actions: Sequence[act.Action]) -> None:
        """Prepare for an answer's actions; call if the composition `holds_versions`."""
        self._bases = bases_of_updates(actions)

    def hold(self, version: int) -> None:
        """Store the version that a worker starts from; call if the composition `holds_versions`."""
        if version not in self.held:
            in_use = versions_in_use(self._resources.view, version, self._bases)
            self.held = {v: tensor for v, tensor in self.held.items() if v in in_use}
            self.held[version] = self._resources.server.parameters.clone()

    def measure(
        self, measure: act.Measure, payloads: Mapping[int, ModelVectors]
    ) -> tuple[dict[str, float], float]:
        """Return the numbers by name, and their cost in seconds."""
        facts, seconds = {}, 0.0
        loads: list[float] = []
        for name, push in measure.needs.items():
            kind, _, which_server = name.partition(":")
            if kind == "server_load":
                loads = loads or self._server_loads()
                facts[name] = loads[int(which_server)]
                continue
            if kind == "dot":
                facts[name] = self._dot(name, payloads)
                continue
            if kind == "distance_sq":
                facts[name] = self._distance_sq(push)
                continue
            which: Literal["train", "test"] = "train" if kind == "train_loss" else "test"
            evaluator, server = self._resources.evaluator, self._resources.server
            assert evaluator is not None
            model = (server.parameters, server.buffers) if push is None else payloads[push]
            facts[name] = evaluator.loss(which, *model, measure.samples)
            size = evaluator.sample_size(which, measure.samples)
            seconds += self._resources.workload.profile.forward_s(size)
        return facts, seconds

    def _dot(self, name: str, payloads: Mapping[int, ModelVectors]) -> float:
        resources, view = self._resources, self._resources.view
        product = product_of(name, view.layout, resources.server.aggregation.name, view.pending)
        vectors = resources.server.tensors()
        for number, push in view.pending.items():
            if number in payloads:
                vectors[f"payload/{push.worker}/{push.ticket}"] = payloads[number][0]
        return add_up([share_of(product, vectors, [slice(product.start, product.stop)])])

    def _distance_sq(self, push: int | None) -> float:
        assert push is not None
        base = self._resources.view.pending[push].base_version
        difference = self._resources.server.parameters - self.held[base]
        return float(torch.dot(difference, difference))
