"""The pure core: events, actions, the cluster view, the engine that joins them, and the event log.

Whoever writes a part imports from here.
"""

from psbench.core.actions import (
    Action,
    Apply,
    Cancel,
    Commit,
    Discard,
    Drop,
    Hold,
    Measure,
    Note,
    Readmit,
    Release,
    SetTimer,
    SwitchTo,
    Tell,
)
from psbench.core.engine import Engine
from psbench.core.events import Evaluated, Push, Report, Vote
from psbench.core.log import EventLog, Kind
from psbench.core.part import (
    Aggregation,
    Communication,
    Consistency,
    Directive,
    Placement,
    Stragglers,
    Switching,
    WorkerPolicy,
    parameter,
)
from psbench.core.strategy import Strategy, SwitchingStrategy
from psbench.core.view import ClusterView, Status

__all__ = [
    "Action",
    "Aggregation",
    "Apply",
    "Cancel",
    "ClusterView",
    "Commit",
    "Communication",
    "Consistency",
    "Directive",
    "Discard",
    "Drop",
    "Engine",
    "Evaluated",
    "EventLog",
    "Hold",
    "Kind",
    "Measure",
    "Note",
    "Placement",
    "Push",
    "Readmit",
    "Release",
    "Report",
    "SetTimer",
    "Status",
    "Stragglers",
    "Strategy",
    "SwitchTo",
    "Switching",
    "SwitchingStrategy",
    "Tell",
    "Vote",
    "WorkerPolicy",
    "parameter",
]
