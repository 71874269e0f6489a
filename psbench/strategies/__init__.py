"""The catalogue: published strategies as named compositions of parts, with the published defaults.

Call an entry to get a strategy; its parameters are those of its parts, and a keyword with the name of a
domain replaces that part::

    ssp(staleness_bound=5)
    asp(placement={"name": "parameter_server", "servers": 2})
    strategy_switch(first="all_reduce", second="asp", rule={"name": "empirical", "window": 5})
"""

from __future__ import annotations

from psbench.strategies import catalogue
from psbench.strategies.catalogue.batch_sizes import dbs_sgd as dbs_sgd
from psbench.strategies.catalogue.batch_sizes import drop_stragglers as drop_stragglers
from psbench.strategies.catalogue.batch_sizes import epsp as epsp
from psbench.strategies.catalogue.batch_sizes import flex_rr as flex_rr
from psbench.strategies.catalogue.batch_sizes import lb_bsp as lb_bsp
from psbench.strategies.catalogue.composition import Published as Published
from psbench.strategies.catalogue.entry import Entry as Entry
from psbench.strategies.catalogue.gossip import ad_psgd as ad_psgd
from psbench.strategies.catalogue.gossip import d_psgd as d_psgd
from psbench.strategies.catalogue.gossip import d_psgd_step_first as d_psgd_step_first
from psbench.strategies.catalogue.gossip import hierarchical_sgd as hierarchical_sgd
from psbench.strategies.catalogue.gossip import moshpit_sgd as moshpit_sgd
from psbench.strategies.catalogue.gossip import partial_reduce as partial_reduce
from psbench.strategies.catalogue.gossip import prague as prague
from psbench.strategies.catalogue.gossip import sgp as sgp
from psbench.strategies.catalogue.local_updates import adacomm as adacomm
from psbench.strategies.catalogue.local_updates import hermes as hermes
from psbench.strategies.catalogue.local_updates import local_sgd as local_sgd
from psbench.strategies.catalogue.local_updates import scaffold as scaffold
from psbench.strategies.catalogue.local_updates import selsync as selsync
from psbench.strategies.catalogue.low_communication import async_local_sgd as async_local_sgd
from psbench.strategies.catalogue.low_communication import dc_asgd as dc_asgd
from psbench.strategies.catalogue.low_communication import decoupled_diloco as decoupled_diloco
from psbench.strategies.catalogue.low_communication import diloco as diloco
from psbench.strategies.catalogue.low_communication import double_squeeze as double_squeeze
from psbench.strategies.catalogue.low_communication import eager_diloco as eager_diloco
from psbench.strategies.catalogue.low_communication import easgd as easgd
from psbench.strategies.catalogue.low_communication import ef21 as ef21
from psbench.strategies.catalogue.low_communication import fedadam as fedadam
from psbench.strategies.catalogue.low_communication import fedasync as fedasync
from psbench.strategies.catalogue.low_communication import fedavgm as fedavgm
from psbench.strategies.catalogue.low_communication import fedbuff as fedbuff
from psbench.strategies.catalogue.low_communication import halos as halos
from psbench.strategies.catalogue.low_communication import lookahead as lookahead
from psbench.strategies.catalogue.low_communication import loscar as loscar
from psbench.strategies.catalogue.low_communication import mla as mla
from psbench.strategies.catalogue.low_communication import slowmo as slowmo
from psbench.strategies.catalogue.low_communication import sparse_loco as sparse_loco
from psbench.strategies.catalogue.low_communication import streaming_diloco as streaming_diloco
from psbench.strategies.catalogue.make import CATALOGUE as CATALOGUE
from psbench.strategies.catalogue.make import domain_of as domain_of
from psbench.strategies.catalogue.make import make_strategy as make_strategy
from psbench.strategies.catalogue.make import named_spec as named_spec
from psbench.strategies.catalogue.make import register as register
from psbench.strategies.catalogue.make import second_names as second_names
from psbench.strategies.catalogue.switch import PublishedSwitch as PublishedSwitch
from psbench.strategies.catalogue.switch import later_switches as later_switches
from psbench.strategies.catalogue.switching import strategy_switch as strategy_switch
from psbench.strategies.catalogue.switching import sync_switch as sync_switch
from psbench.strategies.catalogue.time_optimal import malenia as malenia
from psbench.strategies.catalogue.time_optimal import ringmaster as ringmaster
from psbench.strategies.catalogue.transport import all_reduce as all_reduce
from psbench.strategies.catalogue.transport import fsdp as fsdp
from psbench.strategies.catalogue.transport import hogwild as hogwild
from psbench.strategies.catalogue.transport import map_reduce as map_reduce
from psbench.strategies.catalogue.transport import one_bit_adam as one_bit_adam
from psbench.strategies.catalogue.transport import power_sgd as power_sgd
from psbench.strategies.catalogue.waiting import asp as asp
from psbench.strategies.catalogue.waiting import backup_workers as backup_workers
from psbench.strategies.catalogue.waiting import bounded_step as bounded_step
from psbench.strategies.catalogue.waiting import bsp as bsp
from psbench.strategies.catalogue.waiting import con_sgd as con_sgd
from psbench.strategies.catalogue.waiting import dssp as dssp
from psbench.strategies.catalogue.waiting import dyn_sgd as dyn_sgd
from psbench.strategies.catalogue.waiting import early_epoch_stop as early_epoch_stop
from psbench.strategies.catalogue.waiting import elastic_bsp as elastic_bsp
from psbench.strategies.catalogue.waiting import k_asp as k_asp
from psbench.strategies.catalogue.waiting import k_batch_asp as k_batch_asp
from psbench.strategies.catalogue.waiting import k_batch_bsp as k_batch_bsp
from psbench.strategies.catalogue.waiting import k_bsp as k_bsp
from psbench.strategies.catalogue.waiting import n_softsync as n_softsync
from psbench.strategies.catalogue.waiting import osp as osp
from psbench.strategies.catalogue.waiting import psp as psp
from psbench.strategies.catalogue.waiting import ringleader as ringleader
from psbench.strategies.catalogue.waiting import ssp as ssp
from psbench.system.plugins import installed

# in the order in which lists show them
for _group in (
    *(
        catalogue.waiting,
        catalogue.time_optimal,
        catalogue.batch_sizes,
        catalogue.local_updates,
        catalogue.low_communication,
    ),
    *(catalogue.gossip, catalogue.transport, catalogue.switching),
):
    CATALOGUE.update({each.name: each for each in vars(_group).values() if isinstance(each, Entry)})
# modules of other packages: importing one registers its parts, and the entries that it hands to `register`
tuple(installed("psbench.strategies"))
