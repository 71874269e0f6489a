"""The pure core: events, actions, the cluster view, the engine that joins them, and the event log.

The module of a part imports from here.
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
    Orders,
    Readmit,
    Release,
    SetTimer,
    SwitchTo,
    Tell,
)
from psbench.core.arithmetic import Pushed, State, Step, Vector, WorkerStep
from psbench.core.engine import Engine
from psbench.core.events import Evaluated, Push, Report, SwitchRequested, Vote
from psbench.core.log import EventLog, Kind
from psbench.core.own_steps import OwnSteps
from psbench.core.part import Part, make_part
from psbench.core.parts import Aggregation, Communication, Consistency, Placement, Stragglers, Switching
from psbench.core.specification import Specification, parameter
from psbench.core.strategy import Strategy
from psbench.core.switching_strategy import AnyStrategy, SwitchingStrategy
from psbench.core.view import ClusterView, Status
from psbench.core.worker_policy import Directive, WorkerPolicy

__all__ = [
    "Action",
    "Aggregation",
    "AnyStrategy",
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
    "Orders",
    "OwnSteps",
    "Part",
    "Placement",
    "Push",
    "Pushed",
    "Readmit",
    "Release",
    "Report",
    "SetTimer",
    "Specification",
    "State",
    "Status",
    "Step",
    "Stragglers",
    "Strategy",
    "SwitchRequested",
    "SwitchTo",
    "Switching",
    "SwitchingStrategy",
    "Tell",
    "Vector",
    "Vote",
    "WorkerPolicy",
    "WorkerStep",
    "make_part",
    "parameter",
]
