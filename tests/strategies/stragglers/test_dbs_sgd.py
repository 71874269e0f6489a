"""DBS-SGD: batches that follow speed."""

from itertools import count

import pytest
import torch

import psbench as ps
from psbench import strategies
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.engine import Engine
from psbench.core.log import Kind
from psbench.core.view import ClusterView
from psbench.errors import ParameterError
from psbench.strategies.stragglers import DBS


class Lockstep:
    """Two workers that step in turns; a step of b samples takes b / speed seconds."""

    def __init__(self, dataset_size=100_000, **values):
        self.engine = Engine(
            strategies.dbs_sgd(**values),
            ClusterView(num_workers=2, dataset_size=dataset_size, global_batch=512),
        )
        self.flights, self.ids = {}, count()
        self._perform(self.engine.begin([0, 1]))

    def step(self, worker, speed=1.0):
        """Let a worker push; return the batch that it is given next."""
        batch = self.engine.view.workers[worker].batch_size
        ticket, version = self.flights[worker]
        push = ev.Push(next(self.ids), worker, ticket, version, batch, stats={"compute_s": batch / speed})
        self._perform(self.engine.handle(push, float(push.id)))
        return self.engine.view.workers[worker].batch_size

    def _perform(self, actions):
        for action in actions:
            if type(action) is act.Release:
                self.flights[action.worker] = action.ticket, action.load

    def steps(self, speeds):
        """Let both step at these speeds of worker 1; return the batches that it is given."""
        return [(self.step(0), self.step(1, speed))[1] for speed in speeds]


def test_the_printed_rule_settles_below_the_ideal():
    lockstep = Lockstep(mode="literal")
    batches = lockstep.steps([10 / 7] * 18)
    assert batches[:4] == [256] * 4
    assert batches[4:] == [366, 337, 318, 305, 296, 289, 303, 310, 311, 310, 307, 304, 304, 305]
    assert lockstep.engine.view.workers[0].batch_size == 256


def test_proportional_batches_settle_on_the_ideal_and_follow_a_change():
    lockstep = Lockstep()
    assert lockstep.steps([10 / 7] * 14)[4:] == [366] * 10
    # the worker slows down: the first slow step of the window shows already, and the whole window at last
    after = lockstep.steps([1.1] * 13)
    assert after[0] == 345
    assert after[5:] == [282] * 8  # 256 samples times 1.1


@pytest.mark.parametrize("mode", ["proportional", "literal"])
def test_a_slower_worker_gets_less(mode):
    assert Lockstep(mode=mode).steps([0.5] * 5)[-1] == 128


def test_differences_below_the_tolerance_change_nothing():
    assert set(Lockstep().steps([1.04] * 20)) == {256}
    assert set(Lockstep(tolerance=1e9).steps([3.0] * 20)) == {256}
    assert Lockstep(tolerance=1.0).steps([2.0] * 5)[-1] == 512  # away from 1 by the tolerance


def test_a_batch_is_at_least_one_and_at_most_the_training_set():
    assert Lockstep().steps([1e-6] * 5)[-1] == 1
    assert Lockstep(dataset_size=600).steps([100.0] * 5)[-1] == 600


def test_one_that_is_back_begins_anew():
    lockstep = Lockstep(window=2)
    assert lockstep.steps([2.0, 2.0])[-1] == 512
    lockstep.engine.handle(ev.Leave(1), 10.0)
    lockstep._perform(lockstep.engine.handle(ev.Join(1), 11.0))
    assert lockstep.engine.view.workers[1].batch_size == 256
    assert lockstep.steps([1.0] * 4) == [256] * 4


def experiment(strategy, **values):
    cluster = {"workers": 3, "speed": [0.6, 1.0, 0.3], "step_time": "constant"}
    given = {"batch_size": 96, "data": {"name": "digits"}, "model": "logistic", "stop": {"epochs": 3}}
    given |= {"optimizer": {"name": "sgd", "lr": 0.1}, "evaluate_every": 100.0, "cluster": cluster}
    return ps.Experiment(strategy=strategy, **given | values)


def test_steps_take_equally_long_once_batches_have_settled():
    done = ps.run(experiment("dbs_sgd"))
    pushes = done.log.of_kind(Kind.PUSH)
    last = dict(zip(pushes["worker"], pushes["compute_s"], strict=True))
    assert last[1] == pytest.approx(last[0], rel=0.05)
    assert last[2] == pytest.approx(last[0], rel=0.05)
    sizes = dict(zip(pushes["worker"], pushes["samples"], strict=True))
    assert sizes[2] < sizes[0] == 32 < sizes[1]


def test_every_decision_is_taken_again_in_replay():
    done = ps.run(experiment(strategies.dbs_sgd(window=2), cluster={"workers": 3, "speed": [0.6, 1.0, 0.3]}))
    assert len(set(done.log.of_kind(Kind.PUSH)["samples"].tolist())) > 3
    assert ps.replay(done) == len(done.log)


@pytest.mark.parametrize("values", [{"tolerance": 1e9}, {"window": 10_000}])
def test_batches_that_never_change_are_asp(values):
    dbs, asp = ps.run(experiment(strategies.dbs_sgd(**values))), ps.run(experiment("asp"))
    assert torch.equal(dbs.parameters, asp.parameters)


def test_equal_workers_are_asp():
    cluster = {"workers": 3, "step_time": "constant"}
    dbs, asp = (ps.run(experiment(name, cluster=cluster)) for name in ("dbs_sgd", "asp"))
    assert torch.equal(dbs.parameters, asp.parameters)


def test_a_strategy_that_reads_nothing_logs_no_statistics():
    assert set(ps.run(experiment("asp")).log.of_kind(Kind.PUSH)["text"].tolist()) == {0}


def test_what_no_backend_knows_cannot_be_read(monkeypatch):
    monkeypatch.setattr(DBS, "reads", ("temperature",))
    with pytest.raises(ParameterError, match="require temperature, but the statistics"):
        ps.run(experiment("dbs_sgd"))
