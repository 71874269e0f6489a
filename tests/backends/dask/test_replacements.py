"""What a live run needs its evaluator for, and what it does without one."""

from __future__ import annotations

from typing import Any

import pytest

from psbench.backends.dask.coordinator.peers import Replacements
from psbench.backends.dask.protocol.messages import Incident, RoleLost
from psbench.backends.dask.protocol.roles import EVALUATOR, roles_of
from psbench.errors import BackendError
from psbench.experiment import Experiment


class Socket:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, name: str, message: Any) -> None:
        self.sent.append(message)


@pytest.mark.parametrize(
    ("changes", "reader"),
    [
        ({"strategy": "asp"}, ""),
        ({"strategy": "selsync"}, ""),
        ({"strategy": {"name": "strategy_switch", "rule": {"name": "after"}}}, ""),
        ({"strategy": {"name": "strategy_switch", "rule": "empirical"}}, "empirical"),
        ({"strategy": "hermes"}, "hermes"),
        ({"strategy": "adacomm"}, "adacomm"),
        ({"strategy": "asp", "stop": {"epochs": 3, "target_accuracy": 0.9}}, "target_accuracy"),
        ({"strategy": "asp", "stop": {"epochs": 3, "patience": 2}}, "patience"),
    ],
    ids=lambda value: str(value),
)
def test_a_run_ends_without_an_evaluator_only_if_a_rule_reads_it(changes: Any, reader: str) -> None:
    experiment = Experiment(backend="dask", **changes)
    socket = Socket()
    roles = Replacements(experiment, socket, roles_of(experiment))  # type: ignore[arg-type]
    roles.lose(EVALUATOR, 1.5, "was lost")
    assert socket.sent == [Incident("evaluator was lost at 1.5 s"), RoleLost(EVALUATOR)]
    if reader:
        with pytest.raises(BackendError, match=f"the evaluator was lost and .*{reader}.* needs it"):
            roles.give_up(EVALUATOR)
    else:
        roles.give_up(EVALUATOR)
    roles.find(EVALUATOR, 2.0)
    assert socket.sent[-1] == Incident("evaluator has joined on another Dask worker at 2.0 s")
