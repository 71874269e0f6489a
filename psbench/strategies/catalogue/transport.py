"""Strategies that differ in what travels, and by which way."""

from __future__ import annotations

from psbench.strategies import aggregation, consistency, placement
from psbench.strategies.catalogue.composition import Published
from psbench.strategies.codecs import OneBit

#: Both directions with memory: what a worker's push loses is part of its next push, and what one difference
#: of the model loses on the way down is part of the next. The paper's server sends Q(v), v = mean + E; here
#: the server keeps the exact model, and what the workers hold differs from it by the paper's lr E. Which is
#: the same for a constant rate, but evaluated is the server's model. Our choice: 64 entries share two means
#: (1-bit SGD has two for every column of a matrix), since two for a whole model and momentum do not learn.
double_squeeze = Published(
    "double_squeeze",
    "bsp in one bit an entry, up and down; what is lost is part of what is sent next",
    "Tang et al. 2019",
    [consistency.BSP],
    defaults={
        "codec": OneBit(bucket=64, error_feedback=True),
        "codec_down": OneBit(bucket=64, error_feedback=True),
    },
    notebook="11_compression",
)

all_reduce = Published(
    "all_reduce",
    "no server: workers add up their gradients in a ring",
    "Patarasuk and Yuan 2009; thesis 2.1.2",
    [consistency.BSP, placement.AllReduce],
    notebook="03_strategy_switch",
)

fsdp = Published(
    "fsdp",
    "all_reduce whose workers hold a share of model and state each, and gather parameters twice a step",
    "Rajbhandari et al. 2020 (ZeRO); Zhao et al. 2023 (FSDP)",
    [consistency.BSP, placement.Sharded],
    notebook="16_low_communication",
)

power_sgd = Published(
    "power_sgd",
    "all_reduce of matrices of few columns, whose products stand for the gradients of large tensors",
    "Vogels et al. 2019 (PowerSGD)",
    [consistency.BSP, aggregation.PowerSGD, placement.AllReduce],
)

one_bit_adam = Published(
    "one_bit_adam",
    "all_reduce with Adam, whose momentum travels in one bit an entry once its variance is frozen",
    "Tang et al. 2021 (1-bit Adam)",
    [consistency.BSP, aggregation.OneBitAdam, placement.AllReduce],
)

map_reduce = Published(
    "map_reduce",
    "a driver starts a job for every mini-batch: map over the partitions, then reduce",
    "Spark MLlib; thesis ch. 2",
    [consistency.BSP, placement.MapReduce],
    notebook="12_mapreduce_vs_ps",
)
