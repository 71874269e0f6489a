"""Strategies in which workers do not all wait for each other."""

from __future__ import annotations

from psbench.strategies import aggregation, consistency
from psbench.strategies.catalogue.composition import Published

asp = Published(
    "asp",
    "no worker waits",
    "thesis eq. 2.3",
    [consistency.ASP],
    notebook="02_consistency",
)

ssp = Published(
    "ssp",
    "a worker may lead the slowest by a bounded number of steps",
    "Ho et al. 2013",
    [consistency.SSP],
    notebook="02_consistency",
)

k_asp = Published(
    "k_asp",
    "k workers make a version, whatever they started from, and wait for it",
    "Dutta et al. 2018 (K-async); thesis 3.2.2",
    [consistency.KASP],
    notebook="02_consistency",
)

k_batch_asp = Published(
    "k_batch_asp",
    "every k pushes make a version; no worker waits",
    "Dutta et al. 2018 (K-batch-async), Lian et al. 2015; thesis 3.2.2",
    [consistency.KBatchASP],
    notebook="02_consistency",
)

dssp = Published(
    "dssp",
    "ssp whose fastest worker is granted more steps where that shortens its wait",
    "Zhao et al. 2019, DSSP",
    [consistency.DSSP],
    notebook="13_late_gradients",
)

elastic_bsp = Published(
    "elastic_bsp",
    "barriers where the workers' pushes are predicted to fall together, and asp in between",
    "Zhao et al. 2019, ElasticBSP; Zhao et al. 2021",
    [consistency.ElasticBSP],
    notebook="13_late_gradients",
)

n_softsync = Published(
    "n_softsync",
    "about n versions while every worker pushes once; stale pushes count for less",
    "Gupta et al. 2016; Zhang et al. 2016; thesis 3.2.2",
    [consistency.NSoftsync, aggregation.StalenessWeighted],
    notebook="13_late_gradients",
)

con_sgd = Published(
    "con_sgd",
    "ssp in which every push moves the model by its n-th part",
    "Jiang et al. 2017",
    [consistency.SSP],
    notebook="13_late_gradients",
)

dyn_sgd = Published(
    "dyn_sgd",
    "ssp in which a push is divided by its staleness",
    "Jiang et al. 2017",
    [consistency.SSP, aggregation.DynSGD],
    notebook="13_late_gradients",
)

bounded_step = Published(
    "bounded_step",
    "asp in which a push counts for less the further the model has moved meanwhile",
    "Dutta et al. 2018; thesis 3.2.2",
    [consistency.ASP, aggregation.BoundedStep],
    notebook="13_late_gradients",
)

early_epoch_stop = Published(
    "early_epoch_stop",
    "asp that meets at the end of every epoch, which is when most workers have done their share",
    "Chilimbi et al. 2014, Project Adam; thesis 3.2.5",
    [consistency.EarlyEpochStop],
    notebook="13_late_gradients",
)
