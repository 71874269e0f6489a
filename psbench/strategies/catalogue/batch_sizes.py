"""Strategies that give slow workers less to do."""

from __future__ import annotations

from psbench.strategies import communication, consistency, stragglers
from psbench.strategies.catalogue.composition import Published

dbs_sgd = Published(
    "dbs_sgd",
    "asp whose batch sizes follow the workers' speeds",
    "DBS-SGD, AEJ 2022",
    [consistency.ASP, stragglers.DBS],
)

lb_bsp = Published(
    "lb_bsp",
    "bsp that redistributes the global batch at every barrier in proportion to the workers' speeds",
    "Chen et al. 2018, 2020",
    [consistency.BSP, stragglers.LBBSP],
)

drop_stragglers = Published(
    "drop_stragglers",
    "bsp that drops workers much slower than the others",
    "Zhang et al. 2017, Poseidon; thesis 3.2.5",
    [consistency.BSP, stragglers.DropStragglers],
)

flex_rr = Published(
    "flex_rr",
    "bsp in which a lagging worker hands part of its batch to one that is ahead",
    "Harlap et al. 2016, FlexRR; thesis 3.2.5",
    [consistency.BSP, communication.MicroSteps, stragglers.FlexRR],
)

epsp = Published(
    "epsp",
    "bsp in which the fastest workers compute part of the batches of stragglers",
    "Zhou et al. 2019 (Falcon); thesis 3.2.5",
    [consistency.BSP, stragglers.ElasticParallelism],
)
