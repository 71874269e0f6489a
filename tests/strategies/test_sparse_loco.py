"""SparseLoCo: its steps by hand, and what it equals where nothing is left out.

Formulas of the authors' code are restated from tplr-ai/templar, commit c2397ac, src/tplr/compress.py.
"""

import math

import numpy as np
import pytest
import torch
from vectors import pushed

import psbench as ps
from psbench.core import ClusterView, Push
from psbench.errors import ParameterError
from psbench.optimization.optimizer import SGD
from psbench.runs.replaying import replay
from psbench.seeds import Streams
from psbench.strategies.aggregation import SparseOuter
from psbench.strategies.codecs import Channel, ChunkedTopK
from psbench.testing import toy_experiment
from psbench.training.server import Server

ALL = {"name": "chunked_top_k", "chunk": 8, "kept": 8, "value_bits": 32, "residual_decay": 0.0}
ONE, OTHER = torch.tensor([4.0, 0.0, 2.0]), torch.tensor([0.0, 6.0, 4.0])


def moved(part, *vectors, weights=None):
    own = Server(torch.zeros(3), torch.zeros(0), SGD(lr=1.0), 8, part)
    own.apply(pushed([*vectors], [*(weights or [1.0] * len(vectors))]))
    return own.parameters.tolist()


def run(strategy, **changes):
    return ps.run(toy_experiment(strategy, **{"stop": {"updates": 8}, "seed": 2} | changes))


def test_what_a_message_and_the_residual_hold_is_what_was_given():
    """e <- beta e + D, q = Q(e), e <- e - q: Alg. 1."""
    sender, rng = Channel(ChunkedTopK(chunk=8, kept=2), 20, Streams(0), 0), np.random.default_rng(0)
    before = np.zeros(20, np.float32)
    for _ in range(5):
        difference = rng.standard_normal(20, dtype=np.float32)
        sent = sender.receive(sender.send(difference))
        expected = np.float32(0.95) * before + difference
        np.testing.assert_allclose(sender.residual + sent, expected, rtol=1e-5, atol=1e-6)
        before = sender.residual.copy()


def test_the_mean_is_over_those_that_sent_an_entry():
    senders, everybody = (SparseOuter(combine=name, outer_lr=0.5) for name in ("mean_of_senders", "mean"))
    assert moved(senders, ONE, OTHER) == [-2.0, -3.0, -1.5]
    assert moved(everybody, ONE, OTHER) == [-1.0, -1.5, -1.5]
    assert moved(senders, ONE) == moved(everybody, ONE)


def test_disjoint_entries_differ_by_the_number_of_workers():
    one, other = torch.tensor([4.0, 0.0, 0.0]), torch.tensor([0.0, 6.0, 0.0])
    senders, everybody = (moved(SparseOuter(combine=c), one, other) for c in ("mean_of_senders", "mean"))
    assert senders == [2 * entry for entry in everybody]


def quantised(val, n_bins):
    """TopKCompressor._quantize_values and _dequantize_values, lines 583-644, with a range of 6 sigma."""
    centered = val - val.mean()
    std = centered.norm() / math.sqrt(centered.numel() - 1)
    scale = 6 * std / n_bins
    code = (centered / scale + n_bins // 2).round().clamp(0, n_bins - 1).long()
    sums = torch.zeros(n_bins, dtype=val.dtype).scatter_add_(0, code, centered)
    counts = torch.zeros(n_bins, dtype=val.dtype).scatter_add_(0, code, torch.ones_like(val))
    lookup = torch.where(counts > 0, sums / counts, torch.zeros_like(sums))
    return lookup[code] + val.mean()


@pytest.mark.parametrize("bits", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [2, 3, 64, 500])
def test_values_arrive_as_the_means_of_the_authors_bins(bits, size):
    codec, rng = ChunkedTopK(chunk=size, kept=size, value_bits=bits), np.random.default_rng(size)
    values = (rng.standard_normal(size) ** 3).astype(np.float32)
    found = codec.decode(codec.encode(values, rng), size)
    expected = quantised(torch.from_numpy(values.astype(np.float64)), 1 << bits)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("values", [[3.0], [2.0, 2.0, 2.0], [0.0, 0.0]])
def test_values_without_a_deviation_arrive_as_they_are(values):
    codec, rng = ChunkedTopK(chunk=8, kept=8), np.random.default_rng(0)
    given = np.array(values, np.float32)
    np.testing.assert_array_equal(codec.decode(codec.encode(given, rng), given.size), given)


@pytest.mark.parametrize("norms", [[2.0, 1.0, 8.0], [1.0, 8.0, 2.0, 4.0], [3.0, 5.0], [7.0], [0.0, 0.0, 0.0]])
def test_longer_differences_are_shortened_to_the_median(norms):
    """Lines 526-556: clamp(torch.median(norms) / (norm + 1e-8), max=1); of two in the middle the lower."""
    part, count = SparseOuter(), len(norms)
    pushes = [Push(i, i, 1, 0, samples=4) for i in range(count)]
    view = ClusterView(count, 1, 1)
    view.pending = {push.id: push for push in pushes}
    (measure,) = part.on_commit(pushes, view)
    assert list(measure.needs) == [f"dot:{i}:{i}" for i in range(count)]
    (apply,) = part.on_measured({f"dot:{i}:{i}": norm**2 for i, norm in enumerate(norms)}, view)
    given = torch.tensor(norms, dtype=torch.float64)
    shortened = torch.clamp(given.median() / (given + 1e-8), max=1) * given
    np.testing.assert_allclose(np.array(apply.weights) * norms, shortened, rtol=1e-7)


def test_with_all_entries_sent_it_is_local_sgd_with_an_outer_rate():
    local = {"local_steps": 3, "local_momentum": "kept"}
    sparse = {"name": "sparse_loco", "codec": ALL, "clip": "none", "outer_lr": 0.6} | local
    outer = {"name": "diloco", "outer_optimizer": "plain", "outer_lr": 0.6} | local
    for combine in ("mean", "mean_of_senders"):
        left, right = run(sparse | {"combine": combine}), run(outer)
        torch.testing.assert_close(left.parameters, right.parameters, rtol=1e-4, atol=1e-5)


def test_any_number_of_servers_clips_alike():
    """Codecs are per server, so that only what all entries of are sent can be equal."""
    made = [{"name": "sparse_loco", "codec": ALL, "local_steps": 3, "servers": count} for count in (1, 3)]
    assert len({run(strategy).meta["params_digest"] for strategy in made}) == 1


@pytest.mark.nightly
@pytest.mark.slow
def test_it_learns_and_sends_little():
    spec = {"data": "digits", "model": "mlp", "cluster": {"workers": 4}, "stop": {"epochs": 30}}
    few = {"name": "chunked_top_k", "chunk": 64, "kept": 8}
    sparse, whole = (
        ps.run(ps.Experiment(strategy=strategy, **spec))
        for strategy in (
            {"name": "sparse_loco", "codec": few, "local_steps": 5},
            {"name": "diloco", "outer_optimizer": "plain", "outer_lr": 1.0, "local_steps": 5},
        )
    )
    assert sparse.summary()["bytes"]["up"] < whole.summary()["bytes"]["up"] / 25
    assert sparse.summary()["final"]["val_accuracy"] > 0.9
    assert replay(sparse) == len(sparse.log)


def test_a_ring_is_refused():
    with pytest.raises(ParameterError, match="sums pushes in transit"):
        ps.strategies.sparse_loco(placement="all_reduce")
