"""Strategies without a server, whose workers exchange models with neighbours in a graph, or in groups."""

from __future__ import annotations

from psbench.strategies import aggregation, communication, consistency, placement
from psbench.strategies.catalogue.composition import Published

d_psgd = Published(
    "d_psgd",
    "no server: each worker averages its model with its neighbours' while it computes a step",
    "Lian et al. 2017 (D-PSGD)",
    [consistency.Neighbours, aggregation.NeighbourAverage, communication.MixThenStep, placement.Gossip],
)

d_psgd_step_first = Published(
    "d_psgd_step_first",
    "d_psgd that steps before it averages; on a complete graph it equals bsp",
    "Lian et al. 2017 (D-PSGD); Assran et al. 2019 (SGP)",
    [consistency.Neighbours, aggregation.NeighbourAverage, communication.StepThenMix, placement.Gossip],
)

ad_psgd = Published(
    "ad_psgd",
    "no server, no waiting: a worker averages its model with one neighbour's at any time",
    "Lian et al. 2018 (AD-PSGD)",
    [consistency.ASP, aggregation.PairAverage, communication.MixThenStep, placement.Gossip],
)

sgp = Published(
    "sgp",
    "no server: each worker pushes a share of its model to one peer and sums what it receives",
    "Assran et al. 2019 (SGP)",
    [consistency.Neighbours, aggregation.PushSum, communication.StepThenMix, placement.Gossip],
    defaults={"graph": "one_peer_exponential"},
)

moshpit_sgd = Published(
    "moshpit_sgd",
    "no server: workers average in small groups along each axis of a grid, which gives a global average",
    "Ryabinin et al. 2021 (Moshpit SGD)",
    [consistency.Neighbours, aggregation.NeighbourAverage, communication.StepThenMix, placement.Gossip],
    defaults={"graph": "moshpit"},
)

hierarchical_sgd = Published(
    "hierarchical_sgd",
    "no server: workers average often in small groups and less often in large ones",
    "Ryabinin et al. 2021 (Moshpit SGD)",
    [consistency.Neighbours, aggregation.NeighbourAverage, communication.StepThenMix, placement.Gossip],
    defaults={"graph": "hierarchical"},
)

partial_reduce = Published(
    "partial_reduce",
    "no server: the first few finished workers average their models without waiting for the others",
    "Miao et al. 2021 (partial reduce); thesis 3.4",
    [consistency.ArrivalGroups, aggregation.GroupAverage, communication.StepThenMix, placement.Peers],
)

prague = Published(
    "prague",
    "no server: workers average in random groups; groups with a common member take turns",
    "Luo et al. 2020 (Prague); thesis 3.4",
    [consistency.RandomGroups, aggregation.GroupAverage, communication.StepThenMix, placement.Peers],
)
