"""Runs without a server: what they equal, how long they take, what is refused, checkpoints."""

import numpy as np
import pytest
import torch
from toybox import at_night

import psbench as ps
from psbench import metrics
from psbench.core import Strategy
from psbench.core.log import Kind
from psbench.runs.fork import Fork, fork
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.build import Workload

TINY = {"data": "digits", "cluster": {"workers": 4}, "stop": {"epochs": 2}, "batch_size": 96, "seed": 3}
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}


def trained(strategy, **changes):
    run = ps.run(
        ps.Experiment(**TINY | {"optimizer": {"name": "sgd", "lr": 0.1}} | changes, strategy=strategy)
    )
    return run.parameters, run


def made(name="d_psgd_step_first", graph="ring", **values):
    return ps.strategies.CATALOGUE[name](graph=graph, **values)


# -------------------------------------------------------------------- runs


@pytest.mark.slow
def test_in_the_complete_graph_stepping_first_is_bsp():
    momentum = {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}}
    found, run = trained(made(graph="complete"), **momentum)
    expected, _ = trained("bsp", **momentum)
    torch.testing.assert_close(found, expected, **ROUNDING)
    assert run.metrics["consensus_distance"].max() < 1e-8
    averaged, _ = trained({"name": "local_sgd", "local_steps": 1, "local_momentum": "kept"}, **momentum)
    torch.testing.assert_close(found, averaged, **ROUNDING)
    mixed_first, _ = trained(made("d_psgd", "complete"), **momentum)
    assert (mixed_first - expected).norm() > 0.001 * expected.norm()


def test_one_level_of_all_workers_is_local_sgd():
    one = ps.strategies.hierarchical_sgd(levels=[(3, 4)])
    local = {"name": "local_sgd", "local_steps": 3, "local_momentum": "kept"}
    found, expected = (trained(each, stop={"updates": n})[0] for each, n in ((one, 24), (local, 2)))
    torch.testing.assert_close(found, expected, **ROUNDING)


def test_a_ring_of_two_is_complete():
    two = {"cluster": {"workers": 2}}
    one, other = (trained(made(graph=graph), **two)[0] for graph in ("ring", "complete"))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d_psgd", "d_psgd_step_first", "sgp", "ad_psgd"])
def test_it_learns_replays_and_agrees_on_a_model(name):
    _, run = trained(name, stop={"epochs": 6}, optimizer={"name": "sgd", "lr": 0.2, "momentum": 0.9})
    assert run.metrics["val_accuracy"].iloc[-1] > 0.9
    assert run.metrics["consensus_distance"].iloc[0] == 0
    assert 0 < run.metrics["consensus_distance"].iloc[-1] < 2
    assert ps.replay(run) == len(run.log)


def test_a_worker_is_dropped_by_the_answer_that_mixes_its_model():
    """Its neighbours take the mixture that it would have sent with its release."""
    parts = {"consistency": "neighbours", "communication": "mix_then_step", "placement": "gossip"}
    drops = {"name": "drop_stragglers", "factor": 2, "window": 2, "patience": 2, "most": 0.5}
    for aggregation in ("neighbour_average", "push_sum"):
        strategy = parts | {"aggregation": aggregation, "stragglers": drops}
        cluster = toy_cluster([1.0, 0.25, 0.9])
        experiment = toy_experiment(strategy, cluster=cluster, batch_size=12, stop={"epochs": 3})
        done = ps.run(experiment)
        assert len(done.log.of_kind(Kind.DROP)["worker"])
        assert ps.replay(done) == len(done.log)
        assert torch.isfinite(done.parameters).all()
        timed = ps.run(experiment.but(timing_only=True)).log
        assert timed.of_kind(Kind.MIX)["time_s"].tolist() == done.log.of_kind(Kind.MIX)["time_s"].tolist()


def test_running_statistics_of_d_psgd_move_as_those_of_plain_torch():
    """Each worker's by the share of its own model; they stayed where they had begun, in virtual time."""
    experiment = toy_experiment(
        made("d_psgd", "complete"),
        model=torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)),
        cluster=toy_cluster([1.0, 1.0, 1.0]),
        stop={"updates": 12},
    )
    trainer, norm = Workload.build(experiment).trainer(), torch.nn.BatchNorm1d(4, momentum=0.1 / 3)
    for _ in range(4):
        batches = [trainer.read(trainer.start(worker, 4)) for worker in range(3)]
        norm(torch.cat([batch.inputs for batch in batches]))
    found = ps.run(experiment).buffers[:4]
    assert norm.running_mean.norm() > 0.01
    torch.testing.assert_close(found, norm.running_mean, **ROUNDING)


