"""The stop rules at their very bounds: a target that is met exactly, patience that is just used up."""

import pytest

from psbench.backends.schedule import StopRules
from psbench.core.stop import Stop


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


def test_patience_that_is_partly_used_up_is_part_of_the_state():
    first, again = rules(patience=2), rules(patience=2)
    for loss in (1.0, 1.5):
        assert first.after_evaluation({"val_accuracy": 0.1, "val_loss": loss}) == ""
    again.load_state_dict(first.state_dict(), epoch=2.0)
    assert again.after_evaluation({"val_accuracy": 0.1, "val_loss": 1.2})
