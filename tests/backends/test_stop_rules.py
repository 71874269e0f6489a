"""The stop rules at their very bounds: a target that is met exactly, patience that is just used up."""

import math

import pytest

import psbench as ps
from psbench.backends.schedule import StopRules
from psbench.core.allowances import Allowances
from psbench.core.stop import Stop
from psbench.core.view import ClusterView, Status
from psbench.errors import ParameterError, UnknownName
from psbench.experiment import Experiment
from psbench.metrics import pushes
from psbench.strategies import CATALOGUE, make_strategy
from psbench.testing import toy_experiment


def rules(**stop):
    return StopRules(Stop(**stop), evaluate_every=1.0)


@pytest.mark.parametrize(("accuracy", "ends"), [(0.8999, False), (0.9, True), (0.91, True)])
def test_a_target_ends_the_run_when_it_is_reached(accuracy, ends):
    reason = rules(target_accuracy=0.9).after_evaluation({"val_accuracy": accuracy, "val_loss": 1.0})
    assert reason == ("validation accuracy reached 0.9" if ends else "")


@pytest.mark.parametrize(("now", "ends"), [(1.9, False), (2.0, True)])
def test_time_ends_the_run_when_it_has_passed(now, ends):
    assert bool(rules(seconds=2).at(now)) == ends


def test_a_loss_that_is_as_good_as_the_best_is_no_improvement():
    """Whose patience is two bears the best loss twice more, and a better one renews it."""
    seen = rules(patience=2)
    losses = [1.0, 1.0, 0.5, 0.5, 0.5]
    reasons = [seen.after_evaluation({"val_accuracy": 0.1, "val_loss": loss}) for loss in losses]
    assert reasons == [*[""] * 4, "validation loss has not improved for 2 evaluations"]


def test_patience_with_a_metric_goes_by_the_way_that_is_better():
    """A metric that rises is patient with a fall, and the loss is not asked."""
    f1 = {"function": lambda output, y: 0.5, "better": "higher"}
    mine = Experiment(metrics={"f1": f1}, stop={"patience": 2, "patience_metric": "f1"})
    assert not mine.patience_is_for_less
    seen = StopRules(mine.stop, 1.0, mine.patience_is_for_less)
    pairs = ((0.5, 1), (0.4, 2), (0.6, 3), (0.6, 2), (0.5, 1))
    values = [{"val_f1": value, "val_loss": loss} for value, loss in pairs]
    reasons = [seen.after_evaluation(each) for each in values]
    assert reasons == [*[""] * 4, "f1 has not improved for 2 evaluations"]
    with pytest.raises(ParameterError, match="is a large 'f1' good or bad"):
        mine.but(metrics={"f1": f1["function"]})
    with pytest.raises(UnknownName, match="did you mean 'f1'"):
        mine.but(stop={"patience": 2, "patience_metric": "f2"})
    with pytest.raises(ParameterError, match="also set patience"):
        Stop(epochs=2, patience_metric="f1")


@pytest.mark.parametrize(("every", "next_epoch"), [(1.0, 4.0), (0.5, 4.0), (2.0, 4.0), (1.5, 4.5)])
def test_evaluations_go_on_at_another_interval(every, next_epoch):
    """Three evaluations at every epoch, and then at epoch 3.5 another interval: the next multiple of it."""
    first, again = rules(epochs=9), StopRules(Stop(epochs=9), evaluate_every=every)
    seen = ClusterView(num_workers=1, dataset_size=100, global_batch=1, samples=300)
    assert first.evaluation_due(seen) == 3
    again.load_state_dict(first.state_dict(), 3.5)
    assert again.next_epoch == pytest.approx(next_epoch)


