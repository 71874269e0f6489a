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
    SwitchTo,
    Tell,
    Wake,
)
from psbench.core.engine import Engine
from psbench.core.events import Evaluated, Push, Report, Vote
from psbench.core.log import EventLog, Kind
from psbench.core.part import (
    Aggregation,
    Communication,
    Consistency,
    Placement,
    Stragglers,
    Switching,
    Verdict,
    WorkerHalf,
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
    "Status",
    "Stragglers",
    "Strategy",
    "SwitchTo",
    "Switching",
    "SwitchingStrategy",
    "Tell",
    "Verdict",
    "Vote",
    "Wake",
    "WorkerHalf",
    "parameter",
]
