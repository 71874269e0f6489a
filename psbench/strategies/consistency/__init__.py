"""When is a push committed, and who may go on."""

from psbench.strategies.consistency.asp import ASP
from psbench.strategies.consistency.bsp import BSP
from psbench.strategies.consistency.dssp import DSSP
from psbench.strategies.consistency.early_epoch_stop import EarlyEpochStop
from psbench.strategies.consistency.elastic_bsp import ElasticBSP
from psbench.strategies.consistency.grace import Grace
from psbench.strategies.consistency.k_async import KASP, KBatchASP, NSoftsync
from psbench.strategies.consistency.k_sync import KBSP, BackupWorkers, KBatchBSP
from psbench.strategies.consistency.neighbours import Neighbours
from psbench.strategies.consistency.quorum import Quorum
from psbench.strategies.consistency.ssp import SSP

__all__ = [
    "ASP",
    "BSP",
    "DSSP",
    "KASP",
    "KBSP",
    "SSP",
    "BackupWorkers",
    "EarlyEpochStop",
    "ElasticBSP",
    "Grace",
    "KBatchASP",
    "KBatchBSP",
    "NSoftsync",
    "Neighbours",
    "Quorum",
]
