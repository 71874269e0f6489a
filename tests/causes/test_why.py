"""Attribution: recorded schedules give the recorded bits, causes give the other run's, shares add up."""

import html
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from planted_causes import KINDS, NONE, plant, unlisted
from planted_causes import PLANTS as PLANTED
from toybox import at_night

import psbench as ps
from psbench.causes import (
    Amount,
    CannotAsk,
    Cause,
    Codec,
    Momentum,
    Rate,
    Samples,
    Schedule,
    Staleness,
    check_cause,
    recompute,
    why,
)
from psbench.causes.shares import shares_of
from psbench.core.log import Kind
from psbench.errors import Cancelled, ParameterError, UnknownName
from psbench.training.build import Workload

UNEQUAL = {"name": "custom", "workers": 4, "speed": [0.25, 0.5, 1, 2]}


def experiment(strategy="asp", **changes):
    return ps.Experiment(
        **{
            "data": "digits",
            "model": {"name": "mlp", "hidden": [8]},
            "cluster": {"name": "homogeneous", "workers": 4},
            "strategy": strategy,
            "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
            "batch_size": 64,
            "stop": {"epochs": 1},
            "processes": 1,
        }
        | changes
    )


def sgd(lr, **more):
    return {"name": "sgd", "lr": lr, **more}


def schedule(strategy="asp", **changes):
    return Schedule.of(ps.run(experiment(strategy, **changes)))


# ---------------------------------------------------------------- nothing replaced is the run, bit for bit


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    "strategy",
    [
        *("asp", "bsp", "dc_asgd", "async_local_sgd", "diloco", {"name": "asp", "codec": "top_k"}),
        *at_night(
            *("k_asp", "k_bsp", "all_reduce", "dssp", "backup_workers", "dyn_sgd", "local_sgd", "easgd"),
            {"name": "ssp", "staleness_bound": 2},
            {"name": "bsp", "codec": "qsgd"},
            {"name": "asp", "servers": 2},
        ),
    ],
    ids=json.dumps,
)
def test_with_nothing_replaced_a_schedule_gives_the_run(strategy):
    for cluster in ({"name": "homogeneous", "workers": 4}, UNEQUAL):
        run = ps.run(experiment(strategy, cluster=cluster))
        again = recompute(Schedule.of(run))
        assert torch.equal(again.parameters, run.parameters)
        assert again.log.digest() == run.log.digest()  # losses and evaluations are in it


def test_workers_that_fail_send_noise_or_anneal_change_nothing_of_that():
    failing = {"workers": 3, "failures": [{"worker": 1, "at_s": 0.02, "rejoin_s": 0.05}]}
    noisy = {"workers": 3, "corruptions": [{"worker": 0, "how": "noise", "after": 3}]}
    for changes in (
        {"cluster": failing},
        {"cluster": noisy},
        {"optimizer": sgd(0.1, momentum=0.5, nesterov=True, weight_decay=1e-3, milestones=[0.5])},
    ):
        run = ps.run(experiment(**changes))
        assert torch.equal(recompute(Schedule.of(run)).parameters, run.parameters)


@pytest.mark.nightly
@pytest.mark.dask
def test_a_live_run_is_recomputed_to_the_bit():
    run = ps.run(experiment(cluster={"name": "homogeneous", "workers": 2}, backend="dask"))
    assert torch.equal(recompute(Schedule.of(run)).parameters, run.parameters)


# ---------------------------------------------------------------- what is replaced is what the other run has


def replaced(a, b, *causes):
    return recompute(a, [cause(a, b) for cause in causes])


