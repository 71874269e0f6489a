"""The switch rules of a run; one is active at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from psbench.core.actions import Action, Handover, Note, SwitchTo
from psbench.core.drain import Drain
from psbench.core.events import SwitchRequested
from psbench.core.parts import Switching
from psbench.core.strategy import Strategy
from psbench.core.switching_strategy import SwitchingStrategy
from psbench.core.view import ClusterView
from psbench.errors import ProtocolError


class SwitchRules:
    """The switch rules of a run, and the active one.

    To a rule the composition before its switch is 0 and the one after it 1; here is where these become the
    numbers of the run's compositions.

    Attributes
    ----------
    deciding : Switching
        The rule that is asked now.
    """

    def __init__(self, strategy: SwitchingStrategy) -> None:
        self.strategy = strategy
        self._compositions = strategy.compositions
        self._rules = [rule.fresh() for rule in strategy.rules]
        self._started: set[int] = set()
        self.reach(0)

    def reach(self, stage: int) -> None:
        """Activate the rule that follows composition `stage`, which is active now."""
        self.stage = stage
        number = self.strategy.deciding(stage)
        self._before = number - 1  # the composition before its switch
        self.deciding: Switching = self._rules[number - 1]

    def start(self, view: ClusterView) -> list[Action]:
        """Start the rule that decides, unless it was started before."""
        if self._before in self._started:
            return []
        self._started.add(self._before)
        return self.deciding.start(view)

    def seen(self, composition: int) -> int:
        """Return the composition's number from the active rule's view: 0 before its switch, 1 after it."""
        return int(composition > self._before)

    def numbered(self, switch: SwitchTo) -> SwitchTo:
        """Return the active rule's switch with the composition's number in the run.

        Raises
        ------
        ProtocolError
        """
        to, last = self._before + switch.to, len(self._compositions) - 1
        if not 0 <= to <= last:
            raise ProtocolError(
                f"cannot switch to composition {to}; this strategy has compositions 0 to {last}"
            )
        return replace(switch, to=to)

    def handover(self, origin: int, switch: SwitchTo) -> Handover:
        """Return the hand-over between two compositions of the run, with the settings of their switch."""
        how = self.strategy.between(origin, switch.to)
        return Handover(origin, switch.to, switch.reason, how.momentum == "zero", how.cost_s)

    def requested(self, event: SwitchRequested, view: ClusterView, drain: Drain | None) -> list[Action]:
        """Return the active rule's answer to a request to switch to one of the run's compositions.

        If a switch is under way, what ends now is handed over to the composition that is asked for. If the
        one in force is the same already, nothing is handed over; the rule that follows decides.
        """
        to, last = event.to, len(self._compositions) - 1
        if to is not None and not 0 <= to <= last:
            return [Note(f"asked to switch to {to}, but the compositions are 0 to {last}")]
        if drain is not None and to in (None, drain.switch.to):
            return [Note("asked to switch, but a switch is in progress")]
        if to is None:
            return self.deciding.on_switch_requested(event, view)
        return self._change(to, view, drain)

    def _change(self, to: int, view: ClusterView, drain: Drain | None) -> list[Action]:
        asked = SwitchTo(to - self._before, self._reason(to, view.now))
        actions = self.deciding.on_switch_requested(SwitchRequested(asked.to), view)
        others: list[Action] = [action for action in actions if not isinstance(action, SwitchTo)]
        if drain is not None:
            drain.switch = replace(drain.switch, to=to, reason=asked.reason)
            return others
        if self._is_same(view.in_force, to):
            self.reach(to)
            return [*others, *self.start(view)]
        own = (replace(a, reason=asked.reason) for a in actions if isinstance(a, SwitchTo))
        return [next(own, asked), *others]

    def _is_same(self, composition: int, to: int) -> bool:
        now, then = self._compositions[composition], self._compositions[to]
        return composition == to or (now.reads == then.reads and _parts(now) == _parts(then))

    def _reason(self, to: int, now: float) -> str:
        at_s = self.strategy.switches[to - 1].rule.moment_s if to else None
        return "asked by hand" if at_s is None or now < at_s else f"at {at_s:g} s"

    def __iter__(self) -> Iterator[Switching]:
        return iter(self._rules)

    def state_dict(self) -> dict[str, Any]:
        """Return the rules' states as plain data; a single rule's state is not wrapped."""
        states = [rule.state_dict() for rule in self._rules]
        if len(states) == 1:
            return states[0]
        return {"rules": states, "stage": self.stage, "started": sorted(self._started)}

    def load_state_dict(self, state: dict[str, Any], composition: int) -> None:
        """Load a state from `state_dict`, written under that composition."""
        several = len(self._rules) > 1
        states: Sequence[dict[str, Any]] = state["rules"] if several else [state]
        for rule, own in zip(self._rules, states, strict=True):
            rule.load_state_dict(own)
        self._started = set(state["started"]) if several else {0}
        self.reach(state["stage"] if several else composition)


def _parts(strategy: Strategy) -> dict[str, Any]:
    """Return a composition's specification without its name; its selection may be the previous one's."""
    found = strategy.spec() | {"selection": strategy.selection.model_dump(mode="json")}
    return {name: value for name, value in found.items() if name != "name"}
