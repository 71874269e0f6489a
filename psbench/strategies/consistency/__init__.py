"""Consistency parts: when a push is committed, and which workers are released."""

from psbench.strategies.consistency.asp import ASP as ASP
from psbench.strategies.consistency.bsp import BSP as BSP
from psbench.strategies.consistency.dssp import DSSP as DSSP
from psbench.strategies.consistency.early_epoch_stop import EarlyEpochStop as EarlyEpochStop
from psbench.strategies.consistency.elastic_bsp import ElasticBSP as ElasticBSP
from psbench.strategies.consistency.grace import Grace as Grace
from psbench.strategies.consistency.groups import ArrivalGroups as ArrivalGroups
from psbench.strategies.consistency.groups import RandomGroups as RandomGroups
from psbench.strategies.consistency.hogwild import Hogwild as Hogwild
from psbench.strategies.consistency.k_async import KASP as KASP
from psbench.strategies.consistency.k_async import KBatchASP as KBatchASP
from psbench.strategies.consistency.k_async import NSoftsync as NSoftsync
from psbench.strategies.consistency.k_sync import KBSP as KBSP
from psbench.strategies.consistency.k_sync import BackupWorkers as BackupWorkers
from psbench.strategies.consistency.k_sync import KBatchBSP as KBatchBSP
from psbench.strategies.consistency.malenia import Malenia as Malenia
from psbench.strategies.consistency.neighbours import Neighbours as Neighbours
from psbench.strategies.consistency.psp import PSP as PSP
from psbench.strategies.consistency.quorum import Quorum as Quorum
from psbench.strategies.consistency.ringleader import Ringleader as Ringleader
from psbench.strategies.consistency.ringmaster import Ringmaster as Ringmaster
from psbench.strategies.consistency.ssp import SSP as SSP
