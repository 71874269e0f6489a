"""Strategies whose workers take local steps between exchanges."""

from __future__ import annotations

from psbench.strategies import aggregation, communication, consistency, stragglers
from psbench.strategies.catalogue.composition import Published

local_sgd = Published(
    "local_sgd",
    "workers take several local steps, then average their models (PASGD)",
    "Wang and Joshi 2019, AdaComm, eq. 1",
    [consistency.BSP, aggregation.ModelAverage, communication.LocalSGD],
)

scaffold = Published(
    "scaffold",
    "local_sgd whose steps are corrected by control variates, so that workers with unlike data do not drift",
    "Karimireddy et al. 2020 (SCAFFOLD)",
    [consistency.BSP, aggregation.ControlVariates, communication.CorrectedSGD],
)

adacomm = Published(
    "adacomm",
    "local_sgd that averages more often as the training loss falls",
    "Wang and Joshi 2019, AdaComm",
    [consistency.BSP, aggregation.BlockMomentum, communication.AdaComm],
    defaults={"block_momentum": 0.0},
)

selsync = Published(
    "selsync",
    "workers take local steps until one worker's gradients change markedly; then all models are averaged",
    "Tyagi and Swany 2023",
    [consistency.BSP, aggregation.Exchange, communication.SelSync],
)

hermes = Published(
    "hermes",
    "asp whose workers push only clear improvements; their data shares follow their speeds",
    "Basani et al., Hermes",
    [consistency.ASP, aggregation.LossWeighted, communication.HermesGUP, stragglers.DualBinarySearch],
)