def test_a_faulty_worker_mixes_its_own_model_as_it_has_computed_it():
    """It took what it had sent, as if it knew. Two of three workers take worker 1's model twofold."""

    def first_exchange(*corruptions):
        cluster = toy_cluster([1.0, 1.0, 1.0], corruptions=corruptions)
        return toy_experiment(made(graph="complete"), cluster=cluster, stop={"updates": 3})

    workload = Workload.build(first_exchange())
    trainer, model = workload.trainer(), workload.server()
    step = trainer.compute(trainer.read(trainer.start(1, 4)), model.parameters, model.buffers)
    stepped = model.parameters - 0.1 * step.gradient
    sound, faulty = (
        ps.run(first_exchange(*faults)).parameters
        for faults in ([], [{"worker": 1, "how": "scaled", "factor": 2.0}])
    )
    torch.testing.assert_close(faulty - sound, stepped * 2 / 9, **ROUNDING)


def test_an_exchange_takes_and_sends_a_model_for_each_edge():
    cluster = {"name": "homogeneous", "workers": 4, "bandwidth_mbit_s": 8, "latency_s": 0.5}
    for name, graph, degree in (("d_psgd_step_first", "ring", 2), ("d_psgd_step_first", "complete", 3)):
        _, run = trained(made(name, graph), cluster=cluster, stop={"updates": 8}, timing_only=True)
        model = run.meta["model_bytes"]
        summary = run.summary()
        assert summary["bytes"] == {"up": 8 * degree * model, "down": 0}
        steps = metrics.pushes(run.log)["compute_s"]
        # the second exchange is decided at the end of the second step, and not waited for
        travel = degree * model / 1e6 + 0.5
        assert 2 * steps.min() < summary["time_s"] - travel < 2 * steps.max()


def test_a_model_that_is_sent_first_travels_while_its_worker_computes():
    cluster = {"name": "homogeneous", "workers": 4, "bandwidth_mbit_s": 80, "seconds_per_sample": 0.01}
    times = {
        name: trained(name, cluster=cluster, stop={"updates": 80}, timing_only=True)[1].summary()["time_s"]
        for name in ("d_psgd", "d_psgd_step_first")
    }
    assert times["d_psgd"] < times["d_psgd_step_first"]


@pytest.mark.parametrize("name", ["d_psgd", "d_psgd_step_first"])
def test_a_process_that_sends_and_takes_in_models_computes_later(name):
    """A step of 1 s, and two models to send and two to take in, of .25 s each: one after another."""
    machines = {"workers": 4, "latency_s": 0.0, "bandwidth_mbit_s": 1e12, "peer_message_s": 0.25}
    steps = {"step_time": "constant", "seconds_per_step": 1.0, "seconds_per_sample": 1e-12}
    given = {"cluster": {**machines, **steps}, "timing_only": True, "stop": {"updates": 40}}
    log = ps.run(ps.Experiment(strategy=name, **given)).log.of_kind(Kind.PUSH)
    assert np.diff(log["time_s"][log["worker"] == 1]) == pytest.approx(1.0 + 4 * 0.25)


# -------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"consistency": "bsp"}, "use consistency 'neighbours'"),
        ({"consistency": "ssp"}, "use consistency 'neighbours'"),
        ({"aggregation": "mean"}, "use aggregation"),
        ({"aggregation": "pair_average"}, "'neighbour_average' or 'push_sum'"),
        ({"communication": "local_sgd"}, "use communication 'step_then_mix'"),
        ({"communication": {"name": "step_then_mix", "codec": "fp16"}}, "set both codecs to 'none'"),
        ({"placement": "parameter_server"}, "use placement 'gossip'"),
        ({"placement": {"name": "gossip", "servers": 2}}, "servers"),
        ({"placement": {"name": "gossip", "graph": "star"}}, "must be 'ring', 'torus'"),
    ],
)
def test_what_has_no_meaning_is_refused_with_what_has(change, word):
    parts = {
        "consistency": "neighbours",
        "aggregation": "neighbour_average",
        "communication": "step_then_mix",
        "placement": "gossip",
    }
    with pytest.raises(ps.errors.PsbenchError, match=word):
        Strategy(**parts | change)


def test_graphs_that_do_not_exist_are_refused_before_any_work():
    with pytest.raises(ps.errors.ParameterError, match="5 workers cannot form a torus"):
        ps.Experiment(strategy=made(graph="torus"), cluster={"workers": 5})
    with pytest.raises(ps.errors.ParameterError, match="no neighbour"):
        ps.Experiment(strategy=made(), cluster={"workers": 1})


def test_what_a_run_without_a_common_model_cannot_do_is_refused():
    for change, word in (
        ({"stop": {"tolerance": 0.1}}, "stop.tolerance: there is no common model"),
        (
            {"cluster": {"workers": 4, "corruptions": [{"worker": 1, "how": "nan"}]}},
            "use communication 'step_then_mix'",
        ),
    ):
        with pytest.raises(ps.errors.ParameterError, match=word):
            ps.Experiment(strategy="d_psgd", **change)
    with pytest.raises(ps.errors.ParameterError, match="so a switch has no model to hand over"):
        ps.strategies.strategy_switch(first="d_psgd", second="asp")


