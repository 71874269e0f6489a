"""An overridden hook is called, or refused when the strategy is built."""

from __future__ import annotations

import inspect

import pytest
import torch
from threaded_run import ThreadedRun
from toybox import put_in, take_out

from psbench.core.called_hooks import hooks_by_domain
from psbench.core.part import Part
from psbench.core.parts import (
    Aggregation,
    CodecPart,
    Communication,
    Consistency,
    Placement,
    Stragglers,
    Switching,
)
from psbench.core.strategy import Strategy
from psbench.core.switching_strategy import LaterSwitch
from psbench.core.worker_policy import WorkerPolicy
from psbench.errors import ParameterError
from psbench.runs.execution import run
from psbench.strategies import strategy_switch
from psbench.strategies.aggregation import Mean
from psbench.strategies.codecs import Codec
from psbench.strategies.codecs.floats import Half
from psbench.strategies.communication import EveryStep, LocalSGD
from psbench.strategies.placement import AllReduce, MapReduce, ParameterServer
from psbench.strategies.stragglers import Fixed
from psbench.strategies.switching import AtTime
from psbench.testing import toy_experiment


class Signs(EveryStep):
    """As a reader writes signSGD: the payload alone."""

    name = "vain_signs"

    def payload(self, w, state, own):
        return super().payload(w, state, own).sign()


class SignsOfItsOwn(Communication):
    """The same, from the base class."""

    name = "vain_signs_of_its_own"

    def worker_policy(self):
        return WorkerPolicy()

    def payload(self, w, state, own):
        return super().payload(w, state, own).sign() * own.lr


class Receiving(LocalSGD):
    name = "vain_receiving"

    def receive(self, w, answer, state, own):
        w.copy_(answer)


class Keeping(LocalSGD):
    name = "vain_keeping"

    def worker_policy(self):
        return WorkerPolicy()

    def keep(self, w, state, own):
        w.zero_()


class Voting(EveryStep):
    name = "vain_voting"

    def on_vote(self, vote, view):
        return []


class TakesAnswers(EveryStep):
    name = "vain_takes_answers"

    def takes_answer(self, stepped):
        return False


class VotesOnly(WorkerPolicy):
    def vote_value(self):
        return 1.0


class VotingPolicy(EveryStep):
    name = "vain_voting_policy"

    def worker_policy(self):
        return VotesOnly()


class Late(WorkerPolicy):
    def takes_answer(self, stepped):
        return False


class LatePolicy(EveryStep):
    name = "vain_late_policy"

    def worker_policy(self):
        return Late()


class ReportsOnly(WorkerPolicy):
    def report(self, stats):
        return stats


class ReportingPolicy(EveryStep):
    name = "vain_reporting_policy"

    def worker_policy(self):
        return ReportsOnly()


class Measured(Mean):
    name = "vain_measured"

    def on_measured(self, facts, view):
        return []


class LeavesOut(Mean):
    name = "vain_leaves_out"

    def left_out(self, mine, total, state, shapes, numbers):
        return mine


class OnReport(Fixed):
    name = "vain_on_report"

    def on_report(self, report, view):
        return []


class Moving(AllReduce):
    name = "vain_moving"

    def on_applied(self, view):
        return []


class Shifting(Half):
    name = "vain_shifting"

    def shift_rate(self, size):
        return 0.5


class Setting(Half):
    name = "vain_setting"

    def on_push(self, push, view):
        return super().on_push(push, view)


class OwnFloats(Half):
    name = "vain_own_floats"

    def _decode(self, packed, size):
        return super()._decode(packed, size) * 2


class Watching(AtTime):
    name = "vain_watching"

    def on_applied(self, view):
        return []


VAIN = take_out("vain_")


@pytest.fixture(autouse=True)
def _known():
    put_in(VAIN)
    yield
    take_out("vain_")


NEVER = {
    "of a job": (
        {"communication": Signs(), "placement": MapReduce()},
        r"communication 'vain_signs' overrides payload\(\), which is never called because tasks compute",
    ),
    "policy of a job": (
        {"communication": LatePolicy(), "placement": MapReduce()},
        r"worker policy of 'vain_late_policy' overrides takes_answer\(\), .* tasks compute plain",
    ),
    "receive": (
        {"communication": Receiving(), "aggregation": "model_average"},
        r"overrides receive\(\), which is never called because workers are sent the model; declare `reply`",
    ),
    "keep": (
        {"communication": Keeping(), "aggregation": "model_average"},
        r"overrides keep\(\), which is never called because workers push every step",
    ),
    "on_vote": ({"communication": Voting()}, r"overrides on_vote\(\), .* declare `pushes` = 'together'"),
    "a hook of the policy": (
        {"communication": TakesAnswers()},
        r"'vain_takes_answers' defines takes_answer\(\), which is a hook of its worker policy",
    ),
    "vote_value": ({"communication": VotingPolicy()}, r"overrides vote_value\(\), .* do not vote"),
    "takes_answer": ({"communication": LatePolicy()}, r"overrides takes_answer\(\), .*declare `overlaps`"),
    "report": ({"communication": ReportingPolicy()}, r"overrides report\(\), .* report nothing"),
    "on_report": ({"stragglers": OnReport()}, r"stragglers 'vain_on_report' overrides on_report\(\)"),
    "on_measured": ({"aggregation": Measured()}, r"overrides on_measured\(\), .* declare them in `measures`"),
    "left_out": ({"aggregation": LeavesOut()}, r"overrides left_out\(\), .* override exchange\(\) too"),
    "on_applied": ({"placement": Moving()}, r"overrides on_applied\(\), .* declare `moves` = True"),
    "shift_rate": (
        {"communication": {"name": "every_step", "codec": {"name": "vain_shifting"}}},
        r"codec 'vain_shifting' overrides shift_rate\(\), .* leave `entrywise` False",
    ),
    "shift_rate of answers": (
        {"communication": {"name": "every_step", "codec_down": {"name": "vain_shifting"}}},
        r"codec_down 'vain_shifting' overrides shift_rate\(\)",
    ),
    "on_push of answers": (
        {"communication": {"name": "every_step", "codec_down": {"name": "vain_setting"}}},
        r"codec_down 'vain_setting' overrides on_push\(\), .* which no rule sets",
    ),
    "a codec in a ring": (
        {
            "communication": {"name": "every_step", "codec": {"name": "vain_own_floats"}},
            "placement": AllReduce(),
        },
        "sums float vectors in transit, .* use codecs 'none' or 'fp16'",
    ),
    "a residual in a ring": (
        {
            "communication": {"name": "every_step", "codec": {"name": "fp16", "error_feedback": True}},
            "placement": AllReduce(),
        },
        "correct only errors of single workers; use codecs without error_feedback",
    ),
}


