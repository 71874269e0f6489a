"""Numbers that parts ask for with `Measure`, in virtual time, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from psbench.clusters import Profile
from psbench.core import actions as act
from psbench.core.strategy import Strategy

if TYPE_CHECKING:
    from psbench.backends.simulated.simulation import Simulation

_Payloads = Mapping[int, tuple[Tensor, Tensor]]
#: a forward pass takes about a third of a training step, which is forward, backward and backward again
_FORWARD = 1 / 3


class Measurements:
    """Measures for one composition.

    A loss takes the time of a forward pass over its samples (`forward_s`) on a machine of speed 1, which a
    server or a node beside it is taken to be; a distance takes none. A server's load is the time that its
    link was busy.

    Parameters
    ----------
    simulation : Simulation
    composition : Strategy
    """

    def __init__(self, simulation: Simulation, composition: Strategy) -> None:
        self._sim = simulation
        self.held: dict[int, Tensor] = {}  #: versions that workers or pushes started from
        self.holds = "distance_sq" in composition.measures

    def released(self, version: int) -> None:
        """Remember the version that a worker starts from; call if the composition `holds` versions."""
        if version not in self.held:
            in_use = {w.base_version for w in self._sim.engine.view.workers.values()} | {version}
            in_use |= {push.base_version for push in self._sim.engine.view.pending.values()}
            self.held = {v: tensor for v, tensor in self.held.items() if v in in_use}
            self.held[version] = self._sim.server.parameters.clone()

    def measure(self, measure: act.Measure, payloads: _Payloads) -> tuple[dict[str, float], float]:
        """Return the numbers by name, and the seconds that they take."""
        facts, seconds = {}, 0.0
        loads: list[float] = []
        for name, push in measure.needs.items():
            kind, _, which_server = name.partition(":")
            if kind == "server_load":
                loads = loads or self._sim.network.server_loads()
                facts[name] = loads[int(which_server)]
                continue
            if kind == "distance_sq":
                facts[name] = self._distance_sq(push)
                continue
            which: Literal["train", "test"] = "train" if kind == "train_loss" else "test"
            server, evaluator = self._sim.server, self._sim.evaluator
            model = (server.parameters, server.buffers) if push is None else payloads[push]
            facts[name] = evaluator.loss(which, *model, measure.samples)
            seconds += forward_s(self._sim.workload.profile, evaluator.sample_size(which, measure.samples))
        return facts, seconds

    def _distance_sq(self, push: int | None) -> float:
        assert push is not None
        base = self._sim.engine.view.pending[push].base_version
        difference = self._sim.server.parameters - self.held[base]
        return float(torch.dot(difference, difference))


def forward_s(profile: Profile, samples: int, worker: int | None = None) -> float:
    """Return the seconds in which a loss is taken over so many samples: a third of what training takes.

    On a worker's machine, or on one of speed 1. Nothing varies by chance, and reading samples again takes no
    time: they are the same in every evaluation.
    """
    seconds = samples * profile.seconds_per_sample * _FORWARD
    return seconds if worker is None else seconds / profile.speed[worker]