def test_data_codec_and_amount_of_the_other_run_give_its_bits():
    bsp = schedule("bsp")
    skewed = schedule("bsp", sharding={"name": "dirichlet", "alpha": 0.1})
    assert torch.equal(replaced(bsp, skewed, Samples).parameters, skewed.run.parameters)
    encoded = schedule({"name": "bsp", "codec": "top_k"})
    assert torch.equal(replaced(encoded, bsp, Codec).parameters, bsp.run.parameters)
    assert torch.equal(replaced(bsp, encoded, Codec).parameters, encoded.run.parameters)
    longer = schedule("bsp", stop={"epochs": 2})
    cut = replaced(longer, bsp, Amount)
    assert torch.equal(cut.parameters, bsp.run.parameters)
    assert cut.log.evaluations()[-1]["val_loss"] == bsp.run.log.evaluations()[-1]["val_loss"]


def test_rate_and_momentum_of_the_other_run_give_its_model():
    slow, fast = (schedule("bsp", optimizer=sgd(lr)) for lr in (0.02, 0.1))
    assert torch.allclose(replaced(slow, fast, Rate).parameters, fast.run.parameters, atol=1e-5)
    plain = schedule("bsp", optimizer=sgd(0.05))
    heavy = schedule("bsp", optimizer=sgd(0.02, momentum=0.9, nesterov=True, weight_decay=0.01))
    both = replaced(plain, heavy, Rate, Momentum)
    assert torch.allclose(both.parameters, heavy.run.parameters, atol=1e-5)
    assert not torch.allclose(replaced(plain, heavy, Momentum).parameters, heavy.run.parameters, atol=1e-2)


def test_fresh_gradients_are_those_of_plain_sgd_in_the_order_of_the_log():
    asp, bsp = schedule(optimizer=sgd(0.1)), schedule("bsp", optimizer=sgd(0.1))
    found = replaced(asp, bsp, Staleness)
    workload = Workload.build(asp.run.experiment)
    drawn, model, data = workload.trainer(), workload.model, workload.data
    parameters = workload.parameters
    for worker in asp.run.log.of_kind(Kind.APPLY)["worker"]:
        batch = torch.from_numpy(drawn.start(int(worker), 16).indices)
        model.load(parameters, workload.buffers)
        model.module.zero_grad()
        loss = torch.nn.functional.cross_entropy(model.module(data.train_x[batch]), data.train_y[batch])
        gradients = torch.autograd.grad(loss, list(model.module.parameters()))
        parameters = parameters - 0.1 / 4 * torch.cat([each.flatten() for each in gradients])
    assert torch.allclose(found.parameters, parameters, atol=1e-5)
    assert not torch.allclose(asp.run.parameters, parameters, atol=1e-3)


class Fresh(Staleness):
    name = "fresh"

    def age(self, samples, recorded):
        return 0


def test_under_a_barrier_gradients_are_fresh():
    for strategy in ("bsp", "k_bsp", "all_reduce"):
        run = schedule(strategy)
        assert not Fresh(run, run).differs()
        assert torch.equal(replaced(run, run, Fresh).parameters, run.run.parameters)
    asp = schedule()
    assert Fresh(asp, asp).differs()


def test_a_gradient_may_be_made_older_by_samples():
    """The age of every gradient of a run without staleness: as old as a worker's update is behind in ASP."""

    class Old(Staleness):
        name = "old"

        def age(self, samples, recorded):
            return min(48, samples)

    one = schedule("bsp", cluster={"name": "homogeneous", "workers": 1}, batch_size=16, optimizer=sgd(0.1))
    four = schedule(
        cluster={"name": "homogeneous", "workers": 4, "step_time": "constant"}, optimizer=sgd(0.1)
    )
    assert {four.age_at(at) for at in range(480, 640, 16)} == {48}  # n - 1 = 3 updates of 16 samples
    assert recompute(one, [Old(one, one)]).log.digest() != one.run.log.digest()


# ---------------------------------------------------------------- shares

EFFECTS = {"a": 0.5, "b": 0.25, "c": -0.125, "d": 1.0, "e": 2.0}


@pytest.mark.parametrize("names", ["a", "ab", "abcd", "abcde"])
def test_independent_causes_have_their_effects_as_shares(names):
    found = shares_of(list(names), lambda some: 8 - sum(EFFECTS[each] for each in some), other=1.0)
    expected = {name: EFFECTS[name] for name in names}
    assert found.shares == expected == found.first == found.last
    assert found.rest == 7 - sum(expected.values())
    assert set(found.joint.values()) <= {0.0}


