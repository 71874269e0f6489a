"""When a worker pushes."""

import psbench.strategies.codecs  # noqa: F401  (so that codecs are known by name)
from psbench.strategies.communication.adacomm import AdaComm
from psbench.strategies.communication.asked_fragments import AskedFragments
from psbench.strategies.communication.dynamic_local_sgd import DynamicLocalSGD
from psbench.strategies.communication.eager import Eager
from psbench.strategies.communication.elastic import Elastic
from psbench.strategies.communication.every_step import EveryStep
from psbench.strategies.communication.fragments import Fragments
from psbench.strategies.communication.gossip_steps import MixThenStep, StepThenMix
from psbench.strategies.communication.hermes_gup import HermesGUP
from psbench.strategies.communication.local_sgd import LocalSGD
from psbench.strategies.communication.micro_steps import MicroSteps
from psbench.strategies.communication.osp import OSP
from psbench.strategies.communication.regional_sgd import RegionalSGD
from psbench.strategies.communication.selsync import SelSync

__all__ = [
    "OSP",
    "AdaComm",
    "AskedFragments",
    "DynamicLocalSGD",
    "Eager",
    "Elastic",
    "EveryStep",
    "Fragments",
    "HermesGUP",
    "LocalSGD",
    "MicroSteps",
    "MixThenStep",
    "RegionalSGD",
    "SelSync",
    "StepThenMix",
]
