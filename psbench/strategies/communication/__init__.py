"""Communication parts: when a worker pushes."""

import psbench.strategies.codecs  # noqa: F401  (so that codecs are known by name)
from psbench.strategies.communication.adacomm import AdaComm as AdaComm
from psbench.strategies.communication.answered_sgd import AnsweredSGD as AnsweredSGD
from psbench.strategies.communication.answered_sgd import RegionalSGD as RegionalSGD
from psbench.strategies.communication.asked_fragments import AskedFragments as AskedFragments
from psbench.strategies.communication.corrected_sgd import CorrectedSGD as CorrectedSGD
from psbench.strategies.communication.dynamic_local_sgd import DynamicLocalSGD as DynamicLocalSGD
from psbench.strategies.communication.eager import Eager as Eager
from psbench.strategies.communication.elastic import Elastic as Elastic
from psbench.strategies.communication.every_step import EveryStep as EveryStep
from psbench.strategies.communication.fragments import Fragments as Fragments
from psbench.strategies.communication.gossip_steps import MixThenStep as MixThenStep
from psbench.strategies.communication.gossip_steps import StepThenMix as StepThenMix
from psbench.strategies.communication.gradient_differences import GradientDifferences as GradientDifferences
from psbench.strategies.communication.hermes_gup import HermesGUP as HermesGUP
from psbench.strategies.communication.local_sgd import LocalSGD as LocalSGD
from psbench.strategies.communication.micro_steps import MicroSteps as MicroSteps
from psbench.strategies.communication.osp import OSP as OSP
from psbench.strategies.communication.selsync import SelSync as SelSync
