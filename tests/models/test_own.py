"""Networks of one's own: each form, simulated, against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from psbench.runs import run
from psbench.testing import toy_experiment


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, 3))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("model", [Net, Net(), lambda: Net(5)], ids=["class", "module", "function"])
def test_each_form_is_trained_and_leaves_global_chance_alone(model):
    before = torch.get_rng_state()
    first, again = (run(toy_experiment(model=model)) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert first.meta["params_digest"] == again.meta["params_digest"]
    assert first.experiment.spec()["model"]["name"] == "own"
