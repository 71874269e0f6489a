"""Two strategies, and the rule that changes from one to the other during a run."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self, TypeAlias

from pydantic import ValidationError, field_validator, model_validator

from psbench.core.part import Part, make_part
from psbench.core.parts import Switching
from psbench.core.specification import Specification, explain, parameter
from psbench.core.strategy import MomentumScale, Strategy
from psbench.errors import ParameterError


class SwitchingStrategy(Specification):
    """Two compositions and the rule that switches from one to the other.

    At a switch all workers finish their work (or it is cancelled, as the rule says), buffered pushes are
    committed, a checkpoint is written, the model is handed over, and all start under the new composition.

    Parameters
    ----------
    first, second : Strategy
    rule : Switching
    momentum : str
        What becomes of the optimizer's momentum. At every hand-over, "zero" resets the optimizer's state, and
        all others keep it. While the second strategy is in force, n workers multiply the
        optimizer's coefficient by: "zero" and "keep" 1; "off" 0; "scaled" 1/n; "ramped" 1/n, 2/n, 4/n, ... up
        to 1; "ramped_additive" 1/n, 2/n, 3/n, ... up to 1.
    ramp_updates : int, updates, >= 1
        Updates under the second strategy from one value of a ramp to the next.
    cost_s : float, seconds, >= 0
        Time that the hand-over takes, in addition to draining.

    Notes
    -----
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

    #: policies under which the second strategy's updates use less momentum than the optimizer's
    REDUCED: ClassVar[tuple[str, ...]] = ("off", "scaled", "ramped", "ramped_additive")

    name: str = "strategy_switch"
    first: Strategy
    second: Strategy
    rule: Switching
    momentum: Literal["zero", "keep", "off", "scaled", "ramped", "ramped_additive"] = parameter(
        "zero",
        "the optimizer's momentum at the switch: reset, kept, or kept and reduced from then on",
        source="Strategy-Switch dumps only the model; Sync-Switch, ICDCS 2021",
    )
    ramp_updates: int = parameter(
        2000,
        "updates from one value of a ramp to the next",
        unit="updates",
        source="Sync-Switch, ICDCS 2021 (additive ramp)",
        ge=1,
    )
    cost_s: float = parameter(0.0, "time the hand-over takes, after draining", unit="s", ge=0)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise explain(error, type(self), "strategy") from None

    @field_validator("rule", mode="before")
    @classmethod
    def _rule(cls, value: Any) -> Part:
        return make_part("switching", value)

    @model_validator(mode="after")
    def _has_momentum_to_reduce(self) -> Self:
        if self.momentum in self.REDUCED and self.second.communication.local:
            raise ParameterError(
                f"strategy {self.name!r}: momentum {self.momentum!r} reduces the server's momentum, and the "
                f"workers of {self.second.name!r} step with optimizers of their own; use 'zero' or 'keep'"
            )
        return self

    def momentum_scale_of(self, index: int) -> MomentumScale | None:
        """Return how the optimizer's momentum is scaled under a composition; None if it is not."""
        return self._momentum_scale if index == 1 and self.momentum in self.REDUCED else None

    def _momentum_scale(self, updates: int, num_workers: int) -> float:
        """Return the factor of the momentum after so many updates under the second strategy.

        >>> from psbench.strategies import strategy_switch
        >>> ramp = strategy_switch(momentum="ramped", ramp_updates=10)._momentum_scale
        >>> [ramp(updates, 8) for updates in (0, 9, 10, 20, 30, 10**9)]
        [0.125, 0.125, 0.25, 0.5, 1.0, 1.0]
        """
        if self.momentum == "off":
            return 0.0
        stages = 0 if self.momentum == "scaled" else min(updates // self.ramp_updates, num_workers)
        parts = 2**stages if self.momentum == "ramped" else 1 + stages
        return min(1.0, parts / num_workers)

    @property
    def compositions(self) -> tuple[Strategy, ...]:
        """The compositions that may be in force."""
        return (self.first.under_rule(self.rule), self.second.under_rule(self.rule))

    def check(self, num_workers: int, global_batch: int) -> None:
        """Raise ParameterError if a part cannot work on a cluster of that size."""
        for strategy in self.compositions:
            strategy.check(num_workers, global_batch)
        self.rule.check(num_workers, global_batch)

    def spec(self) -> dict[str, Any]:
        """Return plain data from which an equal strategy can be made."""
        return {
            "name": self.name,
            "first": self.first.spec(),
            "second": self.second.spec(),
            "rule": self.rule.model_dump(mode="json"),
            "momentum": self.momentum,
            "ramp_updates": self.ramp_updates,
            "cost_s": self.cost_s,
        }


AnyStrategy: TypeAlias = Strategy | SwitchingStrategy
