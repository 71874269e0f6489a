"""Strategies that differ in when pushes make a version, and in who waits for it."""

from __future__ import annotations

from psbench.strategies import aggregation, communication, consistency
from psbench.strategies.catalogue.composition import Published

bsp = Published(
    "bsp",
    "all workers wait for each other after every step",
    "Valiant 1990; thesis 2.1.2",
    [consistency.BSP],
)

asp = Published(
    "asp",
    "no worker waits",
    "thesis eq. 2.3",
    [consistency.ASP],
)

ssp = Published(
    "ssp",
    "a worker may lead the slowest by a bounded number of steps",
    "Ho et al. 2013",
    [consistency.SSP],
)

k_bsp = Published(
    "k_bsp",
    "the first k workers make the version; the others' work is void",
    "Dutta et al. 2018 (K-sync); thesis 3.2.2",
    [consistency.KBSP],
)

k_batch_bsp = Published(
    "k_batch_bsp",
    "the first k mini-batches make the version; other work is void",
    "Dutta et al. 2018 (K-batch-sync); thesis 3.2.2",
    [consistency.KBatchBSP],
)

backup_workers = Published(
    "backup_workers",
    "a barrier that does without the last few: their gradients are dropped",
    "Chen et al. 2016",
    [consistency.BackupWorkers],
)

k_asp = Published(
    "k_asp",
    "k workers make a version, whatever they started from, and wait for it",
    "Dutta et al. 2018 (K-async); thesis 3.2.2",
    [consistency.KASP],
)

k_batch_asp = Published(
    "k_batch_asp",
    "every k pushes make a version; no worker waits",
    "Dutta et al. 2018 (K-batch-async), Lian et al. 2015; thesis 3.2.2",
    [consistency.KBatchASP],
)

dssp = Published(
    "dssp",
    "ssp whose fastest worker is granted more steps where that shortens its wait",
    "Zhao et al. 2019, DSSP",
    [consistency.DSSP],
)

elastic_bsp = Published(
    "elastic_bsp",
    "barriers where the workers' pushes are predicted to fall together, and asp in between",
    "Zhao et al. 2019, ElasticBSP; Zhao et al. 2021",
    [consistency.ElasticBSP],
)

n_softsync = Published(
    "n_softsync",
    "about n versions while every worker pushes once; stale pushes count for less",
    "Gupta et al. 2016; Zhang et al. 2016; thesis 3.2.2",
    [consistency.NSoftsync, aggregation.StalenessWeighted],
)

con_sgd = Published(
    "con_sgd",
    "ssp in which every push moves the model by its n-th part",
    "Jiang et al. 2017",
    [consistency.SSP],
)

dyn_sgd = Published(
    "dyn_sgd",
    "ssp in which a push is divided by its staleness",
    "Jiang et al. 2017",
    [consistency.SSP, aggregation.DynSGD],
)

bounded_step = Published(
    "bounded_step",
    "asp in which a push counts for less the further the model has moved meanwhile",
    "Dutta et al. 2018; thesis 3.2.2",
    [consistency.ASP, aggregation.BoundedStep],
)

osp = Published(
    "osp",
    "bsp whose workers step on by themselves while their gradients are on the way",
    "Wang, Guo, Li 2019",
    [consistency.BSP, aggregation.Accumulated, communication.OSP],
)

early_epoch_stop = Published(
    "early_epoch_stop",
    "asp that meets at the end of every epoch, which is when most workers have done their share",
    "Chilimbi et al. 2014, Project Adam; thesis 3.2.5",
    [consistency.EarlyEpochStop],
)
