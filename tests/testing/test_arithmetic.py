"""What `check_strategy` says of arithmetic that is wrong, in one line that names the method."""

from typing import ClassVar

import pytest
from pydantic import PrivateAttr
from strategies.aggregation import own_arithmetic
from strategies.aggregation.own_arithmetic import OWN, DiLoCo, ElasticSteps, Median
from toybox import put_in, take_out

from psbench.core.actions import Apply, Release
from psbench.core.needs import NEEDS_BARRIER, NEEDS_SINGLE_PUSHES
from psbench.errors import ParameterError
from psbench.strategies import CATALOGUE, make_strategy
from psbench.strategies.aggregation import Mean, ModelAverage, PowerSGD
from psbench.strategies.communication import EveryStep, LocalSGD
from psbench.testing import BrokenContract, ScriptedCluster, check_strategy
from psbench.testing.arithmetic import check_half, check_update
from psbench.testing.commits import probed_commits
from psbench.testing.contract import _largest, _played
from psbench.testing.probes import check_adoption, check_commits, check_descent


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


# -------------------------------------------------------------------- faults of the rule, not of its form


class ClimbsAtTheServer(Mean):
    name = "faulty_climbs_at_the_server"

    def update(self, x, pushes, state, step):
        x.add_(step.sum(pushes), alpha=step.lr)


class ClimbsOnTheWorker(EveryStep):
    name = "faulty_climbs_on_the_worker"

    def payload(self, w, state, own):
        return -super().payload(w, state, own)


class BackwardDifference(LocalSGD):
    name = "faulty_backward_difference"

    def payload(self, w, state, own):
        return w - state["received"] if own.kind == "difference" else super().payload(w, state, own)


class FirstReceived(LocalSGD):
    """A difference from the model that was received first."""

    name = "faulty_first_received"

    def begin(self, w, model, state, own):
        w.copy_(model)
        state.vector("received", model)


class IgnoresWeights(Mean):
    name = "faulty_ignores_weights"

    def update(self, x, pushes, state, step):
        step.move(step.stack(pushes).mean(dim=0))


class Doubles(Mean):
    name = "faulty_doubles"

    def on_commit(self, pushes, view):
        return [Apply(pushes, [2.0 / len(pushes)] * len(pushes))]


class Shrinks(ModelAverage):
    name = "faulty_shrinks"

    def update(self, x, pushes, state, step):
        x.copy_(step.sum(pushes)).mul_(0.9)


class SharesOfAll(ModelAverage):
    """Sums to 1 until a worker leaves."""

    name = "faulty_shares_of_all"

    def on_commit(self, pushes, view):
        return [Apply(pushes, [1.0 / view.num_workers] * len(pushes), {"keep": 0.0})]


class WeighsNaN(Mean):
    name = "faulty_weighs_nan"

    def on_commit(self, pushes, view):
        return [Apply(pushes, [float("nan")] * len(pushes))]


class TakesTheFirst(Mean):
    name = "faulty_takes_the_first"

    def update(self, x, pushes, state, step):
        step.move(pushes[0].vector)


class AddsInOrder(Mean):
    name = "faulty_adds_in_order"

    def update(self, x, pushes, state, step):
        mixed = pushes[0].vector
        for push in pushes[1:]:
            mixed = 0.5 * (mixed + push.vector)
        step.move(mixed)


class WeighsInOrder(Mean):
    name = "faulty_weighs_in_order"

    def on_commit(self, pushes, view):
        places = range(1, len(pushes) + 1)
        return [Apply(pushes, [place / sum(places) for place in places])]


class KeepsItsOwn(LocalSGD):
    name = "faulty_keeps_its_own"

    def begin(self, w, model, state, own):
        state.vector("received", model).copy_(model)


class DeafToAnswers(ElasticSteps):
    name = "faulty_deaf_to_answers"

    def receive(self, w, answer, state, own):
        pass


class CountsOnSelf(ElasticSteps):
    name = "faulty_counts_on_self"
    _count: int = PrivateAttr(0)

    def payload(self, w, state, own):
        self._count += 1
        return w * (1.0 if self._count % 2 else 0.5)


class CountsOnClass(ElasticSteps):
    name = "faulty_counts_on_class"
    seen: ClassVar[list] = []

    def payload(self, w, state, own):
        self.seen.append(1)
        return w * (1.0 if len(self.seen) % 2 else 0.5)


class CountsCommits(Mean):
    name = "faulty_counts_commits"
    seen: ClassVar[list] = []

    def on_commit(self, pushes, view):
        self.seen.append(1)
        return [Apply(pushes, [1.0 / len(pushes)] * len(pushes), {"count": len(self.seen)})]


class RepliesMapping(Median):
    name = "faulty_replies_mapping"
    payload = "parameters"
    reply = "answer"

    def update(self, x, pushes, state, step):
        x.copy_(step.sum(pushes))
        step.reply({"vector": x})


class InheritsSilence(ModelAverage):
    name = "faulty_inherits_silence"
    reply = "answer"


class FitsNothing(Mean):
    name = "faulty_fits_nothing"
    needs = (NEEDS_BARRIER, NEEDS_SINGLE_PUSHES)


class PushesMapping(ElasticSteps):
    name = "faulty_pushes_mapping"

    def payload(self, w, state, own):
        return {"vector": w.clone()}


