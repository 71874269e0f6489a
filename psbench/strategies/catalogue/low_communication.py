"""Strategies that send little: a bit an entry, or what many steps of a worker by itself have come to.

Their papers take hundreds of local steps on large models; the defaults here are for runs of 500 to 2,000
steps. The paper's number stands beside each.
"""

from __future__ import annotations

from psbench.strategies import aggregation, communication, consistency
from psbench.strategies.catalogue.composition import Published
from psbench.strategies.codecs import ChunkedTopK, OneBit

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
)

#: workers keep the state of their own optimizers; only the model is replaced
_KEPT = {"local_momentum": "kept"}

diloco = Published(
    "diloco",
    "every worker takes many steps by itself; their mean difference is a Nesterov step of the model",
    "Douillard et al. 2023 (DiLoCo)",
    [consistency.BSP, aggregation.Outer, communication.LocalSGD],
    defaults=_KEPT | {"local_steps": 20},  # the paper: 500, with AdamW inside
)

streaming_diloco = Published(
    "streaming_diloco",
    "diloco whose model is exchanged fragment by fragment, while the workers compute on",
    "Douillard et al. 2025 (Streaming DiLoCo)",
    [consistency.BSP, aggregation.Outer, communication.Fragments],
    defaults={"outer_lr": 0.4},  # the paper sends 4 bits a value too: codec="e3m0"
)

eager_diloco = Published(
    "eager_diloco",
    "diloco whose workers do not wait: they step with their own new share and the others' last one",
    "Kale et al. 2025 (Eager updates)",
    [consistency.BSP, aggregation.EagerOuter, communication.Eager],
)

decoupled_diloco = Published(
    "decoupled_diloco",
    "streaming diloco that waits for some workers only, and asks slow ones for what they have by then",
    "Decoupled DiLoCo 2026",
    [consistency.Quorum, aggregation.RadialOuter, communication.AskedFragments],
)

sparse_loco = Published(
    "sparse_loco",
    "local steps whose differences are sent as their largest entries, in 2 bits each; the rest is sent later",
    "Sarfi et al. 2025 (SparseLoCo)",
    [consistency.BSP, aggregation.SparseOuter, communication.LocalSGD],
    # the paper: 30 steps, and 64 of 4,096 entries of models with a hundred million
    defaults=_KEPT | {"local_steps": 15, "codec": ChunkedTopK()},
)

fedavgm = Published(
    "fedavgm",
    "federated averaging whose server takes the mean difference as a step with momentum",
    "Hsu et al. 2019 (FedAvgM)",
    [consistency.BSP, aggregation.Outer, communication.LocalSGD],
    defaults={"outer_optimizer": "heavy_ball", "outer_lr": 1.0, "outer_momentum": 0.9, "local_steps": 10},
)

fedadam = Published(
    "fedadam",
    "federated averaging whose server takes the mean difference as a step of Adam",
    "Reddi et al. 2021 (FedOpt)",
    [consistency.BSP, aggregation.Outer, communication.LocalSGD],
    defaults={"outer_optimizer": "adam", "outer_lr": 0.1, "outer_momentum": 0.9, "local_steps": 10},
)

slowmo = Published(
    "slowmo",
    "local steps, an average, and a slow momentum of what all averages together did",
    "Wang et al. 2020 (SlowMo)",
    [consistency.BSP, aggregation.BlockMomentum, communication.LocalSGD],
    defaults={"block_momentum": 0.7, "local_steps": 12, "local_momentum": "cleared"},
)

lookahead = Published(
    "lookahead",
    "k steps forward, then a step back towards where they began",
    "Zhang et al. 2019 (Lookahead)",
    [consistency.BSP, aggregation.Outer, communication.LocalSGD],
    defaults=_KEPT | {"outer_optimizer": "plain", "outer_lr": 0.5, "outer_momentum": 0.0, "local_steps": 5},
)

async_local_sgd = Published(
    "async_local_sgd",
    "workers push what many steps did whenever they have done it; the momentum waits for several pushes",
    "Liu et al. 2024 (Async Local-SGD)",
    [consistency.Grace, aggregation.DelayedNesterov, communication.DynamicLocalSGD],
    defaults=_KEPT | {"local_steps": 20},
)

halos = Published(
    "halos",
    "async local sgd on servers in two levels: regions step by themselves and send what that came to",
    "Kim et al. 2025 (HALoS)",
    [consistency.ASP, aggregation.TwoLevels, communication.RegionalSGD],
    defaults=_KEPT,
)

fedbuff = Published(
    "fedbuff",
    "differences of many steps are buffered, and every k of them make a version; no worker waits",
    "Nguyen et al. 2022 (FedBuff)",
    [consistency.KBatchASP, aggregation.FedBuff, communication.LocalSGD],
)

fedasync = Published(
    "fedasync",
    "the model moves towards each worker's when it arrives, the less the staler it is",
    "Xie et al. 2019 (FedAsync)",
    [consistency.ASP, aggregation.FedAsync, communication.LocalSGD],
)

easgd = Published(
    "easgd",
    "workers keep models of their own, and springs hold them to a centre that follows them",
    "Zhang et al. 2015 (EASGD)",
    [consistency.ASP, aggregation.ElasticCentre, communication.Elastic],
    defaults=_KEPT,
)

dc_asgd = Published(
    "dc_asgd",
    "asp in which a stale gradient is corrected by how far the model has moved since",
    "Zheng et al. 2017 (DC-ASGD)",
    [consistency.ASP, aggregation.DelayCompensated],
)