def test_two_causes_that_need_each_other_and_two_of_which_one_is_enough():
    both = shares_of(["a", "b"], lambda some: float(len(some) < 2), other=0.0)
    assert both.shares == {"a": 0.5, "b": 0.5}
    assert (both.first["a"], both.last["a"], both.joint["a", "b"]) == (0.0, 1.0, 1.0)
    either = shares_of(["a", "b"], lambda some: float(not some), other=0.0)
    assert (either.first["a"], either.last["a"], either.joint["a", "b"]) == (1.0, 0.0, -1.0)


def test_drawn_orders_add_up_too():
    rng = np.random.default_rng(0)
    values: dict = {}
    found = shares_of(list("abcdef"), lambda some: values.setdefault(some, float(rng.normal())), other=0.25)
    assert sum(found.shares.values()) + found.rest == pytest.approx(found.gap, abs=1e-12)
    assert len(values) < 2**6  # fewer than all combinations


# ---------------------------------------------------------------- answers

#: what the runs differ in, and the two
PLANTS = {
    "rate": ("bsp", {"optimizer": sgd(0.02)}, {"optimizer": sgd(0.1)}),
    "samples": ("bsp", {"sharding": {"name": "dirichlet", "alpha": 0.1}}, {}),
    "momentum": ("bsp", {"optimizer": sgd(0.05, momentum=0.9)}, {"optimizer": sgd(0.5)}),
    "codec": ("asp", {"strategy": {"name": "asp", "codec": {"name": "top_k", "ratio": 0.02}}}, {}),
    "amount": ("asp", {"stop": {"epochs": 0.5}}, {"stop": {"epochs": 1.5}}),
}


@pytest.mark.by_day(2)
@pytest.mark.parametrize("plant", PLANTS)
def test_what_was_changed_is_found_and_the_rest_of_one_schedule_is_zero(plant):
    strategy, *changes = PLANTS[plant]
    pair = [experiment(**{"strategy": strategy} | each) for each in changes]
    answer = why(*pair, seeds=2, processes=1, progress=False)
    assert answer.causes == [plant]
    assert plant in answer.sentence
    for pair in answer.pairs:
        assert pair.shares.rest == pytest.approx(0.0, abs=1e-5)
        assert pair.shares.shares[plant] == pytest.approx(pair.shares.gap, abs=1e-5)
    assert answer.frame()["cause"].tolist() == ["not explained by these causes", plant]
    (waterfall,) = answer.chart().to_dict()["vconcat"]
    x = waterfall["layer"][0]["encoding"]["x"]
    assert (x["title"], x["axis"]["tickCount"]) == ("validation loss", 6)


def test_a_run_against_itself_differs_in_nothing():
    answer = why(experiment(), experiment(), seeds=1, progress=False)
    assert (answer.gap, answer.rest, answer.causes) == (0.0, 0.0, [])
    assert "none of the tested causes" in answer.sentence


def test_what_no_cause_explains_comes_first_and_no_waterfall_is_drawn():
    """Workers that fail: a schedule of its own, which is none of the causes."""
    lost = {"workers": 4, "failures": [{"worker": w, "at_s": 0.0} for w in range(3)]}
    skewed = {"sharding": {"name": "dirichlet", "alpha": 0.05}, "optimizer": sgd(0.05)}
    answer = why(
        experiment("asp", cluster=lost, **skewed),
        experiment("asp", **skewed),
        ["staleness"],
        seeds=1,
        progress=False,
    )
    assert abs(answer.rest) > max(abs(each) for each in answer.pairs[0].shares.shares.values())
    assert not answer.explains
    assert answer.sentence.index("do not explain") < answer.sentence.index("Another draw")
    with pytest.raises(ValueError, match="no waterfall"):
        answer.chart()


