"""Strategies that differ in when pushes are committed, and in which workers wait."""

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
    "update with the first k gradients of each round; discard the rest",
    "Dutta et al. 2018 (K-sync), Begunov and Tyurin 2026 (m-synchronous SGD); thesis 3.2.2",
    [consistency.KBSP],
    also={"m_sync": {}},
)

k_batch_bsp = Published(
    "k_batch_bsp",
    "update with the first k mini-batches of each round; cancel the rest",
    "Dutta et al. 2018 (K-batch-sync), Tyurin and Richtarik 2023 (Rennala SGD); thesis 3.2.2",
    [consistency.KBatchBSP],
    also={"rennala": {"cancel": "on_arrival"}},
)

backup_workers = Published(
    "backup_workers",
    "bsp that does not wait for the last few workers of each round and drops their gradients",
    "Chen et al. 2016",
    [consistency.BackupWorkers],
)

k_asp = Published(
    "k_asp",
    "update with the gradients of any k workers, stale or not; only those k wait for the new model",
    "Dutta et al. 2018 (K-async); thesis 3.2.2",
    [consistency.KASP],
)

k_batch_asp = Published(
    "k_batch_asp",
    "update with every k gradients that arrive; no worker waits",
    "Dutta et al. 2018 (K-batch-async), Lian et al. 2015; thesis 3.2.2",
    [consistency.KBatchASP],
)

dssp = Published(
    "dssp",
    "ssp that grants the fastest worker extra steps when they shorten its wait",
    "Zhao et al. 2019, DSSP",
    [consistency.DSSP],
)

elastic_bsp = Published(
    "elastic_bsp",
    "asp with a barrier where the workers' pushes are predicted to arrive close together",
    "Zhao et al. 2019, ElasticBSP; Zhao et al. 2021",
    [consistency.ElasticBSP],
)

n_softsync = Published(
    "n_softsync",
    "about n updates for every push of each worker; stale gradients have smaller weights",
    "Gupta et al. 2016; Zhang et al. 2016; thesis 3.2.2",
    [consistency.NSoftsync, aggregation.StalenessWeighted],
)

con_sgd = Published(
    "con_sgd",
    "ssp in which each gradient is scaled by 1/n",
    "Jiang et al. 2017",
    [consistency.SSP],
)

dyn_sgd = Published(
    "dyn_sgd",
    "ssp in which each gradient is divided by its staleness plus 1",
    "Jiang et al. 2017",
    [consistency.SSP, aggregation.DynSGD],
)

bounded_step = Published(
    "bounded_step",
    "asp in which the weight of a gradient decreases with the distance that the model has moved since",
    "Dutta et al. 2018; thesis 3.2.2",
    [consistency.ASP, aggregation.BoundedStep],
)

osp = Published(
    "osp",
    "bsp whose workers take local steps while their gradients are being exchanged",
    "Wang, Guo, Li 2019",
    [consistency.BSP, aggregation.Accumulated, communication.OSP],
)

ringleader = Published(
    "ringleader",
    "one update per worker and round, along the mean of all workers' gradients; no worker waits",
    "Maranjyan and Richtarik 2026 (Ringleader ASGD)",
    [consistency.Ringleader, aggregation.GradientTable],
)

early_epoch_stop = Published(
    "early_epoch_stop",
    "asp with a barrier at the end of each epoch, which ends once most workers have finished their share",
    "Chilimbi et al. 2014, Project Adam; thesis 3.2.5",
    [consistency.EarlyEpochStop],
)

psp = Published(
    "psp",
    "each worker waits only for a few workers, which it draws at random after every step",
    "Wang et al. 2017 (PSP)",
    [consistency.PSP],
)