FAULTY = take_out("faulty_")
SAID = {
    Rebinds: r"Rebinds.update: the parameters never move. Change `x` in place",
    AddsUp: r"AddsUp.update: on three servers, .* differ from those on one.*`measures = \('dot',\)`",
    Remembers: r"Remembers.update: the same pushes give different parameters the second time",
    Private: r"Private.update: .* second time. Most likely it .* outside `state`",
    InPlace: r"InPlace.update, commit 0: changes the vector of a push",
    Divides: r"Divides.update: pushes of zeros give NaN",
    SaysLinear: r"SaysLinear.update: .*declares `linear`",
    Misspelt: r"Misspelt.update, commit 0: there is no 'ruond'.",
    Silent: r"Silent.update, commit 0: .* never calls step.reply, but its `reply` is 'answer'",
    Short: r"Short.update, commit 0: raised ValueError: state 'half': has shape \(3,\)",
    ChangesModel: r"ChangesModel: changes the received model",
    Lends: r"Lends.payload: later steps change the returned vector",
    Counts: r"Counts: the same gradients give different pushes the second time",
    ChangesGradient: r"ChangesGradient.step: changes the gradient",
    Halves: r"Halves.exchange: its sums have \[3, 7\] entries, but `sums` returns \[7\]",
    KeepsOwn: r"KeepsOwn.exchange: members return different vectors",
    LosesHalf: r"LosesHalf.left_out: it declares `conserves_sums`, but the pushes .* do not sum to",
    Writes: r"Writes.exchange: changes `state`",
    ClimbsAtTheServer: r"on \|x - a\|\^2 / 2 the loss rises, .* Most likely a sign",
    ClimbsOnTheWorker: r"on \|x - a\|\^2 / 2 the loss rises, .* Most likely a sign",
    IgnoresWeights: r"IgnoresWeights.update: ignores the weights that on_commit decides",
    Doubles: r"Doubles.update: .* equal pushes with the weights .* move the model differently from one",
    Shrinks: r"Shrinks.update: all workers push the server's model unchanged, .* but the model changes",
    SharesOfAll: r"SharesOfAll.update: all workers push .* unchanged, with the weights (0.167, ){4}0.167",
    WeighsNaN: r"faulty_weighs_nan.*: on_commit: the weight of push \d+ is nan",
    TakesTheFirst: r"TakesTheFirst.update: push number 1 of \d has no effect",
    AddsInOrder: r"AddsInOrder.update: under a barrier the version depends on the order",
    WeighsInOrder: r"WeighsInOrder.on_commit: .* depend on the order in which the pushes arrived",
    KeepsItsOwn: r"KeepsItsOwn.begin: a worker continues as if it had received nothing",
    DeafToAnswers: r"DeafToAnswers.receive: a worker continues as if it had received nothing",
    CountsOnSelf: r"CountsOnSelf: the worker's half changes a private attribute",
    CountsOnClass: r"CountsOnClass: the same gradients give different pushes the second time",
    CountsCommits: r"resumed from its state at event 1, it decides differently",
    RepliesMapping: r"RepliesMapping.update, commit 0: .* replies with a dict",
    InheritsSilence: r"InheritsSilence.update, commit 0: .* never calls step.reply",
    PushesMapping: r"PushesMapping.payload: .* returns a mapping with \['vector'\]; .* takes one vector",
    Numbers: r"Numbers.payload: returns float, not a vector as long as `w`",
}


@pytest.fixture(autouse=True)
def _known():
    put_in([*OWN, *FAULTY])
    yield
    take_out("own_")
    take_out("faulty_")


@pytest.mark.by_day(12)
@pytest.mark.slow
@pytest.mark.parametrize("part", SAID, ids=lambda part: part.__name__)
def test_each_fault_is_named(part):
    with pytest.raises(BrokenContract, match=SAID[part]):
        check_strategy(part, clusters=1, events=20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "says"),
    [
        (BackwardDifference, r"the loss rises, .* Most likely a sign"),
        (FirstReceived, r"the loss falls to .* and grows to .* from the model that was received last"),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
def test_a_half_that_suits_one_kind_of_push(part, says):
    check_strategy(part, clusters=1, events=20)  # of models it is right
    whole = {"consistency": "bsp", "aggregation": "outer", "communication": part.name}
    with pytest.raises(BrokenContract, match=says):
        check_strategy(whole, clusters=1, events=80)


def test_a_half_that_fits_no_other_says_to_give_the_whole():
    with pytest.raises(ParameterError, match=r"cannot be checked alone.*check a whole strategy"):
        check_strategy(FitsNothing)


@pytest.mark.by_day(4)
@pytest.mark.slow
@pytest.mark.parametrize("part", OWN, ids=lambda part: part.__name__)
def test_what_is_right_passes(part):
    assert part.__module__ == own_arithmetic.__name__
    check_strategy(part, clusters=1, events=40)


@pytest.mark.by_day(10)
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_so_does_the_arithmetic_of_every_published_strategy(name):
    for composition in make_strategy(name).compositions:
        actions = [a for *_, answer in _played(composition, 0, 80).history for a in answer]
        check_update(composition, [a for a in actions if isinstance(a, Apply)])
        check_half(composition, [a for a in actions if isinstance(a, Release)])
        size = _largest(composition)
        check_commits(composition, probed_commits(composition, size, 80))
        check_adoption(composition)
        cluster = ScriptedCluster(composition, [1.0 + 0.1 * worker for worker in range(size)], epochs=20)
        cluster.run(events=80)
        check_descent(composition, cluster)
