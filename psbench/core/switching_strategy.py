"""Strategies in a row, and the rules that change from one to the next during a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Self, TypeAlias

from pydantic import field_validator, model_validator

from psbench.core.called_hooks import never_asked
from psbench.core.part import Part, make_part
from psbench.core.parts import Switching
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.specification import Specification, parameter
from psbench.core.strategy import MomentumScale, Strategy
from psbench.errors import ParameterError


class Switch(Specification):
    """A change of composition during a run: its rule, and its treatment of the momentum.

    Parameters
    ----------
    momentum : str
        What becomes of the optimizer's momentum. At the hand-over, "zero" resets the optimizer's state, and
        all others keep it. While the composition that was changed to is in force, n workers multiply the
        optimizer's coefficient by: "zero" and "keep" 1; "off" 0; "scaled" 1/n; "ramped" 1/n, 2/n, 4/n, ... up
        to 1; "ramped_additive" 1/n, 2/n, 3/n, ... up to 1.
    """

    called_in_errors = "strategy"
    #: policies under which the updates use less momentum than the optimizer's
    REDUCED: ClassVar[tuple[str, ...]] = ("off", "scaled", "ramped", "ramped_additive")

    rule: Switching
    momentum: Literal["zero", "keep", "off", "scaled", "ramped", "ramped_additive"] = parameter(
        "zero",
        "the optimizer's momentum at the switch: reset, kept, or kept and reduced from then on",
        source="Strategy-Switch dumps only the model; Sync-Switch, ICDCS 2021",
    )
    ramp_updates: int = parameter(
        2000,
        "updates per value of a ramp",
        unit="updates",
        source="Sync-Switch, ICDCS 2021 (additive ramp)",
        ge=1,
    )
    cost_s: float = parameter(0.0, "duration of the switch after draining", unit="s", ge=0)

    @field_validator("rule", mode="before")
    @classmethod
    def _rule(cls, value: Any) -> Part:
        return make_part("switching", value)

    @property
    def reduces_momentum(self) -> bool:
        """Return True if updates after the switch use less momentum than the optimizer's setting."""
        return self.momentum in self.REDUCED

    def momentum_scale(self, updates: int, num_workers: int) -> float:
        """Return the factor on the momentum after `updates` updates since the hand-over.

        >>> from psbench.strategies import strategy_switch
        >>> ramp = strategy_switch(momentum="ramped", ramp_updates=10).momentum_scale
        >>> [ramp(updates, 8) for updates in (0, 9, 10, 20, 30, 10**9)]
        [0.125, 0.125, 0.25, 0.5, 1.0, 1.0]
        """
        if self.momentum == "off":
            return 0.0
        stages = 0 if self.momentum == "scaled" else min(updates // self.ramp_updates, num_workers)
        parts = 2**stages if self.momentum == "ramped" else 1 + stages
        return min(1.0, parts / num_workers)

    def spec(self) -> dict[str, Any]:
        """Return plain data from which an equal switch can be made."""
        return {
            "rule": self.rule.model_dump(mode="json"),
            "momentum": self.momentum,
            "ramp_updates": self.ramp_updates,
            "cost_s": self.cost_s,
        }


class LaterSwitch(Switch):
    """A switch after the first of a run.

    Parameters
    ----------
    to : Strategy, int or None
        What to change to: a composition of its own; one that the run has already, by its number (0 is the
        first); or None for the other of the two between which the rule in force decides, as a switch by hand
        does. Only a switch at a set time may do without a composition of its own.
    """

    to: Strategy | int | None = None

    @model_validator(mode="after")
    def _has_a_goal(self) -> Self:
        if not isinstance(self.to, Strategy) and self.rule.moment_s is None:
            raise ParameterError(f"then: rule {self.rule.name!r} needs a strategy to switch to; give `to`")
        if not isinstance(self.to, Strategy) and (reason := never_asked(self.rule)):
            raise ParameterError(f"then: {reason}")
        return self

    def spec(self) -> dict[str, Any]:
        """Return plain data from which an equal switch can be made."""
        to = self.to.spec() if isinstance(self.to, Strategy) else self.to
        return ({} if to is None else {"to": to}) | super().spec()


class SwitchingStrategy(Switch):
    """Two or more compositions in a row, and the rules or times that change from one to the next.

    At a switch all workers finish their work (or it is cancelled, as the rule says), buffered pushes are
    committed, a checkpoint is written, the model is handed over, and all start under the new composition.

    Parameters
    ----------
    rule : Switching
        Changes from the first to the second; see `Switch` for this, `momentum`, `ramp_updates` and `cost_s`.
    then : sequence of LaterSwitch
        Further switches in their order. One by rule is decided on from the moment on at which the composition
        before it is in force. One at a set time (`at_time`) comes then, whatever is in force, and has the
        last word: switches before it that have not come by then do not come any more.

    Notes
    -----
    A rule sees two compositions: the one before its switch and the one after it, between which it may also go
    back. It is asked until the composition is in force after which another rule decides.

    Our reading of the ramps, which the sources give for 8 workers (0.9/8, 0.9/4, 0.9/2, 0.9, and steps of an
    eighth): they begin at 1/n, and the steps of the additive one are 1/n. Under the first strategy, also
    after a switch back to it, the coefficient is the optimizer's own.

    The residual of error feedback (`Channel`) is handed over with the model: it is added to the residual of
    the new codec, and one without error feedback sends it with the worker's first push. Where one composition
    pushes gradients and the other models, the units differ; the residual is dropped, and a note in the log
    says so. A server's residual of aggregates (DoubleSqueeze) ends with them: its model contains all of it
    already, and is what the workers are sent.

    Source
    ------
    Provatas et al., "Strategy-Switch", IEEE Access 2025, which dumps only the model at the switch: "zero";
    Li et al., "Sync-Switch", ICDCS 2021: the others.
    """

    name: str = "strategy_switch"
    first: Strategy
    second: Strategy
    then: tuple[LaterSwitch, ...] = parameter((), "further switches in order: to, rule, momentum")

    @model_validator(mode="after")
    def _has_momentum_to_reduce(self) -> Self:
        for switch, composition in zip(self.switches, self._strategies()[1:], strict=True):
            if switch.reduces_momentum and composition.has_local_steps:
                raise ParameterError(
                    f"strategy {self.name!r}: momentum {switch.momentum!r} reduces the server's momentum, "
                    f"but the workers of {composition.name!r} step with optimizers of their own; "
                    "use 'zero' or 'keep'"
                )
        return self

    @model_validator(mode="after")
    def _has_a_model_to_hand_over(self) -> Self:
        for composition in self._strategies():
            if isinstance(composition.placement, PeerToPeer):
                raise ParameterError(
                    f"strategy {self.name!r}: under {composition.name!r} each worker has its own model, so "
                    "a switch has no model to hand over; switch between other strategies"
                )
        return self

    @model_validator(mode="after")
    def _names_its_own(self) -> Self:
        last = len(self.switches)
        for switch in self.then:
            if isinstance(switch.to, int) and not 0 <= switch.to <= last:
                raise ParameterError(
                    f"strategy {self.name!r}: then: composition {switch.to} does not exist; there are 0 to "
                    f"{last}"
                )
        return self

    @property
    def switches(self) -> tuple[Switch, ...]:
        """The switches to new compositions: the first leads to composition 1, and so on."""
        return (self, *(switch for switch in self.then if isinstance(switch.to, Strategy)))

    @property
    def requests(self) -> list[tuple[float, int | None]]:
        """The switches at set times, in order: seconds, and the composition's number (None: the other)."""
        goals: list[tuple[Switch, int | None]] = [(self, 1)]
        number = 1
        for switch in self.then:
            number += isinstance(switch.to, Strategy)
            goals.append((switch, number if isinstance(switch.to, Strategy) else switch.to))
        moments = ((switch.rule.moment_s, to) for switch, to in goals)
        return sorted(((at_s, to) for at_s, to in moments if at_s is not None), key=lambda each: each[0])

    @property
    def compositions(self) -> tuple[Strategy, ...]:
        """The compositions that may be in force."""
        return tuple(
            strategy.under_rule(self.switches[self.deciding(stage) - 1].rule)
            for stage, strategy in enumerate(self._in_turn())
        )

    @property
    def rules(self) -> tuple[Switching, ...]:
        """The rules of the switches to new compositions."""
        return tuple(switch.rule for switch in self.switches)

    def deciding(self, stage: int) -> int:
        """Return the number of the switch whose rule is active under composition `stage`.

        That of the next one; if it comes at a set time, or there is none, that of the one that led there.
        """
        following = stage + 1
        if following <= len(self.switches):
            by_rule = self.switches[following - 1].rule.moment_s is None
            return following if by_rule or not stage else stage
        return stage

    def between(self, origin: int, to: int) -> Switch:
        """Return the switch whose settings apply between two compositions, in either direction."""
        return self.switches[max(origin, to, 1) - 1]

    def momentum_scale_of(self, index: int) -> MomentumScale | None:
        """Return the scaling of the optimizer's momentum under a composition; None if unscaled."""
        switch = self.switches[index - 1] if index else None
        return switch.momentum_scale if switch is not None and switch.reduces_momentum else None

    def with_switches(self, then: Iterable[LaterSwitch]) -> SwitchingStrategy:
        """Return the strategy with these switches after the first."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**values | {"then": tuple(then)})

    def check(self, num_workers: int, global_batch: int) -> None:
        """Raise ParameterError if a part cannot work on a cluster of that size."""
        for strategy in self.compositions:
            strategy.check(num_workers, global_batch)
        for rule in self.rules:
            rule.check(num_workers, global_batch)

    def spec(self) -> dict[str, Any]:
        """Return plain data from which an equal strategy can be made."""
        pair = {"name": self.name, "first": self.first.spec(), "second": self.second.spec()}
        later = {"then": [switch.spec() for switch in self.then]} if self.then else {}
        return pair | super().spec() | later

    def _in_turn(self) -> list[Strategy]:
        """Return the strategies, each with the selection of the one before it unless it names its own."""
        found = [self.first]
        for strategy in self._strategies()[1:]:
            found.append(strategy.after(found[-1]))
        return found

    def _strategies(self) -> tuple[Strategy, ...]:
        later = (switch.to for switch in self.then)
        return (self.first, self.second, *(each for each in later if isinstance(each, Strategy)))


AnyStrategy: TypeAlias = Strategy | SwitchingStrategy
