"""Live workers without a server, in threads: bits, replay, deaths, checkpoints."""

from typing import ClassVar

import pytest
import torch
from pydantic import PrivateAttr
from test_live_resume import resumed_run
from threaded_run import Killed, ThreadedRun
from toybox import at_night

import psbench as ps
from psbench import metrics
from psbench.backends.dask.worker.worker import Worker
from psbench.core import Action, ClusterView, Push
from psbench.core.actions import Drop
from psbench.core.parts import Stragglers
from psbench.results.run import Run
from psbench.testing.toys import toy_cluster, toy_experiment
from psbench.training.build import Workload

pytestmark = pytest.mark.usefixtures("one_torch_thread")

TINY = {"data": "digits", "cluster": {"workers": 4}, "stop": {"epochs": 2}, "batch_size": 96, "seed": 3}
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}


def made(name="d_psgd_step_first", graph="ring", **values):
    return ps.strategies.CATALOGUE[name](graph=graph, **values)


def live(strategy, **changes):
    settings = TINY | {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}, "backend": "dask"} | changes
    experiment = ps.Experiment(**settings, strategy=strategy)
    run = ThreadedRun(experiment).run()
    assert run.error is None
    return experiment, run


@pytest.mark.parametrize("name", ["d_psgd", "d_psgd_step_first"])
def test_live_in_the_complete_graph_it_has_the_bits_of_virtual_time(name):
    experiment, found = live(made(name, "complete"))
    expected = ps.run(experiment.but(backend="simulated"))
    last, other = found.log.evaluations()[-1], expected.log.evaluations()[-1]
    if name == "d_psgd_step_first":  # else workers run ahead, each at its own pace
        torch.testing.assert_close(found.parameters, expected.parameters, rtol=0, atol=0)
        assert last["val_loss"] == other["val_loss"]
        assert metrics.total_bytes(found.log)["up"] == metrics.total_bytes(expected.log)["up"]
    assert last["consensus_distance"] < 1


def test_live_both_of_a_pair_are_evaluated_as_they_mixed():
    """Of two workers each version leaves both with one model, whichever of them began it."""
    pairs = {"consistency": "asp", "aggregation": "pair_average", "communication": "step_then_mix"}
    settings = {"cluster": {"workers": 2}, "stop": {"updates": 12}, "evaluate_every": 0.01}
    _, found = live(pairs | {"placement": "gossip"}, **settings)
    assert len(found.log.evaluations()) == 13
    assert [each["consensus_distance"] for each in found.log.evaluations()] == [0.0] * 13


@pytest.mark.parametrize("name", ["partial_reduce", *at_night("prague")])
def test_live_a_group_of_all_workers_is_all_reduce(name):
    strategy = ps.strategies.CATALOGUE[name](group_size=4)
    experiment, found = live(strategy)
    expected = ps.run(experiment.but(backend="simulated"))
    torch.testing.assert_close(found.parameters, expected.parameters, **ROUNDING)
    reduced = ps.run(experiment.but(backend="simulated", strategy="all_reduce"))
    torch.testing.assert_close(found.parameters, reduced.parameters, **ROUNDING)
    assert metrics.total_bytes(found.log)["up"] == metrics.total_bytes(expected.log)["up"]
    # the last of a ring adds up in the same order as all others
    assert found.log.evaluations()[-1]["consensus_distance"] == 0


@pytest.mark.parametrize("fault", [{"how": "sign_flipped", "factor": 3.0}, {"how": "stale"}])
def test_live_a_faulty_worker_sends_what_is_wrong_and_does_not_know(fault):
    """It sent what it had computed, and the run was that of sound workers."""
    cluster = toy_cluster([1.0, 1.0, 1.0], corruptions=[{"worker": 1, "after": 1, **fault}])
    experiment = toy_experiment(made(graph="complete"), cluster=cluster, stop={"updates": 12})
    expected = ps.run(experiment)
    done = ThreadedRun(experiment.but(backend="dask")).run()
    assert done.error is None
    torch.testing.assert_close(done.parameters, expected.parameters, rtol=0, atol=0)


@pytest.mark.parametrize(
    "name", ["sgp", "ad_psgd", "prague", *at_night("d_psgd", "d_psgd_step_first", "partial_reduce")]
)
def test_live_it_learns_and_replays(name):
    experiment, found = live(name, stop={"epochs": 4})
    last = found.log.evaluations()[-1]
    assert last["val_accuracy"] > 0.85
    assert 0 < last["consensus_distance"] < 2

    meta = Workload.build(experiment).facts()
    assert ps.replay(Run(experiment, found.log, meta, None, None)) == len(found.log)


class DropsWorkerOne(Stragglers):
    """Drops worker 1 in the answer that ends the third round of three workers."""

    name: ClassVar[str] = "drops_worker_one"
    _pushes: int = PrivateAttr(0)

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        self._pushes += 1
        return [Drop(1, "the third round is over")] if self._pushes == 9 else []


def test_live_who_is_dropped_by_the_answer_that_releases_it_takes_no_step():
    """It drew a batch for a step that was void, and its data were one batch further than in virtual time."""
    strategy = {"name": "d_psgd_step_first", "graph": "complete", "stragglers": DropsWorkerOne()}
    cluster = toy_cluster([1.0, 1.0, 1.0])
    experiment = toy_experiment(strategy, cluster=cluster, backend="dask", stop={"updates": 17})
    done = ThreadedRun(experiment).run()
    assert done.error is None
    pushed = metrics.pushes(done.log)["worker"].tolist()
    assert pushed.count(1) == 3
    assert done.workers[1].trainer.position(1).steps == 3


class DiesInItsFourthStep(Worker):
    """Worker 1 is killed in the middle of a run."""

    steps = 0

    def _step(self):
        self.steps += 1
        if self.worker == 1 and self.steps == 4:
            raise Killed
        return super()._step()


@pytest.mark.parametrize(
    "name", ["d_psgd", "ad_psgd", "partial_reduce", *at_night("d_psgd_step_first", "sgp", "prague")]
)
def test_live_the_others_go_on_when_a_worker_dies(name):
    experiment = ps.Experiment(**TINY | {"backend": "dask", "strategy": name})
    done = ThreadedRun(experiment, DiesInItsFourthStep).run()
    assert done.error is None
    assert done.outcome.status == "finished"
    assert done.outcome.facts["lost_workers"] == [1]


@pytest.mark.parametrize("name", ["d_psgd", "sgp", "ad_psgd", "prague", *at_night("d_psgd_step_first")])
def test_live_a_run_goes_on_from_a_checkpoint(name):
    experiment = ps.Experiment(**TINY | {"backend": "dask", "strategy": name, "checkpoint_every": 0.7})
    done = ThreadedRun(experiment).run()
    assert done.error is None
    again = resumed_run(experiment, done, done.checkpoints[0])
    facts = Workload.build(experiment).facts()
    assert ps.replay(Run(experiment, again.log, facts)) == len(again.log)
    assert again.log.evaluations()[-1]["val_loss"] == pytest.approx(
        done.log.evaluations()[-1]["val_loss"], rel=0.2
    )


def test_a_live_run_goes_on_in_virtual_time_with_the_same_bits():
    experiment = ps.Experiment(
        **TINY | {"backend": "dask", "checkpoint_every": 0.7}, strategy=made(graph="complete")
    )
    done = ThreadedRun(experiment).run()
    again = resumed_run(experiment, done, done.checkpoints[0])
    torch.testing.assert_close(again.parameters, done.parameters, rtol=0, atol=0)
