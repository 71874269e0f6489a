"""The pure core: events, actions, the cluster view, the engine that joins them, and the event log.

Whoever writes a part imports from here.
"""

from psbench.core.actions import (
    Action,
    Apply,
    Cancel,
    Commit,
    Discard,
    Hold,
    Measure,
    Note,
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
    "Engine",
    "Evaluated",
    "EventLog",
    "Hold",
    "Kind",
    "Measure",
    "Note",
    "Placement",
    "Push",
    "Release",
    "Report",
    "Status",
    "Stragglers",
    "Strategy",
    "SwitchTo",
    "Switching",
    "SwitchingStrategy",
    "Tell",
    "Vote",
    "Wake",
    "WorkerHalf",
    "parameter",
]
