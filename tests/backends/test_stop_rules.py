"""The stop rules at their very bounds: a target that is met exactly, patience that is just used up."""

import pytest

from psbench.backends.schedule import StopRules
from psbench.core.stop import Stop
from psbench.errors import ParameterError, UnknownName
from psbench.experiment import Experiment


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
    with pytest.raises(ParameterError, match="Give patience too"):
        Stop(epochs=2, patience_metric="f1")


def test_patience_that_is_partly_used_up_is_part_of_the_state():
    first, again = rules(patience=2), rules(patience=2)
    for loss in (1.0, 1.5):
        assert first.after_evaluation({"val_accuracy": 0.1, "val_loss": loss}) == ""
    again.load_state_dict(first.state_dict(), epoch=2.0)
    assert again.after_evaluation({"val_accuracy": 0.1, "val_loss": 1.2})
