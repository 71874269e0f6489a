"""See, measure and learn how data-parallel training behaves under different synchronisation strategies.

`notebooks/site/glossary.md` defines the terms that all docstrings use.

>>> import psbench as ps
>>> ssp = ps.strategies.ssp(staleness_bound=3)
>>> run = ps.run(ps.Experiment(strategy=ssp, data="digits", stop={"epochs": 1}))
>>> run.summary()["status"]
'finished'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from psbench.system.private_apis import defer_grammar

defer_grammar()

if TYPE_CHECKING:
    from psbench import strategies
    from psbench.backends.control import Control
    from psbench.causes import why
    from psbench.core.log import EventLog
    from psbench.core.stop import Stop
    from psbench.core.strategy import Strategy
    from psbench.core.switching_strategy import SwitchingStrategy
    from psbench.data.own.entry import data
    from psbench.detached import attach, submit
    from psbench.errors import BackendError, DataError, ProtocolError, PsbenchError, SpecError
    from psbench.experiment import Experiment
    from psbench.optimal import optimal_time
    from psbench.results.comparison import Comparison
    from psbench.results.report import write_report
    from psbench.results.run import Run
    from psbench.runs.comparing import compare
    from psbench.runs.execution import resume, run
    from psbench.runs.recount import recount
    from psbench.runs.replaying import replay
    from psbench.runs.sweeps.sweep import Sweep, sweep
    from psbench.twin import predict

    __version__: str

#: which module has which names; it is loaded when one of them is first asked for, so that
#: `import psbench` needs neither torch nor anything else that is large
_NAMES = {
    "psbench.backends.control": ("Control",),
    "psbench.causes": ("why",),
    "psbench.core.log": ("EventLog",),
    "psbench.core.stop": ("Stop",),
    "psbench.core.strategy": ("Strategy",),
    "psbench.core.switching_strategy": ("SwitchingStrategy",),
    "psbench.detached": ("attach", "submit"),
    "psbench.errors": ("BackendError", "DataError", "ProtocolError", "PsbenchError", "SpecError"),
    "psbench.experiment": ("Experiment",),
    "psbench.optimal": ("optimal_time",),
    "psbench.results.comparison": ("Comparison",),
    "psbench.results.report": ("write_report",),
    "psbench.results.run": ("Run",),
    "psbench.runs.comparing": ("compare",),
    "psbench.runs.execution": ("resume", "run"),
    "psbench.runs.recount": ("recount",),
    "psbench.runs.replaying": ("replay",),
    "psbench.runs.sweeps.sweep": ("Sweep", "sweep"),
    "psbench.twin": ("predict",),
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
    "attach",
    "compare",
    "data",
    "optimal_time",
    "predict",
    "recount",
    "replay",
    "resume",
    "run",
    "strategies",
    "submit",
    "sweep",
    "why",
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
    home = next(module for module, names in _NAMES.items() if name in names)
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
