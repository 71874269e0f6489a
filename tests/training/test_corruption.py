"""Workers that push what is wrong: what each fault sends, and what each aggregation makes of it."""

import pytest
import torch
from threaded_run import ThreadedRun

import psbench as ps
from psbench.clusters import Corruption, make_cluster
from psbench.clusters.generic import Custom
from psbench.errors import ParameterError, PsbenchError
from psbench.seeds import Streams
from psbench.testing import toy_experiment
from psbench.training.corruption import Corruptions

VECTOR = torch.tensor([3.0, -4.0])


def sent(ticket=1, worker=0, seed=0, **values):
    profile = Custom(workers=2, corruptions=[Corruption(worker=0, **values)]).profile()
    return Corruptions(profile, Streams(seed)).of(worker, ticket, VECTOR)


def test_each_fault_sends_what_it_says():
    assert sent(how="sign_flipped", factor=2.0).tolist() == [-6.0, 8.0]
    assert sent(how="scaled", factor=100.0).tolist() == [300.0, -400.0]
    assert sent(how="nan").isnan().all()
    noise = sent(how="noise")
    assert noise.isfinite().all()
    assert not noise.equal(VECTOR)


def test_noise_depends_on_seed_and_push_alone():
    assert sent(how="noise").equal(sent(how="noise"))
    others = (sent(how="noise", ticket=2), sent(how="noise", seed=1))
    assert not any(sent(how="noise").equal(other) for other in others)


def test_others_and_earlier_pushes_are_sound():
    assert sent(how="nan", worker=1) is VECTOR
    assert sent(how="nan", after=3, ticket=3) is VECTOR
    assert sent(how="nan", after=3, ticket=4).isnan().all()


def test_a_stale_worker_sends_what_it_computed_so_many_pushes_before():
    profile = Custom(workers=2, corruptions=[{"worker": 0, "how": "stale", "age": 2, "after": 3}]).profile()
    faults = Corruptions(profile, Streams(0))
    computed = [torch.tensor([float(n)]) for n in range(6)]
    found = [faults.of(0, ticket, vector).item() for ticket, vector in enumerate(computed, 1)]
    assert found == [0, 1, 2, 1, 2, 3]
    again = Corruptions(profile, Streams(0))
    again.load({name: vector.clone() for name, vector in faults.tensors(0).items()})
    assert not faults.tensors(1)
    for each in (faults, again):
        assert [each.of(0, 7, torch.ones(1), fragment).item() for fragment in (-1, 0)] == [4, 1]
    assert again.tensors(0).keys() == faults.tensors(0).keys()
    faults.forget()
    assert faults.of(0, 9, VECTOR).equal(VECTOR)


@pytest.mark.parametrize("strategy", ["bsp", "local_sgd"])
def test_a_stale_worker_is_the_same_live_and_after_a_resume(strategy, tmp_path):
    stale = {"corruptions": [{"worker": 1, "how": "stale", "age": 2}], "step_time": "constant"}
    settings = {"cluster": {"workers": 2} | stale, "batch_size": 8, "checkpoint_every": 0.1}
    whole = toy_experiment(strategy, stop={"updates": 6}, **settings)
    done = ps.run(whole)
    sound = ps.run(whole.but(cluster={"workers": 2, "step_time": "constant"}))
    assert not torch.equal(done.parameters, sound.parameters)
    ps.run(whole.but(stop={"updates": 4}), folder=tmp_path)
    assert torch.equal(ps.resume(tmp_path, {"stop": {"updates": 6}}).parameters, done.parameters)
    live = ThreadedRun(whole).run()
    assert live.error is None
    assert torch.equal(live.parameters, done.parameters)
    saved = live.stored[live.checkpoints[-1]].tensors
    assert {f"worker/1/past/1/0/-1/{place}" for place in range(3)} <= saved.keys()


def test_a_fault_leaves_the_residual_of_an_exchange_alone():
    scaled = {"corruptions": [{"worker": 1, "how": "scaled", "factor": 2.0, "after": 2}]}
    experiment = toy_experiment(
        {"name": "power_sgd", "start_iter": 0, "rank": 1},
        cluster={"workers": 2, "step_time": "constant"} | scaled,
        batch_size=8,
        model=torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)),
        stop={"updates": 6},
    )
    live = ThreadedRun(experiment).run()
    assert live.error is None
    assert torch.allclose(live.parameters, ps.run(experiment).parameters, atol=1e-6)


def test_a_specification_keeps_them_and_one_without_looks_as_before():
    made = Custom(workers=3, corruptions=[{"worker": 1, "how": "noise", "factor": 2.0}])
    assert make_cluster(made.model_dump(mode="json")) == made
    assert "corruptions" not in Custom(workers=3).model_dump()


def test_a_fault_of_nobody_is_refused():
    with pytest.raises(ParameterError, match="corruption of worker 5, but the workers are 0 to 2"):
        Custom(workers=3, corruptions=[{"worker": 5, "how": "nan"}])
    with pytest.raises(PsbenchError, match="sign_flipped"):
        Corruption(worker=0, how="sign_fliped")


def accuracy(aggregation, how, factor):
    experiment = ps.Experiment(
        strategy={"consistency": "bsp", "aggregation": aggregation},
        cluster={"workers": 5, "corruptions": [{"worker": 2, "how": how, "factor": factor}]},
        data="digits",
        optimizer={"name": "sgd", "lr": 0.1},
        batch_size=100,
        stop={"epochs": 4},
    )
    run = ps.run(experiment)
    return run.frame()["val_accuracy"].iloc[-1] if run.summary()["status"] == "finished" else 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "factor", "robust"),
    [
        ("sign_flipped", 20.0, ("median", {"name": "krum", "faulty": 1})),
        ("noise", 1000.0, ("trimmed_mean", "geometric_median")),
    ],
)
def test_a_mean_is_led_astray_and_robust_aggregations_are_not(how, factor, robust):
    assert all(accuracy(each, how, factor) > 0.6 for each in robust)
    assert accuracy("mean", how, factor) < 0.4


@pytest.mark.parametrize("strategy", ["bsp", "local_sgd"])
def test_workers_of_every_kind_are_corrupted(strategy):
    sound = ps.Experiment(strategy=strategy, cluster={"workers": 2}, stop={"updates": 2})
    wrong = sound.but(cluster={"workers": 2, "corruptions": [{"worker": 1, "how": "nan"}]})
    assert ps.run(sound).summary()["status"] == "finished"
    assert ps.run(wrong).summary()["status"] == "diverged"


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "krum", "geometric_median", "clipped_mean"])
def test_robust_aggregations_do_without_pushes_of_nan(name):
    experiment = ps.Experiment(
        strategy={"consistency": "bsp", "aggregation": name},
        cluster={"workers": 5, "corruptions": [{"worker": 1, "how": "nan"}]},
        stop={"updates": 3},
    )
    run = ps.run(experiment)
    assert run.summary()["status"] == "finished"
    assert all(parameter.isfinite().all() for parameter in run.model().parameters())
