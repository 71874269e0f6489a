"""The pure core: events, actions, the cluster view, the engine that joins them, and the event log.

The module of a part imports from here.
"""

from psbench.core.actions import Action as Action
from psbench.core.actions import Apply as Apply
from psbench.core.actions import Cancel as Cancel
from psbench.core.actions import Commit as Commit
from psbench.core.actions import Discard as Discard
from psbench.core.actions import Drop as Drop
from psbench.core.actions import Hold as Hold
from psbench.core.actions import Measure as Measure
from psbench.core.actions import Note as Note
from psbench.core.actions import Orders as Orders
from psbench.core.actions import Readmit as Readmit
from psbench.core.actions import Release as Release
from psbench.core.actions import SetTimer as SetTimer
from psbench.core.actions import SwitchTo as SwitchTo
from psbench.core.actions import Tell as Tell
from psbench.core.arithmetic import Pushed as Pushed
from psbench.core.arithmetic import State as State
from psbench.core.arithmetic import Step as Step
from psbench.core.arithmetic import Vector as Vector
from psbench.core.arithmetic import WorkerStep as WorkerStep
from psbench.core.engine import Engine as Engine
from psbench.core.events import Evaluated as Evaluated
from psbench.core.events import Push as Push
from psbench.core.events import Report as Report
from psbench.core.events import SwitchRequested as SwitchRequested
from psbench.core.events import Vote as Vote
from psbench.core.log import EventLog as EventLog
from psbench.core.log import Kind as Kind
from psbench.core.own_steps import OwnSteps as OwnSteps
from psbench.core.part import Part as Part
from psbench.core.part import make_part as make_part
from psbench.core.parts import Aggregation as Aggregation
from psbench.core.parts import Communication as Communication
from psbench.core.parts import Consistency as Consistency
from psbench.core.parts import Placement as Placement
from psbench.core.parts import Selection as Selection
from psbench.core.parts import Stragglers as Stragglers
from psbench.core.parts import Switching as Switching
from psbench.core.selection import ByNeighbourhood as ByNeighbourhood
from psbench.core.selection import Memory as Memory
from psbench.core.selection import Neighbourhoods as Neighbourhoods
from psbench.core.selection import SampleGroups as SampleGroups
from psbench.core.selection import of_groups as of_groups
from psbench.core.selection import reported as reported
from psbench.core.specification import Specification as Specification
from psbench.core.specification import parameter as parameter
from psbench.core.strategy import Strategy as Strategy
from psbench.core.switching_strategy import AnyStrategy as AnyStrategy
from psbench.core.switching_strategy import SwitchingStrategy as SwitchingStrategy
from psbench.core.view import ClusterView as ClusterView
from psbench.core.view import Status as Status
from psbench.core.worker_policy import Directive as Directive
from psbench.core.worker_policy import WorkerPolicy as WorkerPolicy
