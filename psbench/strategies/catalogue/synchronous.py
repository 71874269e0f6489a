"""Strategies with a barrier, or whose late work is void."""

from __future__ import annotations

from psbench.strategies import consistency
from psbench.strategies.catalogue.composition import Published

bsp = Published(
    "bsp",
    "all workers wait for each other after every step",
    "Valiant 1990; thesis 2.1.2",
    [consistency.BSP],
    notebook="02_consistency",
)

k_bsp = Published(
    "k_bsp",
    "the first k workers make the version; the others' work is void",
    "Dutta et al. 2018 (K-sync); thesis 3.2.2",
    [consistency.KBSP],
    notebook="02_consistency",
)

k_batch_bsp = Published(
    "k_batch_bsp",
    "the first k mini-batches make the version; other work is void",
    "Dutta et al. 2018 (K-batch-sync); thesis 3.2.2",
    [consistency.KBatchBSP],
    notebook="02_consistency",
)

backup_workers = Published(
    "backup_workers",
    "a barrier that does without the last few: their gradients are dropped",
    "Chen et al. 2016",
    [consistency.BackupWorkers],
    notebook="13_late_gradients",
)
