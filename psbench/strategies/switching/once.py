"""Base of rules that switch once, and of rules that need the number of epochs."""

from __future__ import annotations

from pydantic import PrivateAttr

from psbench.core import Action, ClusterView, Switching, SwitchRequested, SwitchTo
from psbench.errors import ParameterError


class SwitchOnce(Switching):
    """Base of rules that switch once; a manual switch takes precedence."""

    _done: bool = PrivateAttr(default=False)

    def on_switch_requested(self, event: SwitchRequested, view: ClusterView) -> list[Action]:
        """Switch now; the rule never switches by itself after that."""
        self._done = True
        return super().on_switch_requested(event, view)

    def _switch_once(self, reason: str) -> list[Action]:
        self._done = True
        return [SwitchTo(1, reason)]


def without_epochs(rule: str) -> ParameterError:
    return ParameterError(
        f"switch rule {rule!r} needs to know the number of epochs: set stop.epochs, or use 'empirical'"
    )
