"""When a worker pushes."""

import psbench.codecs  # noqa: F401  (so that codecs are known by name)
from psbench.communication.adacomm import AdaComm
from psbench.communication.every_step import EveryStep
from psbench.communication.hermes_gup import HermesGUP
from psbench.communication.local_sgd import LocalSGD
from psbench.communication.micro_steps import MicroSteps
from psbench.communication.osp import OSP
from psbench.communication.selsync import SelSync

__all__ = ["OSP", "AdaComm", "EveryStep", "HermesGUP", "LocalSGD", "MicroSteps", "SelSync"]
