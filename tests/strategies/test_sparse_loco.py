"""SparseLoCo: its steps by hand, and what it equals where nothing is left out."""

import numpy as np
import pytest
import torch
from vectors import pushed

import psbench as ps
from psbench.backends.replay import replay
from psbench.core import ClusterView, Push
from psbench.errors import ParameterError
from psbench.optimization.optimizer import SGD
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


def test_longer_differences_are_shortened_to_the_median():
    part = SparseOuter()
    pushes = [Push(i, i, 1, 0, samples=4) for i in range(3)]
    view = ClusterView(3, 1, 1)
    view.pending = {push.id: push for push in pushes}
    (measure,) = part.on_commit(pushes, view)
    assert list(measure.needs) == ["dot:0:0", "dot:1:1", "dot:2:2"]
    (apply,) = part.on_measured({"dot:0:0": 4.0, "dot:1:1": 1.0, "dot:2:2": 64.0}, view)
    assert apply.weights == [1.0, 1.0, 0.25]
    (apply,) = part.on_measured(dict.fromkeys(measure.needs, 0.0), view)
    assert apply.weights == [1.0, 1.0, 1.0]


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
    with pytest.raises(ParameterError, match="added up on their way"):
        ps.strategies.sparse_loco(placement="all_reduce")
