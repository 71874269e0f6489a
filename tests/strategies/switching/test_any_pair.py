"""A switch between any two strategies of the catalogue, there and back: the engine's hand-over knows none."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from pydantic import PrivateAttr
from toybox import put_in, take_out

from psbench import strategies
from psbench.core.actions import Action, Apply, Handover, Release, SwitchTo
from psbench.core.log import Kind
from psbench.core.parts import Switching
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.specification import parameter
from psbench.core.strategy import Strategy
from psbench.core.switching_strategy import SwitchingStrategy
from psbench.core.view import ClusterView, Status
from psbench.errors import ParameterError
from psbench.strategies import CATALOGUE
from psbench.testing import ScriptedCluster, random_cluster
from psbench.testing.invariants import Invariants

#: without a server there is no model to hand over
NAMES = [
    name
    for name, entry in CATALOGUE.items()
    if isinstance(made := entry(), Strategy) and not isinstance(made.placement, PeerToPeer)
]


class ToAndFro(Switching):
    """Toy: changes to the other strategy after so many versions under each."""

    name: ClassVar[str] = "toy_to_and_fro"
    every: int = parameter(3, "versions under each")
    drain: str = parameter("finish", "what happens to work under way")
    _since: int = PrivateAttr(default=0)
    _composition: int = PrivateAttr(default=0)

    def on_applied(self, view: ClusterView) -> list[Action]:
        if view.composition != self._composition:
            self._composition, self._since = view.composition, view.version - 1
        if view.version < self._since + self.every:
            return []
        drain: Any = self.drain
        return [SwitchTo(1 - view.composition, "so many versions", drain)]


PARTS = take_out("toy_to_and_fro")


@pytest.fixture(autouse=True, scope="module")
def toys():
    put_in(PARTS)
    yield
    take_out("toy_to_and_fro")


def to_and_fro(first, second, **options):
    rule = {"name": "toy_to_and_fro"} | options
    return strategies.strategy_switch(first=first, second=second, rule=rule, momentum="keep")


#: of all pairs, those that are tried: each strategy goes before some, and after some
EVERY = 15


@pytest.mark.by_day(17)
@pytest.mark.slow
@pytest.mark.parametrize("first", NAMES)
def test_every_pair_there_and_back_on_random_clusters(first):
    """With failures, late joins and requests by hand: no stall, every push applied or discarded once."""
    back, seconds = 0, NAMES[NAMES.index(first) % EVERY :: EVERY]
    for number, second in enumerate(seconds):
        drain = "cancel" if number % 3 == 2 else "finish"
        cluster = random_cluster(
            to_and_fro(first, second, drain=drain), 17 * number + len(first), max_workers=5
        )
        invariants = Invariants(f"{first} and {second}, cluster {number}", cluster.engine)
        while len(cluster.history) < 60 and not cluster.done:
            cluster.step()
            invariants.look()
            _look_at_hand_over(cluster)
        back += int((cluster.log.of_kind(Kind.HANDOVER)["id"] == 0).sum())
    assert back >= len(seconds) / 2


def _look_at_hand_over(cluster: ScriptedCluster) -> None:
    """A new composition begins with an empty buffer, equal clocks, and the model sent to all."""
    actions = cluster.history[-1][2]
    places = [i for i, action in enumerate(actions) if isinstance(action, Handover)]
    if not places:
        return
    view = cluster.engine.view
    assert not view.pending
    assert len({w.clock for w in view.workers.values() if w.status != Status.GONE}) <= 1
    released = [action for action in actions[places[-1] :] if isinstance(action, Release)]
    assert all(action.send and action.load == view.version for action in released)
    assert all(not action.orders.get("push") for action in released)


@pytest.mark.parametrize("name", NAMES)
def test_a_switch_that_never_happens_changes_nothing(name):
    """Every strategy, with a rule that only a person can wake: the same log to the last byte."""
    never = strategies.strategy_switch(first=name, second="bsp", rule="manual")
    digests = set()
    for strategy in (name, never):
        cluster = ScriptedCluster(
            strategy, lambda w, step: 1 + (7 * w + 3 * step) % 5 / 2, num_workers=4, epochs=20
        )
        cluster.run(events=80)
        digests.add(cluster.log.digest())
    assert len(digests) == 1


@pytest.mark.parametrize("first", ["bsp", "asp", "k_asp", "local_sgd"])
def test_rates_are_those_of_the_composition_in_force(first):
    """Who pushes gradients by share has k/n of the rate, before and after."""
    for second in ("bsp", "ssp", "k_bsp"):
        cluster = ScriptedCluster(to_and_fro(first, second, every=4), [1.0, 1.5, 2.0, 2.5])
        cluster.run(events=120)
        composition, seen = 0, set()
        for _, _, actions in cluster.history:
            for action in actions:
                if isinstance(action, Handover):
                    composition = action.to
                elif isinstance(action, Apply):
                    by_share = (first, second)[composition] in ("asp", "ssp")
                    assert action.lr_scale == (len(action.pushes) / 4 if by_share else 1.0)
                    seen.add(composition)
        assert seen == {0, 1}


def test_both_strategies_must_fit_the_cluster():
    pair = SwitchingStrategy(first=strategies.asp(), second=strategies.k_bsp(k=5), rule={"name": "manual"})
    pair.check(5, 10)
    with pytest.raises(ParameterError, match="k"):
        pair.check(2, 10)
