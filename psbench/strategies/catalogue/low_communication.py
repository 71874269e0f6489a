"""Strategies with little communication: one bit per entry, or the result of many local steps.

Their papers take hundreds of local steps on large models; the defaults here are for runs of 500 to 2,000
steps. The paper's number stands beside each.
"""

from __future__ import annotations

from psbench.strategies import aggregation, communication, consistency
from psbench.strategies.catalogue.composition import Published
from psbench.strategies.codecs import ChunkedTopK, OneBit, TopK

#: Both directions with memory: what a worker's push loses is part of its next push, and what one difference
#: of the model loses on the way down is part of the next. The paper's server sends Q(v), v = mean + E; here
#: the server keeps the exact model, and what the workers hold differs from it by the paper's lr E. Which is
#: the same for a constant rate, but evaluated is the server's model. Our choice: 64 entries share two means
#: (1-bit SGD has two for every column of a matrix), since two for a whole model and momentum do not learn.
double_squeeze = Published(
    "double_squeeze",
    "bsp with 1-bit compression and error feedback in both directions",
    "Tang et al. 2019",
    [consistency.BSP],
    defaults={
        "codec": OneBit(bucket=64, error_feedback=True),
        "codec_down": OneBit(bucket=64, error_feedback=True),
    },
)

ef21 = Published(
    "ef21",
    "bsp that sends the compressed difference between each gradient and an estimate known to both sides",
    "Richtarik et al. 2021 (EF21)",
    [consistency.BSP, aggregation.GradientEstimates, communication.GradientDifferences],
    defaults={"codec": TopK(error_feedback=False)},
)

#: workers keep the state of their own optimizers; only the model is replaced
_KEPT = {"local_momentum": "kept"}

diloco = Published(
    "diloco",
    "workers take many local steps; the server applies their mean difference as a Nesterov step",
    "Douillard et al. 2023 (DiLoCo)",
    [consistency.BSP, aggregation.Outer, communication.LocalSGD],
    defaults=_KEPT | {"local_steps": 20},  # the paper: 500, with AdamW inside
)

streaming_diloco = Published(
    "streaming_diloco",
    "diloco that exchanges the model fragment by fragment while workers keep computing",
    "Douillard et al. 2025 (Streaming DiLoCo)",
    [consistency.BSP, aggregation.Outer, communication.Fragments],
    defaults={"outer_lr": 0.4},  # the paper sends 4 bits a value too: codec="e3m0"
)

#: the papers: 1 % or .5 % of the entries at a time, of models with millions of entries
loscar = Published(
    "loscar",
    "workers average a random share of the entries at a time and keep their own values of the others",
    "Maziane et al. 2026 (LOSCAR-SGD), Beton et al. 2025 (SPARTA)",
    [consistency.BSP, aggregation.Outer, communication.Fragments],
    defaults={
        **{"outer_optimizer": "plain", "outer_lr": 1.0, "outer_momentum": 0.0},
        **{"fragment_pattern": "random", "takes": "change", "first_push": "after_share"},
        **{"num_fragments": 5, "local_steps": 20, "overlap": 1},
    },
    also={"sparta": {"num_fragments": 20, "local_steps": 20, "overlap": 0}},
)

eager_diloco = Published(
    "eager_diloco",
    "diloco without waiting: workers step with their own new difference and the others' previous one",
    "Kale et al. 2025 (Eager updates)",
    [consistency.BSP, aggregation.EagerOuter, communication.Eager],
)

decoupled_diloco = Published(
    "decoupled_diloco",
    "streaming diloco that waits for a quorum and accepts partial work from slow workers",
    "Decoupled DiLoCo 2026",
    [consistency.Quorum, aggregation.RadialOuter, communication.AskedFragments],
)

sparse_loco = Published(
    "sparse_loco",
    "local steps whose differences are sent as 2-bit top-k values with error feedback",
    "Sarfi et al. 2025 (SparseLoCo)",
    [consistency.BSP, aggregation.SparseOuter, communication.LocalSGD],
    # the paper: 30 steps, and 64 of 4,096 entries of models with a hundred million
    defaults=_KEPT | {"local_steps": 15, "codec": ChunkedTopK()},
)

fedavgm = Published(
    "fedavgm",
    "federated averaging with momentum on the server",
    "Hsu et al. 2019 (FedAvgM)",
    [consistency.BSP, aggregation.Outer, communication.LocalSGD],
    defaults={"outer_optimizer": "heavy_ball", "outer_lr": 1.0, "outer_momentum": 0.9, "local_steps": 10},
)

fedadam = Published(
    "fedadam",
    "federated averaging with Adam on the server",
    "Reddi et al. 2021 (FedOpt)",
    [consistency.BSP, aggregation.Outer, communication.LocalSGD],
    defaults={"outer_optimizer": "adam", "outer_lr": 0.1, "outer_momentum": 0.9, "local_steps": 10},
)

slowmo = Published(
    "slowmo",
    "local steps, then an average with slow momentum over all averages",
    "Wang et al. 2020 (SlowMo)",
    [consistency.BSP, aggregation.BlockMomentum, communication.LocalSGD],
    defaults={"block_momentum": 0.7, "local_steps": 12, "local_momentum": "cleared"},
)

lookahead = Published(
    "lookahead",
    "k local steps, then a step back towards their starting point",
    "Zhang et al. 2019 (Lookahead)",
    [consistency.BSP, aggregation.Outer, communication.LocalSGD],
    defaults=_KEPT | {"outer_optimizer": "plain", "outer_lr": 0.5, "outer_momentum": 0.0, "local_steps": 5},
)

async_local_sgd = Published(
    "async_local_sgd",
    "workers push differences of many local steps without waiting; momentum is applied every few pushes",
    "Liu et al. 2024 (Async Local-SGD)",
    [consistency.Grace, aggregation.DelayedNesterov, communication.DynamicLocalSGD],
    defaults=_KEPT | {"local_steps": 20},
)

mla = Published(
    "mla",
    "workers push differences of many local steps without waiting; each is applied with averaged momentum",
    "Ajanthan et al. 2025 (MLA)",
    [consistency.ASP, aggregation.LookAheadOuter, communication.LocalSGD],
    defaults=_KEPT | {"local_steps": 20},
)

halos = Published(
    "halos",
    "async local sgd with two levels of servers: regional servers update locally, then send differences",
    "Kim et al. 2025 (HALoS)",
    [consistency.ASP, aggregation.TwoLevels, communication.RegionalSGD],
    defaults=_KEPT,
)

fedbuff = Published(
    "fedbuff",
    "the server buffers differences of local steps and updates after every k differences; no worker waits",
    "Nguyen et al. 2022 (FedBuff)",
    [consistency.KBatchASP, aggregation.FedBuff, communication.LocalSGD],
)

fedasync = Published(
    "fedasync",
    "the server mixes in each worker's model on arrival, with a smaller share if the model is stale",
    "Xie et al. 2019 (FedAsync)",
    [consistency.ASP, aggregation.FedAsync, communication.LocalSGD],
)

easgd = Published(
    "easgd",
    "local models, elastically pulled towards a shared centre model",
    "Zhang et al. 2015 (EASGD)",
    [consistency.ASP, aggregation.ElasticCentre, communication.Elastic],
    defaults=_KEPT,
)

dc_asgd = Published(
    "dc_asgd",
    "asp that corrects a stale gradient for the change of the model since its base version",
    "Zheng et al. 2017 (DC-ASGD)",
    [consistency.ASP, aggregation.DelayCompensated],
)