def test_patience_that_is_partly_used_up_is_part_of_the_state():
    first, again = rules(patience=2), rules(patience=2)
    for loss in (1.0, 1.5):
        assert first.after_evaluation({"val_accuracy": 0.1, "val_loss": loss}) == ""
    again.load_state_dict(first.state_dict(), epoch=2.0)
    assert again.after_evaluation({"val_accuracy": 0.1, "val_loss": 1.2})


def spent(strategy, epochs=4.0, workers=4, **changes):
    """Return the samples trained on, those of the budget, and the run, of workers with batches of 8."""
    made = Experiment(
        strategy=strategy,
        cluster={"workers": workers, "step_time": "constant"},
        data={"name": "mixture", "num_samples": 1000},
        batch_size=8 * workers,
        stop={"epochs": epochs},
        **changes,
    )
    done = ps.run(made)
    assert done.meta["reason"] == f"{epochs:g} epochs are done"
    size = done.meta["dataset_size"]
    return round(done.summary()["epochs"] * size), epochs * size, done


def rounds_are_own(name):
    return any(each.decides_own_rounds for each in make_strategy(name).compositions)


@pytest.mark.by_day(7)
@pytest.mark.parametrize("name", sorted(filter(rounds_are_own, CATALOGUE)))
def test_no_strategy_exceeds_its_epochs_by_more_than_5_percent(name):
    """Each worker's last mini-batch may reach beyond the budget; without a barrier its last push may."""
    samples, budget, _ = spent(name, epochs=4.2)
    assert budget <= samples <= 1.05 * budget


LONG = 100_000  # steps between two pushes


@pytest.mark.parametrize(
    "name", ["local_sgd", "diloco", "streaming_diloco", "eager_diloco", "decoupled_diloco"]
)
def test_a_period_longer_than_the_run_ends_with_it(name):
    """Equal workers take an equal share of the samples each, rounded up to whole steps."""
    samples, budget, done = spent({"name": name, "local_steps": LONG})
    assert pushes(done.log)["steps"].max() == math.ceil(budget / 4 / 8)
    assert samples < budget + 4 * 8


@pytest.mark.parametrize("name", ["async_local_sgd", "fedbuff", "easgd", "halos"])
def test_a_long_period_without_a_barrier_ends_with_the_run_too(name):
    """Whose share is used up takes single steps while the others finish theirs."""
    samples, budget, done = spent({"name": name, "local_steps": LONG})
    assert pushes(done.log)["steps"].max() == math.ceil(budget / 4 / 8)
    assert samples < budget + budget / 4


@pytest.mark.parametrize("name", ["local_sgd", "decoupled_diloco", "async_local_sgd", "halos", "fedbuff"])
def test_what_is_expected_of_workers_is_what_a_count_of_all_gives(name, monkeypatch):
    given, gives = [], Allowances.give

    def counted(self, worker):
        view, left, idle = self._view, 0, 1
        for other in view.workers.values():
            if other is worker or other.status is Status.GONE:
                continue
            if other.status is Status.COMPUTING and other.allowance >= 0:
                left -= min(other.allowance, other.pushed_samples or other.allowance)
            else:
                idle += 1
        left += view.epochs * view.dataset_size - view.samples
        left -= sum(push.samples for push in view.pending.values())
        given.append((gives(self, worker), max(0, math.ceil(left / idle - 1e-6))))
        return worker.allowance

    monkeypatch.setattr(Allowances, "give", counted)
    failure = {"worker": 1, "at_s": 0.05, "rejoin_s": 0.2}
    cluster = {"name": "custom", "workers": 3, "speed": [1, 0.5, 0.25], "failures": [failure]}
    ps.run(toy_experiment(name, cluster=cluster, stop={"epochs": 3}))
    assert len(given) > 8
    assert all(ours == theirs for ours, theirs in given)


def test_without_a_number_of_epochs_a_period_is_as_long_as_it_says():
    done = ps.run(Experiment(strategy={"name": "local_sgd", "local_steps": 30}, stop={"updates": 2}))
    assert set(pushes(done.log)["steps"]) == {30}