@pytest.mark.parametrize(
    ("base", "hook", "family"),
    [
        (AllReduce, "receivers", "PeerToPeer"),
        (ParameterServer, "reduce_s", "Collective"),
        (AllReduce, "start_s", "Jobs"),
    ],
)
def test_a_hook_of_another_family_is_refused(base, hook, family):
    said = rf"'{hook}', a hook .* derive it from psbench.*{family}"
    with pytest.raises(ParameterError, match=said):
        type("Stray", (base,), {"name": "vain_stray", "__module__": __name__, hook: _does})


@pytest.mark.parametrize("case", NEVER)
def test_a_hook_that_nothing_calls_is_refused(case):
    parts, said = NEVER[case]
    with pytest.raises(ParameterError, match=said):
        Strategy(**{"consistency": "bsp"} | parts)


BASES = (Consistency, Aggregation, Communication, Stragglers, Placement, Switching, Codec, WorkerPolicy)


@pytest.mark.parametrize("base", BASES)
def test_every_hook_of_a_base_class_is_known_to_be_called(base):
    """Whoever adds a hook says where it is called: in all compositions, or in those of a rule."""
    core = [each for each in base.__mro__ if each is base or each is CodecPart]
    hooks = {
        name
        for each in core
        for name, value in vars(each).items()
        if inspect.isfunction(value) and not name.startswith("_") and name not in vars(Part)
    }
    assert hooks_by_domain()[getattr(base, "domain", "") or "worker policy"] == hooks


def test_also_in_the_second_composition_of_a_switch():
    with pytest.raises(ParameterError, match=r"'vain_on_report' overrides on_report\(\)"):
        strategy_switch(second={"consistency": "bsp", "stragglers": {"name": "vain_on_report"}})
    with pytest.raises(ParameterError, match=r"switching 'vain_watching' overrides on_applied\(\)"):
        LaterSwitch(to=0, rule=Watching(at_s=1.0))


@pytest.mark.parametrize("base", [Consistency, Aggregation, Stragglers, Placement])
def test_a_hook_of_another_domain_is_refused_with_its_class(base):
    with pytest.raises(ParameterError, match="nothing calls its method 'on_vote'"):
        type("Astray", (base,), {"name": "astray", "__module__": __name__, "on_vote": lambda self: None})


@pytest.mark.parametrize(
    ("hook", "domain"),
    {
        "update": "aggregation",
        "exchange": "aggregation",
        "reduce_s": "placement",
        "receivers": "placement",
        "num_bytes": "codec",
        "on_evaluated": "selection",
    }.items(),
)
def test_a_worker_s_half_has_no_hook_of_another_domain(hook, domain):
    """As where a reader takes the server's half for the worker's."""
    with pytest.raises(ParameterError, match=rf"nothing calls its method '{hook}', a hook of {domain} parts"):
        type("SignSGD", (Communication,), {"name": "vain_sign_sgd", "__module__": __name__, hook: _does})


def _does(self, *given):
    """Stand for a method that does something."""


@pytest.mark.parametrize("placement", ["parameter_server", "all_reduce"])
@pytest.mark.parametrize(("part", "moves"), [("vain_signs", 0.1), ("vain_signs_of_its_own", 0.01)])
def test_a_payload_is_computed_wherever_workers_push(placement, part, moves):
    """A step of signSGD by one worker moves every entry by the rate, whatever its gradient."""
    strategy = {"consistency": "bsp", "placement": placement, "communication": part}
    alone = {"cluster": {"workers": 1}, "optimizer": {"name": "sgd", "lr": 0.1}}
    one, two = (run(toy_experiment(strategy, stop={"updates": n}, **alone)).parameters for n in (1, 2))
    torch.testing.assert_close((two - one).abs(), torch.full_like(one, moves))


def test_the_payload_of_a_live_run_is_that_of_virtual_time():
    strategy = {"consistency": "bsp", "communication": "vain_signs_of_its_own"}
    settings = {"cluster": {"workers": 2, "step_time": "constant"}, "stop": {"updates": 12}, "batch_size": 8}
    rate = {"name": "sgd", "lr": 0.1, "schedule": {"name": "linear", "epochs": 2.0}}
    made = toy_experiment(strategy, optimizer=rate, **settings)
    live = ThreadedRun(made).run()
    assert live.error is None
    assert torch.equal(live.parameters, run(made).parameters)
