"""Steps by torch's own kernels have the bits of separate steps, whatever the length and the threads."""

import pytest
import torch

from psbench.core.arithmetic import momentum_step
from psbench.training import fused
from psbench.training.fused import fused_momentum_step


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize(("length", "beta"), [(0, 0.9), (3, 0.9), (64, 0.0), (1000, 0.5), (262_151, 0.9)])
def test_bits_are_those_of_separate_steps(length, beta, nesterov):
    drawn = torch.randn(3, length, generator=torch.Generator().manual_seed(length))
    ours, plain = drawn.clone().unbind(), drawn.clone().unbind()
    for _ in range(3):
        fused_momentum_step(*ours, 0.7, beta, nesterov)
        momentum_step(*plain, 0.7, beta, nesterov)
    for own, other in zip(ours, plain, strict=True):
        assert torch.equal(own, other)


def test_the_kernel_is_used_where_it_rounds_alike_and_only_there(monkeypatch):
    """Also on a slice that begins anywhere; not in other precisions, nor where it rounds otherwise."""
    counts = []
    plain = fused._fused
    monkeypatch.setattr(fused, "_fused", lambda x, *others: counts.append(len(x)) or plain(x, *others))
    x, d, v = torch.zeros(3, 201).unbind()
    fused_momentum_step(x[1:], d[1:], v[1:], 0.7, 0.9, True)
    fused_momentum_step(x.double(), d.double(), v.double(), 0.7, 0.9, True)
    monkeypatch.setattr(fused, "_is_exact", lambda: False)
    fused_momentum_step(x, d, v, 0.7, 0.9, True)
    assert counts == [192] or counts == [16 * 64, 16 * 64, 192]  # the trial of the processor comes first
