"""The fuzzer: it repeats, covers, shrinks, and finds faults that were put there on purpose."""

from __future__ import annotations

import numpy as np
import pytest

from psbench.cli import main
from psbench.core.actions import Commit, Discard, Release
from psbench.errors import ParameterError
from psbench.strategies import make_strategy
from psbench.strategies.aggregation.mean import Mean
from psbench.strategies.aggregation.outer import Outer
from psbench.strategies.consistency.asp import ASP
from psbench.strategies.consistency.bsp import BSP
from psbench_fuzz import Schedule, play, run_campaign
from psbench_fuzz.campaign import Campaign, _run_one, run_block
from psbench_fuzz.differential import PAIRS
from psbench_fuzz.model import arithmetic
from psbench_fuzz.schedule import KINDS, Choice
from psbench_fuzz.shrink import shrink
from tests.mutation.planted import FAULTS, UNDER, Fault

EVENTS = 80
#: blocks of schedules within which a fault must be found; all of them take a few seconds
BLOCKS = 24
#: of blocks with a planted fault: the first two of this one show each of them, which spares half of the time
SEED = 8
#: schedules that carry vectors, of which five show what the model gets wrong as well
SCHEDULES = 5


def first_finding(names=(), seed=7, blocks=BLOCKS):
    for number in range(blocks):
        found = run_block(seed, number, EVENTS, names)
        if found.findings:
            return found.findings[0]
    return None


# -------------------------------------------------------------------- schedules


@pytest.mark.slow
def test_nothing_is_found_in_the_package_and_everything_is_covered():
    done = run_campaign(96, seed=2, processes=1)
    assert [finding.test for finding in done.findings] == []
    assert done.schedules == 96
    assert done.events > 60 * EVENTS
    assert done.kinds.keys() >= KINDS.keys() - {"t"}  # few parts use timers
    assert len(done.pairs) > 50


@pytest.mark.nightly
def test_a_seed_plays_the_same_schedules_in_any_number_of_processes(monkeypatch):
    monkeypatch.setattr("psbench_fuzz.campaign._BLOCKS_PER_TASK", 2)
    one, two = (run_campaign(48, seed=3, events=10, names=("asp",), processes=n).plain() for n in (1, 2))
    for plain in (one, two):
        del plain["seconds"], plain["schedules_per_second"]
    assert one == two


def test_a_schedule_is_written_and_read_and_any_part_of_it_can_be_played():
    text = "s0 s1 a1 d0 c0 a0 s1 a1 j0 m0 t0 w5 x0 s0 a0"
    schedule = Schedule({"name": "ssp"}, workers=2, choices=Schedule.parse(text))
    assert schedule.text == text
    whole = play(schedule)
    assert whole.log.digest() == play(schedule).log.digest()
    for length in range(len(schedule.choices)):
        play(schedule.but(choices=schedule.choices[length:]))
    with pytest.raises(ParameterError, match="'q1' is not one of s<number>"):
        Schedule.parse("s0 q1")


def test_shrinking_leaves_what_is_needed():
    choices = tuple(Choice("s", number) for number in range(40))
    needed = {Choice("s", 7), Choice("s", 31)}
    small = shrink(Schedule({}, 1, choices=choices), lambda s: needed <= set(s.choices))
    assert set(small.choices) == needed


def test_a_repeated_report_does_not_divide_by_zero():
    """Found by fuzzing: a push that held no step since the repeated report."""
    strategy = {"consistency": "asp", "aggregation": "loss_weighted", "communication": "hermes_gup"}
    strategy |= {"stragglers": {"name": "dual_binary_search", "passes": 2, "fences": "others"}}
    steps = " ".join(["s0"] * 6)
    choices = Schedule.parse(f"{steps} a0 s0 s0 s0 s0 s0 s1 s1 s1 s1 s1 s0 r0 s0 s0")
    play(Schedule(strategy, 2, 2, 1339769652, choices))


# -------------------------------------------------------------------- strategies that do wrong


def loses(self, push, view):
    view.pending.pop(push.id)
    return [Release(push.worker)]


def doubles(self, push, view):
    return [Commit([push]), Commit([push]), Release(push.worker)]


def stalls(self, push, view):
    return [Commit([push])] if view.version < 3 else []


def discards_what_it_commits(self, push, view):
    return [Commit([push]), Discard(push, "by mistake"), Release(push.worker)]


@pytest.mark.parametrize("wrong", [loses, doubles, stalls, discards_what_it_commits])
def test_a_strategy_that_does_wrong_is_found_and_its_schedule_is_short(monkeypatch, wrong):
    monkeypatch.setattr(ASP, "on_push", wrong)
    finding = first_finding(("asp",), blocks=2)
    assert finding is not None
    assert len(finding.schedule.choices) <= 12
    assert len(finding.test.splitlines()) <= 20
    with pytest.raises(Exception):  # noqa: B017, PT011  (whatever the strategy's fault is)
        exec(finding.test + "\ntest_" + finding.test.partition("def test_")[2].partition("(")[0] + "()", {})


