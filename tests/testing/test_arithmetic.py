"""What `check_strategy` says of arithmetic that is wrong, in one line that names the method."""

from typing import ClassVar

import pytest
from pydantic import PrivateAttr
from strategies.aggregation import own_arithmetic
from strategies.aggregation.own_arithmetic import OWN, DiLoCo, ElasticSteps, Median
from toybox import put_in, take_out

from psbench.core.actions import Apply, Release
from psbench.strategies import CATALOGUE, make_strategy
from psbench.strategies.aggregation import PowerSGD
from psbench.testing import BrokenContract, check_strategy
from psbench.testing.arithmetic import check_half, check_update
from psbench.testing.contract import _played


class Rebinds(Median):
    name = "faulty_rebinds"

    def update(self, x, pushes, state, step):
        x = x - step.sum(pushes)


class AddsUp(Median):
    name = "faulty_adds_up"

    def update(self, x, pushes, state, step):
        direction = step.sum(pushes)
        x.sub_(direction / (1.0 + direction.norm()))


class Remembers(Median):
    name = "faulty_remembers"
    before: ClassVar[dict] = {}

    def update(self, x, pushes, state, step):
        self.before["count"] = self.before.get("count", 0) + 1
        x.sub_(step.sum(pushes), alpha=1.0 / self.before["count"])


class Private(Median):
    name = "faulty_private"
    _count: int = PrivateAttr(0)

    def update(self, x, pushes, state, step):
        self._count += 1
        step.move(step.sum(pushes) / self._count)


class InPlace(Median):
    name = "faulty_in_place"

    def update(self, x, pushes, state, step):
        x.sub_(pushes[0].vector.mul_(2.0))


class Divides(Median):
    name = "faulty_divides"

    def update(self, x, pushes, state, step):
        direction = step.sum(pushes)
        x.sub_(direction / direction.abs())


class SaysLinear(Median):
    name = "faulty_says_linear"
    linear = True

    def update(self, x, pushes, state, step):
        step.move(step.stack(pushes).median(dim=0).values)


class Misspelt(DiLoCo):
    name = "faulty_misspelt"

    def update(self, x, pushes, state, step):
        x.sub_(step.sum(pushes), alpha=step.numbers["ruond"])


class Silent(Median):
    name = "faulty_silent"
    payload = "parameters"
    reply = "answer"

    def update(self, x, pushes, state, step):
        x.copy_(step.sum(pushes))


class Short(Median):
    name = "faulty_short"

    def update(self, x, pushes, state, step):
        state["half"] = x[:3]


class ChangesModel(ElasticSteps):
    name = "faulty_changes_model"

    def begin(self, w, model, state, own):
        w.copy_(model.mul_(2.0))


class Lends(ElasticSteps):
    name = "faulty_lends"

    def payload(self, w, state, own):
        return w


class Counts(ElasticSteps):
    name = "faulty_counts"
    seen: ClassVar[list] = []

    def step(self, w, gradient, state, own):
        self.seen.append(1)
        w.sub_(gradient, alpha=own.lr / len(self.seen))


class ChangesGradient(ElasticSteps):
    name = "faulty_changes_gradient"

    def step(self, w, gradient, state, own):
        w.sub_(gradient.mul_(own.lr))


class Numbers(ElasticSteps):
    name = "faulty_numbers"

    def payload(self, w, state, own):
        return 1.0


class Halves(PowerSGD):
    name = "faulty_halves"

    def exchange(self, mine, state, shapes, numbers):
        first = yield mine[:3]
        return {"vector": mine * 0.0 + (yield mine).sum() + first.sum()}


class KeepsOwn(PowerSGD):
    name = "faulty_keeps_own"

    def exchange(self, mine, state, shapes, numbers):
        yield mine
        return {"vector": mine}


class Writes(PowerSGD):
    name = "faulty_writes"

    def exchange(self, mine, state, shapes, numbers):
        state["count"] = state.number("count") + 1
        return {"vector": (yield mine)}


class LosesHalf(PowerSGD):
    name = "faulty_loses_half"
    start_iter: int = 0
    min_compression_rate: float = 0.1

    def left_out(self, mine, total, state, shapes, numbers):
        return super().left_out(mine, total, state, shapes, numbers) * 0.5


FAULTY = take_out("faulty_")
SAID = {
    Rebinds: r"Rebinds.update: the parameters never move. Change `x` in place",
    AddsUp: r"AddsUp.update: on three servers, .* not those of one.*`measures = \('dot',\)`",
    Remembers: r"Remembers.update: the same pushes give other parameters the second time",
    Private: r"Private.update: .* second time. Most likely it .* outside of `state`",
    InPlace: r"InPlace.update, commit 0: changes the vector of a push",
    Divides: r"Divides.update: pushes of zeros give NaN",
    SaysLinear: r"SaysLinear.update: .*declares `linear`",
    Misspelt: r"Misspelt.update, commit 0: there is no 'ruond'. A number is given to Apply",
    Silent: r"Silent.update, commit 0: never calls step.reply",
    Short: r"Short.update, commit 0: raised ValueError: state 'half': is of shape \(3,\)",
    ChangesModel: r"ChangesModel: changes the model that it was sent",
    Lends: r"Lends.payload: what it returned is changed by later steps",
    Counts: r"Counts: the same gradients give other pushes the second time",
    ChangesGradient: r"ChangesGradient.step: changes the gradient",
    Halves: r"Halves.exchange: its sums are of \[3, 7\] entries, and `sums` says \[7\]",
    KeepsOwn: r"KeepsOwn.exchange: members come to different vectors",
    LosesHalf: r"LosesHalf.left_out: .* do not add up to the aggregate, and it declares `conserves_sums`",
    Writes: r"Writes.exchange: changes `state`",
    Numbers: r"Numbers.payload: returns float, not a vector as long as `w`",
}


@pytest.fixture(autouse=True)
def _known():
    put_in([*OWN, *FAULTY])
    yield
    take_out("own_")
    take_out("faulty_")


@pytest.mark.slow
@pytest.mark.parametrize("part", SAID, ids=lambda part: part.__name__)
def test_each_fault_is_named(part):
    with pytest.raises(BrokenContract, match=SAID[part]):
        check_strategy(part, clusters=1, events=20)


@pytest.mark.slow
@pytest.mark.parametrize("part", OWN, ids=lambda part: part.__name__)
def test_what_is_right_passes(part):
    assert part.__module__ == own_arithmetic.__name__
    check_strategy(part, clusters=1, events=40)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_so_does_the_arithmetic_of_every_published_strategy(name):
    for composition in make_strategy(name).compositions:
        actions = [a for *_, answer in _played(composition, 0, 80).history for a in answer]
        check_update(composition, [a for a in actions if isinstance(a, Apply)])
        check_half(composition, [a for a in actions if isinstance(a, Release)])
