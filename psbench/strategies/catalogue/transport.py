"""Strategies that differ in the content of messages, and in their path."""

from __future__ import annotations

from psbench.strategies import aggregation, consistency, placement
from psbench.strategies.catalogue.composition import Published

all_reduce = Published(
    "all_reduce",
    "no server: workers sum their gradients in a ring",
    "Patarasuk and Yuan 2009; thesis 2.1.2",
    [consistency.BSP, placement.AllReduce],
)

fsdp = Published(
    "fsdp",
    "all_reduce with model and optimizer state sharded over workers; parameters are gathered twice a step",
    "Rajbhandari et al. 2020 (ZeRO); Zhao et al. 2023 (FSDP)",
    [consistency.BSP, placement.Sharded],
)

power_sgd = Published(
    "power_sgd",
    "all_reduce of low-rank factors of the gradients of large tensors",
    "Vogels et al. 2019 (PowerSGD)",
    [consistency.BSP, aggregation.PowerSGD, placement.AllReduce],
)

one_bit_adam = Published(
    "one_bit_adam",
    "all_reduce with Adam; once its variance is frozen, momentum is sent in 1 bit per entry",
    "Tang et al. 2021 (1-bit Adam)",
    [consistency.BSP, aggregation.OneBitAdam, placement.AllReduce],
)

map_reduce = Published(
    "map_reduce",
    "a driver starts a job for every mini-batch: map over the partitions, then reduce",
    "Spark MLlib; thesis ch. 2",
    [consistency.BSP, placement.MapReduce],
)

hogwild = Published(
    "hogwild",
    "no server: workers of one host update one model in its memory without locks, and overwrite each other",
    "Recht et al. 2011; thesis 3.1",
    [consistency.Hogwild, aggregation.LastWrite, placement.SharedMemory],
)
