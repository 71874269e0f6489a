"""The catalogue: published strategies as named compositions of parts, with the published defaults.

Call an entry to get a strategy; its parameters are those of its parts, and a keyword with the name of a
domain replaces that part::

    ssp(staleness_bound=5)
    asp(placement={"name": "parameter_server", "servers": 2})
    strategy_switch(first="all_reduce", second="asp", rule={"name": "empirical", "window": 5})
"""

from __future__ import annotations

from psbench.strategies import catalogue
from psbench.strategies.catalogue.batch_sizes import dbs_sgd, drop_stragglers, flex_rr, lb_bsp
from psbench.strategies.catalogue.composition import Published
from psbench.strategies.catalogue.entry import Entry
from psbench.strategies.catalogue.gossip import (
    ad_psgd,
    d_psgd,
    d_psgd_step_first,
    hierarchical_sgd,
    moshpit_sgd,
    sgp,
)
from psbench.strategies.catalogue.local_updates import adacomm, hermes, local_sgd, selsync
from psbench.strategies.catalogue.low_communication import (
    async_local_sgd,
    dc_asgd,
    decoupled_diloco,
    diloco,
    double_squeeze,
    eager_diloco,
    easgd,
    fedadam,
    fedasync,
    fedavgm,
    fedbuff,
    halos,
    lookahead,
    slowmo,
    sparse_loco,
    streaming_diloco,
)
from psbench.strategies.catalogue.make import CATALOGUE, make_strategy
from psbench.strategies.catalogue.switch import PublishedSwitch, later_switches
from psbench.strategies.catalogue.switching import strategy_switch, sync_switch
from psbench.strategies.catalogue.transport import all_reduce, fsdp, map_reduce, one_bit_adam, power_sgd
from psbench.strategies.catalogue.waiting import (
    asp,
    backup_workers,
    bounded_step,
    bsp,
    con_sgd,
    dssp,
    dyn_sgd,
    early_epoch_stop,
    elastic_bsp,
    k_asp,
    k_batch_asp,
    k_batch_bsp,
    k_bsp,
    n_softsync,
    osp,
    ssp,
)

# in the order in which lists show them
for _group in (
    *(catalogue.waiting, catalogue.batch_sizes, catalogue.local_updates, catalogue.low_communication),
    *(catalogue.gossip, catalogue.transport, catalogue.switching),
):
    CATALOGUE.update({each.name: each for each in vars(_group).values() if isinstance(each, Entry)})

__all__ = [
    "CATALOGUE",
    "Entry",
    "Published",
    "PublishedSwitch",
    "ad_psgd",
    "adacomm",
    "all_reduce",
    "asp",
    "async_local_sgd",
    "backup_workers",
    "bounded_step",
    "bsp",
    "con_sgd",
    "d_psgd",
    "d_psgd_step_first",
    "dbs_sgd",
    "dc_asgd",
    "decoupled_diloco",
    "diloco",
    "double_squeeze",
    "drop_stragglers",
    "dssp",
    "dyn_sgd",
    "eager_diloco",
    "early_epoch_stop",
    "easgd",
    "elastic_bsp",
    "fedadam",
    "fedasync",
    "fedavgm",
    "fedbuff",
    "flex_rr",
    "fsdp",
    "halos",
    "hermes",
    "hierarchical_sgd",
    "k_asp",
    "k_batch_asp",
    "k_batch_bsp",
    "k_bsp",
    "later_switches",
    "lb_bsp",
    "local_sgd",
    "lookahead",
    "make_strategy",
    "map_reduce",
    "moshpit_sgd",
    "n_softsync",
    "one_bit_adam",
    "osp",
    "power_sgd",
    "selsync",
    "sgp",
    "slowmo",
    "sparse_loco",
    "ssp",
    "strategy_switch",
    "streaming_diloco",
    "sync_switch",
]