def test_every_run_behind_an_answer_opens_like_any_run(tmp_path):
    answer = why(experiment(), experiment("bsp"), ["staleness"], seeds=1, progress=False)
    run = answer.run("staleness")
    again = ps.Run.load(run.save(tmp_path / "run"))
    assert torch.equal(again.parameters, run.parameters)
    assert "staleness" in again.meta["reason"]
    assert ps.replay(again) == len(again.log)
    json.dumps(answer.to_dict(), allow_nan=False)


def test_all_runs_are_saved_with_a_report_that_begins_with_the_answer(tmp_path):
    answer = why(experiment(), experiment("bsp"), ["staleness"], seeds=1, progress=False)
    folders = answer.save(tmp_path)
    names = [name for name, _ in answer.computed()]
    assert names == ["asp, seed 0", "asp, staleness of bsp, seed 0", "bsp, seed 0"]
    for folder, (_, run) in zip(folders, answer.computed(), strict=True):
        assert torch.equal(ps.Run.load(folder).parameters, run.parameters)
    page = answer.report(tmp_path / "why.html").read_text()
    assert page.index(answer.question) < page.index("<h2>Results")
    assert answer.sentence in html.unescape(page)
    assert all(name in page for name in names)
    assert answer.question == f"Why is asp {'worse' if answer.gap > 0 else 'better'} than bsp?"


def test_runs_of_one_title_are_called_by_their_differences():
    pair = [experiment(optimizer=sgd(lr), stop={"updates": 8}) for lr in (0.02, 0.1)]
    answer = why(*pair, ["rate"], seeds=1, progress=False)
    assert "0.02" in answer.name
    assert "0.1" in answer.against


@pytest.mark.parametrize("processes", [1, *at_night(2)])
def test_progress_counts_the_runs_of_all_seeds_and_may_stop_them(processes):
    seen = []
    pair = [[ps.run(experiment(name, seed=seed)) for seed in (0, 1)] for name in ("asp", "bsp")]
    why(*pair, ["staleness"], processes=processes, progress=seen.append)
    assert (seen[-1].done, seen[-1].total, seen[-1].fraction) == (6, 6, 1.0)  # of each seed two and a placebo
    assert [each.fraction for each in seen] == sorted(each.fraction for each in seen)

    def stop(progress):
        if progress.done:
            raise Cancelled("enough")

    with pytest.raises(Cancelled, match="enough"):
        why(*pair, ["staleness"], processes=processes, progress=stop)


@pytest.mark.nightly
def test_an_error_of_a_cause_in_another_process_is_raised():
    with pytest.raises(ZeroDivisionError):
        why(experiment(), experiment("bsp"), [Divides], seeds=2, processes=2, progress=False)


@pytest.mark.nightly
def test_one_seed_is_said_to_be_no_answer_and_more_are_run_in_processes():
    one = why(experiment(), experiment("bsp"), ["staleness"], seeds=1, progress=False)
    assert "One seed is not enough" in one.sentence
    two = why(experiment(), experiment("bsp"), ["staleness"], seeds=2, processes=2, progress=False)
    assert two.pairs[0].shares == one.pairs[0].shares
    assert two.noise is not None
    assert [pair.seed for pair in two.pairs] == [0, 1]


@pytest.mark.nightly
def test_a_script_without_a_guard_may_ask_in_processes(tmp_path):
    script = tmp_path / "ask.py"
    script.write_text(
        "import psbench as ps\n"
        "asp = ps.Experiment(strategy='asp', cluster={'workers': 2}, stop={'updates': 4})\n"
        "answer = ps.why(asp, asp.but(strategy='bsp'), seeds=2, processes=2, progress=False)\n"
        "print(len(answer.pairs))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"


class Divides(Cause):
    name = "divides"

    def factor(self, update):
        return 1 / 0


# ---------------------------------------------------------------- planted causes


@pytest.mark.by_day(2)
@pytest.mark.parametrize("kind", [*KINDS, NONE])
def test_a_planted_cause_comes_first(kind):
    """Beside weak causes and another schedule; `python -m tests.planted_causes` tries twenty of each kind."""
    found = unlisted(0) if kind == NONE else plant(kind, 0)
    assert found.comes_first(found.answer(seeds=1))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [*KINDS, NONE])
