"""See, measure and learn how data-parallel training behaves under different synchronisation strategies.

>>> import psbench as ps
>>> ssp = ps.strategies.ssp(staleness_bound=3)
>>> run = ps.run(ps.Experiment(strategy=ssp, data="digits", stop={"epochs": 1}))
>>> run.summary()["status"]
'finished'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from psbench.system.insides import defer_grammar

defer_grammar()

if TYPE_CHECKING:
    from psbench import strategies as strategies
    from psbench.backends.control import Control as Control
    from psbench.core.log import EventLog as EventLog
    from psbench.core.stop import Stop as Stop
    from psbench.core.strategy import Strategy as Strategy
    from psbench.core.switching_strategy import SwitchingStrategy as SwitchingStrategy
    from psbench.data.own.entry import data as data
    from psbench.errors import BackendError as BackendError
    from psbench.errors import DataError as DataError
    from psbench.errors import ProtocolError as ProtocolError
    from psbench.errors import PsbenchError as PsbenchError
    from psbench.errors import SpecError as SpecError
    from psbench.experiment import Experiment as Experiment
    from psbench.results.comparison import Comparison as Comparison
    from psbench.results.report import write_report as write_report
    from psbench.results.run import Run as Run
    from psbench.runs.comparing import compare as compare
    from psbench.runs.execution import resume as resume
    from psbench.runs.execution import run as run
    from psbench.runs.replaying import replay as replay
    from psbench.runs.sweeps.sweep import Sweep as Sweep
    from psbench.runs.sweeps.sweep import sweep as sweep
    from psbench.twin.predict import predict as predict

    __version__: str

#: where each name lives; a module is loaded when one of its names is first asked for, so that
#: `import psbench` needs neither torch nor anything else that is large
_HOMES = {
    "BackendError": "psbench.errors",
    "Comparison": "psbench.results.comparison",
    "Control": "psbench.backends.control",
    "DataError": "psbench.errors",
    "EventLog": "psbench.core.log",
    "Experiment": "psbench.experiment",
    "ProtocolError": "psbench.errors",
    "PsbenchError": "psbench.errors",
    "Run": "psbench.results.run",
    "SpecError": "psbench.errors",
    "Stop": "psbench.core.stop",
    "Strategy": "psbench.core.strategy",
    "Sweep": "psbench.runs.sweeps.sweep",
    "SwitchingStrategy": "psbench.core.switching_strategy",
    "predict": "psbench.twin.predict",
    "compare": "psbench.runs.comparing",
    "replay": "psbench.runs.replaying",
    "resume": "psbench.runs.execution",
    "run": "psbench.runs.execution",
    "sweep": "psbench.runs.sweeps.sweep",
    "write_report": "psbench.results.report",
}

__all__ = [
    "BackendError",
    "Comparison",
    "Control",
    "DataError",
    "EventLog",
    "Experiment",
    "ProtocolError",
    "PsbenchError",
    "Run",
    "SpecError",
    "Stop",
    "Strategy",
    "Sweep",
    "SwitchingStrategy",
    "__version__",
    "compare",
    "data",
    "predict",
    "replay",
    "resume",
    "run",
    "strategies",
    "sweep",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'psbench' has no attribute {name!r}")
    value = globals()[name] = _load(name)
    return value


def _load(name: str) -> Any:
    if name in ("strategies", "data"):  # the latter is a module that may be called
        return import_module(f"psbench.{name}")
    if name == "__version__":
        return import_module("importlib.metadata").version("psbench")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
