"""Selection of the samples in a worker's next mini-batch, and neighbourhoods of samples."""

from psbench.strategies.selection.curriculum import Curriculum as Curriculum
from psbench.strategies.selection.data_aware import DataAware as DataAware
from psbench.strategies.selection.importance import Importance as Importance
from psbench.strategies.selection.instance_hardness import InstanceHardness as InstanceHardness
from psbench.strategies.selection.neighbourhoods import ByClass as ByClass
from psbench.strategies.selection.neighbourhoods import ByColumn as ByColumn
from psbench.strategies.selection.neighbourhoods import KMeansNeighbourhoods as KMeansNeighbourhoods
from psbench.strategies.selection.online_batch import OnlineBatch as OnlineBatch
from psbench.strategies.selection.recency_bias import RecencyBias as RecencyBias
from psbench.strategies.selection.reshuffle import Reshuffle as Reshuffle
from psbench.strategies.selection.with_replacement import WithReplacement as WithReplacement
