"""When is a push committed, and who may go on."""

from psbench.consistency.asp import ASP
from psbench.consistency.bsp import BSP
from psbench.consistency.dssp import DSSP
from psbench.consistency.early_epoch_stop import EarlyEpochStop
from psbench.consistency.elastic_bsp import ElasticBSP
from psbench.consistency.k_async import KASP, KBatchASP, NSoftsync
from psbench.consistency.k_sync import KBSP, BackupWorkers, KBatchBSP
from psbench.consistency.ssp import SSP

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
    "KBatchASP",
    "KBatchBSP",
    "NSoftsync",
]
