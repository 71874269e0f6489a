"""The switches of a run in order: the active rule, and the answer to a request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from psbench.core import Action, Note, SwitchingStrategy, SwitchRequested, SwitchTo
from psbench_fuzz.model.rule import rule_of
from psbench_fuzz.model.view import ModelCluster


class Switches:
    """Translates a rule's 0 (before its switch) and 1 (after it) to the numbers of the run's compositions.

    Attributes
    ----------
    reached : int
        The composition after which the rule that decides comes.
    """

    def __init__(self, strategy: SwitchingStrategy) -> None:
        self.strategy, self.reached = strategy, 0
        self.rules = [rule_of(rule) for rule in strategy.rules]
        self.started: list[int] = []

    @property
    def number(self) -> int:
        """The number of the active rule: of the next switch, if it has one, else of the last."""
        following = self.reached
        if following == 0:
            return 0
        comes = following < len(self.rules) and self.strategy.rules[following].moment_s is None
        return following if comes else following - 1

    @property
    def rule(self) -> Any:
        """The rule that decides now."""
        return self.rules[self.number]

    def show(self, c: ModelCluster) -> None:
        """Show the rule the run's position."""
        c.composition = 1 if c.in_force > self.number else 0

    def start(self, c: ModelCluster) -> list[Action]:
        """Start the rule that decides, once."""
        if self.number in self.started:
            return []
        self.started.append(self.number)
        return list(self.rule.start(c))

    def request(
        self, event: SwitchRequested, c: ModelCluster, draining: SwitchTo | None
    ) -> tuple[list[Action], SwitchTo | None]:
        """Return the actions after a request, and the switch that drains from then on."""
        last, to = len(self.strategy.compositions) - 1, event.to
        if to is not None and (to < 0 or to > last):
            return [Note(f"asked to switch to {to}, but the compositions are 0 to {last}")], draining
        if draining is not None and (to is None or to == draining.to):
            return [Note("asked to switch, but a switch is in progress")], draining
        if to is None:
            return list(self.rule.on_switch_requested(event, c)), draining
        moment = self.strategy.rules[to - 1].moment_s if to > 0 else None
        reason = "asked by hand" if moment is None or c.now < moment else f"at {moment:g} s"
        own_number = to - self.number
        answer = self.rule.on_switch_requested(SwitchRequested(own_number), c)
        others = [action for action in answer if not isinstance(action, SwitchTo)]
        if draining is not None:
            return others, replace(draining, to=to, reason=reason)
        if self._same(c.in_force, to):
            self.reached = to
            return others + self.start(c), None
        asked = [replace(action, reason=reason) for action in answer if isinstance(action, SwitchTo)]
        return [*(asked or [SwitchTo(own_number, reason)])[:1], *others], None

    def _same(self, one: int, other: int) -> bool:
        left, right = (self.strategy.compositions[number] for number in (one, other))
        alike = left.model_copy(update={"name": ""}).spec() == right.model_copy(update={"name": ""}).spec()
        return one == other or (alike and left.reads == right.reads)