def test_reports_and_orders_may_take_time():
    """A step of 1 s and one of 4: whoever is met while it computes sends its model at the end of its step.

    With times, worker 0 begins at 0.5 s and its report comes at 2; at 2.5 both hear that they meet, at 4.5
    worker 1 is done and sends, at 5 worker 0 begins again. Without, both models are there 1 s after its step.
    Where a process takes .25 s for each message, worker 1 has sent at 4.75 and reports at 5, as it has taken
    in worker 0's; that one has its model at 5.5. It is met again by 6.5, the end of its step, and reports
    when it has sent and taken in models until 7.
    """
    links = {"name": "trace", "seconds": [[0.5]] * 4}
    for link_time, message_s, pushes in (
        (None, None, {0: [1.0, 3.0], 1: [4.0]}),
        (links, None, {0: [2.0, 6.5], 1: [5.0]}),
        (links, 0.25, {0: [2.0, 7.5], 1: [5.5]}),
    ):
        machines = {"workers": 2, "speed": [1.0, 0.25], "latency_s": 0.5, "bandwidth_mbit_s": 1e12}
        steps = {"step_time": "constant", "seconds_per_step": 1.0, "seconds_per_sample": 1e-12}
        more = {"link_time": link_time, "peer_message_s": message_s}
        given = {"cluster": {**machines, **steps, **more}, "timing_only": True}
        log = ps.run(ps.Experiment(strategy="ad_psgd", stop={"updates": 5}, **given)).log.of_kind(Kind.PUSH)
        for worker, times in pushes.items():
            own = log["time_s"][log["worker"] == worker][: len(times)]
            assert own == pytest.approx(times), (more, worker)


# -------------------------------------------------------------------- checkpoints


def first_checkpoint(run):
    return run.meta["checkpoints"][0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d_psgd", "sgp", "ad_psgd"])
def test_a_run_goes_on_from_a_checkpoint(name, tmp_path):
    experiment = ps.Experiment(
        **TINY | {"stop": {"epochs": 3}, "checkpoint_every": 1.0, "strategy": name},
        optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9},
    )
    whole = ps.run(experiment, folder=tmp_path / "run")
    resumed = ps.resume(first_checkpoint(whole), folder=tmp_path / "again")
    assert resumed.meta["status"] == "finished"
    assert ps.replay(resumed) == len(resumed.log)
    # steps under way were void, so that it is another run, of the same quality
    for value in ("val_loss", "consensus_distance"):
        one, other = (run.metrics[value].iloc[-1] for run in (whole, resumed))
        assert other == pytest.approx(one, rel=0.5)


def test_at_a_full_exchange_a_resumed_run_has_the_same_bits(tmp_path):
    links = {"peer_message_s": 1e-3, "peer_pause_s": 2e-3, "link_time": "constant", "racks": [0, 0, 1, 1]}
    experiment = ps.Experiment(
        **TINY | {"stop": {"epochs": 3}, "checkpoint_every": 1.0}, strategy=made(graph="complete")
    )
    cluster = experiment.cluster.model_dump() | links
    experiment = experiment.but(cluster=cluster)
    whole = ps.run(experiment, folder=tmp_path / "run")
    resumed = ps.resume(first_checkpoint(whole), folder=tmp_path / "again")
    assert resumed.log.digest() == whole.log.digest()
    assert resumed.log.columns()["time_s"].tolist() == whole.log.columns()["time_s"].tolist()
    torch.testing.assert_close(resumed.parameters, whole.parameters, rtol=0, atol=0)


@pytest.mark.slow
def test_a_worker_that_is_lost_and_one_that_comes(tmp_path):
    cluster = {"workers": 4, "failures": [{"worker": 1, "at_s": 0.3, "rejoin_s": 0.7}]}
    for name in ("d_psgd", "d_psgd_step_first", "sgp", "ad_psgd"):
        _, run = trained(name, cluster=cluster, stop={"epochs": 4})
        assert ps.replay(run) == len(run.log)
        assert run.metrics["val_accuracy"].iloc[-1] > 0.8


def test_a_run_with_a_server_has_nobody_who_had_to_hear():
    _, run = trained("asp", stop={"updates": 5})
    assert metrics.gradient_spread(run.log).empty


def test_a_fork_has_another_future_and_no_other_strategy():
    _, run = trained("d_psgd", stop={"epochs": 1})
    slow = ps.run(fork(run, Fork(0.2, worker=1, speed=0.3)))
    assert slow.summary()["time_s"] > run.summary()["time_s"]
    lost = ps.run(fork(run, Fork(0.2, worker=1, kill=True)))
    assert lost.meta["lost_workers"] == [1]
    with pytest.raises(ps.errors.ParameterError, match="so a switch has no model to hand over"):
        ps.run(fork(run, Fork(0.2, strategy="asp")))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ad_psgd", *at_night("d_psgd")])
def test_several_processes_compute_the_same_bits(name):
    one, other = (trained(name, processes=number, stop={"updates": 24})[1] for number in (1, 2))
    assert one.log.digest() == other.log.digest()
    torch.testing.assert_close(one.parameters, other.parameters, rtol=0, atol=0)