def test_nineteen_of_twenty_planted_causes_come_first(kind):
    found = [unlisted(number) if kind == NONE else plant(kind, number) for number in range(PLANTED)]
    assert sum(each.comes_first(each.answer()) for each in found) >= 19


# ---------------------------------------------------------------- causes of one's own


@pytest.mark.parametrize("cause", [Staleness, Amount, *at_night(Rate, Momentum, Samples, Codec)])
def test_each_cause_passes_its_checks(cause):
    assert check_cause(cause)


class Counts(Cause):
    """Wrong: what it replaces depends on how often it is asked."""

    name = "counts"
    asked = 0

    def factor(self, update):
        type(self).asked += 1
        return 1.0 + 1e-3 * (type(self).asked % 7)


class Off(Cause):
    """Wrong: switched off rather than taken from the other run."""

    name = "off"

    def factor(self, update):
        return 0.5


class Denies(Rate):
    """Wrong: says that it replaces nothing."""

    name = "denies"

    def differs(self):
        return False


@pytest.mark.parametrize("cause", [Counts, Off, Denies, Cause])
def test_check_cause_finds_what_is_wrong(cause):
    with pytest.raises(AssertionError, match=cause.name or "no name"):
        check_cause(cause)


# ---------------------------------------------------------------- what cannot be asked


@pytest.mark.parametrize(
    ("mine", "other", "changes", "words"),
    [
        ({"strategy": "d_psgd"}, {}, {}, "without a server"),
        ({"strategy": "sync_switch"}, {}, {}, "switches strategies"),
        ({"timing_only": True}, {"timing_only": True}, {}, "no gradients"),
        ({"strategy": "selsync"}, {}, {}, "vote"),
        ({}, {"seed": 1}, {}, "seeds 0 and 1"),
        ({}, {"model": {"name": "mlp", "hidden": [9]}}, {}, "different model"),
        ({"optimizer": "adam"}, {"optimizer": "adam"}, {"causes": ["rate"]}, "only sgd"),
        ({"strategy": "local_sgd"}, {}, {"causes": ["staleness"]}, "local steps"),
        ({}, {"cluster": {"name": "homogeneous", "workers": 2}}, {"causes": ["samples"]}, "4 and 2 workers"),
        ({}, {}, {"value": "val_f1"}, "val_accuracy"),
        ({"backend": "dask"}, {}, {}, "list"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_reason(mine, other, changes, words):
    with pytest.raises(CannotAsk, match=words):
        why(experiment(**mine), experiment(**other), progress=False, **{"seeds": 2, "processes": 1} | changes)


def test_wrong_arguments_are_refused_before_a_run_is_made(monkeypatch):
    monkeypatch.setattr("psbench.causes.asking.run_cells", lambda *_, **__: pytest.fail("a run was made"))
    pair = experiment(), experiment("bsp")
    with pytest.raises(CannotAsk, match="no 'val_los' in its last evaluation; it has val_loss"):
        why(*pair, value="val_los")
    with pytest.raises(UnknownName, match="did you mean 'staleness'"):
        why(*pair, ["stalenes"])
    with pytest.raises(ParameterError, match="both replace `age`"):
        why(*pair, [Staleness, Fresh])
    with pytest.raises(ParameterError, match="seeds"):
        why(*pair, seeds=0)
    with pytest.raises(ParameterError, match="expected a run"):
        why(3, pair[0])


def test_a_cause_that_cannot_be_asked_is_left_out_and_listed():
    answer = why(experiment(optimizer="adam"), experiment("bsp", optimizer="adam"), seeds=1, progress=False)
    assert {"rate", "momentum"} <= answer.refused.keys()
    assert "not tested: rate" in answer.text(100)