def test_a_barrier_that_forgets_who_waits_is_found(monkeypatch):
    def forgets(self, push, view):
        actions = on_push(self, push, view)
        return [a for a in actions if not (isinstance(a, Release) and a.worker == 0 and view.version == 2)]

    on_push = BSP.on_push
    monkeypatch.setattr(BSP, "on_push", forgets)
    assert first_finding(("bsp",), blocks=4) is not None


def test_a_turned_sign_is_found(monkeypatch):
    def turned(self, pushes, view):
        (apply,) = on_commit(self, pushes, view)
        apply.weights = [-weight for weight in apply.weights]
        return [apply]

    on_commit = Mean.on_commit
    monkeypatch.setattr(Mean, "on_commit", turned)
    finding = first_finding(("asp", "bsp"), blocks=1)
    assert finding is not None
    assert "by the rules" in finding.error


# -------------------------------------------------------------------- faults of the engine and of parts


@pytest.mark.by_day(16)
@pytest.mark.slow
@pytest.mark.parametrize("words", FAULTS)
def test_a_planted_fault_is_found(monkeypatch, words):
    fault = FAULTS[words]
    monkeypatch.setattr(fault.owner, fault.name, fault.made())
    names = (UNDER.get(words, "asp"),)
    assert any(run_block(SEED, number, EVENTS, names, shrinks=False).failures for number in range(16))


# ------------------------------------------------- faults that the model has as well, so that it cannot tell


def failures(strategy, pair=None):
    """Return what was said of the first failure of a block of schedules that carry vectors."""
    done, rng = Campaign(), np.random.default_rng(3)
    made = None if strategy is None else make_strategy(strategy)
    for _ in range(SCHEDULES):
        _run_one(done, made, pair, rng, EVENTS, shrinks=False)
        if done.failures:
            break
    return done.first_error


@pytest.mark.slow
def test_a_sum_that_an_exchange_does_not_keep_is_found(monkeypatch):
    assert failures("easgd") == ""

    def goes_less_far(self, x, places):
        if self.exchanges:
            self.own, self.exchanges = self.own - self.m.elastic_rate * (self.own - x), False
        else:
            load(self, x, places)

    fault, load = FAULTS["a worker goes less far than its centre"], arithmetic.ModelWorker.load
    monkeypatch.setattr(fault.owner, fault.name, fault.made())
    monkeypatch.setattr(arithmetic.ModelWorker, "load", goes_less_far)
    assert "after their exchange" in failures("easgd")


@pytest.mark.slow
def test_what_an_exchange_loses_of_the_pushes_is_found(monkeypatch):
    words = "half of what power_sgd leaves out is lost"
    assert failures(UNDER[words]) == ""

    def forgets_half(u):
        moved = power_sgd(u)
        u.model.left = [0.5 * owed for owed in u.model.left]
        return moved

    fault, power_sgd = FAULTS[words], arithmetic.power_sgd
    monkeypatch.setattr(fault.owner, fault.name, fault.made())
    monkeypatch.setitem(arithmetic.UPDATES, "power_sgd", forgets_half)
    assert "the pushes less what is left out of them" in failures(UNDER[words])


@pytest.mark.slow
def test_strategies_that_should_be_equal_and_make_other_models_are_found(monkeypatch):
    pair = PAIRS["diloco(H=1, plain, 1) = bsp"]
    assert failures(None, pair) == ""
    fault = Fault(Outer, "update", "x.sub_(mean, alpha=self", "x.sub_(mean, alpha=1.01 * self")
    monkeypatch.setattr(Outer, "update", fault.made())
    monkeypatch.setitem(arithmetic.UPDATES, "outer", lambda u: u.x - 1.01 * u.own.outer_lr * u.total)
    assert "under the equal strategy" in failures(None, pair)


# -------------------------------------------------------------------- the command


@pytest.mark.nightly
@pytest.mark.slow
def test_the_command_prints_what_was_covered(capsys):
    assert main(["fuzz", "--schedules", "16", "--strategy", "ssp", "--processes", "1"]) == 0
    printed = capsys.readouterr().out
    assert "16 schedules" in printed
    assert "0 failed" in printed


def test_a_model_of_fewer_entries_than_fragments_carries_no_vectors():
    """A fragment without an entry was a finding, and no user has one: it is refused."""
    fragments = {"name": "asked_fragments", "num_fragments": 4, "overlap": 4, "first_push": "after_share"}
    strategy = {"name": "decoupled_diloco", "consistency": "asp", "communication": fragments}
    choices = Schedule.parse("s0 " * 5 + "a0 " + "s0 " * 60 + "a0 s0 s0 a0 s0 s0 a0")
    play(Schedule(strategy, 2, 1, 1225430537, choices, batches=(32, 40, 24), momentum=0.0))
