"""How many files a gradient passes on its way from the trainer to the update.

A file counts if a function of it is given a vector, returns one, or calls a function that does, between the
end of a step and `Server.apply`. A codec counts as one file, whatever it is made of, and so does the protocol
that carries messages between processes. `partition` does not count, which only cuts vectors and joins them,
as a slice or `torch.cat` does, and neither does `update`, which is torch's optimizer or stands for it, nor
what a part computes: that is the algorithm.
"""

import dataclasses
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from threaded_run import ThreadedRun

import psbench
from psbench import strategies
from psbench.backends.control import Control
from psbench.backends.dask.protocol.payloads import new_payload
from psbench.backends.dask.worker.exchange import ServerExchange
from psbench.backends.simulated.simulation import run_simulated
from psbench.core.log import EventLog
from psbench.testing import toy_experiment
from psbench.training.build import Workload
from psbench.training.server import Server
from psbench.training.trainer import Trainer

ROOT = Path(psbench.__file__).parent
#: what codecs are made of, beside the state of their senders and receivers
CODEC = {"base", "bits", "buckets", "floats", "quantised", "signs", "sparse", "tensors"}


def has_vector(value):
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return len(value.shape) > 0 and getattr(value.dtype, "names", None) is None  # rows of a log are none
    if isinstance(value, (list, tuple)):
        return any(map(has_vector, value))
    is_data = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_data and any(has_vector(getattr(value, field.name)) for field in dataclasses.fields(value))


def file_of(frame):
    """Return the file of a function of psbench, "codec" for all that a codec is made of, else None."""
    path = Path(frame.f_code.co_filename)
    if ROOT not in path.parents or path.stem in ("partition", "update"):
        return None
    if path.is_relative_to(ROOT / "core") or path.parent.name in ("aggregation", "communication"):
        return None
    if path.parent.name == "protocol":
        return "protocol"
    return "codec" if path.parent.name == "codecs" and path.stem in CODEC else path.stem


def moves_vector(frame, event, returned):
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = [frame.f_locals.get(name) for name in names if name != "self"]
    return has_vector(returned if event == "return" else given)


class PathOfPush:
    """A profiler that notes the files that a push has passed: each process's part of its last one.

    A process has the push from the end of a step, or from when it reads a payload, until the update, or until
    it has sent the push. Here every process of a live run is a thread.
    """

    def __init__(self):
        self.files, self._here = [], threading.local()

    def __call__(self, frame, event, returned):
        code, here = frame.f_code, self._here
        begins = event == "return" and code is Trainer.compute.__code__
        if begins or code is new_payload.__code__:
            here.passed = set()
        passed = getattr(here, "passed", None)
        if passed is None or event not in ("call", "return") or file_of(frame) is None:
            return
        if moves_vector(frame, event, returned):
            passed |= {file_of(frame), file_of(frame.f_back)} - {None}
        if code is Server.apply.__code__ or (event == "return" and code is ServerExchange.push.__code__):
            self.files.append(passed)
            here.passed = None


def files_passed(strategy):
    one_worker = {"workers": 1, "step_time": "constant"}
    workload = Workload.build(toy_experiment(strategy, cluster=one_worker, stop={"updates": 2}, processes=1))
    workload.server()  # the first optimizer of a process takes seconds to build
    path, before = PathOfPush(), sys.getprofile()
    sys.setprofile(path)
    try:
        run_simulated(workload, EventLog(), Control())
    finally:
        sys.setprofile(before)
    return path.files[-1]


def files_passed_live(strategy):
    """Return the files passed by a push of a run whose worker and servers are a thread each."""
    one_worker = {"workers": 1, "step_time": "constant"}
    run = ThreadedRun(toy_experiment(strategy, cluster=one_worker, stop={"updates": 2}, backend="dask"))
    path, before = PathOfPush(), threading.getprofile()
    threading.setprofile(path)
    try:
        run.run()
    finally:
        threading.setprofile(before)
    assert run.error is None
    return path.files


def test_a_gradient_passes_five_files_in_the_plain_simulator():
    assert files_passed("asp") == {"trainer", "workers", "exchange", "simulated_cluster", "server"}


@pytest.mark.parametrize(("codec", "servers"), [("top_k", 1), ("top_k", 2), ("qsgd", 2), ("fp16", 2)])
def test_a_gradient_passes_ten_files_with_local_steps_and_a_codec(codec, servers):
    strategy = strategies.local_sgd(local_steps=2, codec=codec, codec_down=codec, servers=servers)
    worker = {"trainer", "workers", "local_model", "local_steps", "exchange"}
    others = {"compression", "codec_state", "codec", "simulated_cluster", "server", "absent", "piecewise"}
    assert files_passed(strategy) == worker | others


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("strategy", [strategies.asp, strategies.local_sgd])
def test_a_gradient_passes_eleven_files_live_with_a_codec(strategy, servers):
    found = files_passed_live(strategy(codec="top_k", codec_down="top_k", servers=servers))
    sent = {"trainer", "worker", "local_model", "local_steps", "exchange", "compression", "codec_state"}
    sent |= {"codec", "protocol"}
    sent |= {"absent", "piecewise"} if strategy is strategies.local_sgd else set()
    applied = {"protocol", "parameter_slice", "codec_state", "codec", "server"}
    assert len(found) >= 2 * (1 + servers)  # two pushes, each sent once and applied by every server
    assert {frozenset(part) for part in found} == {frozenset(sent | {"server"}), frozenset(applied)}
    assert len((sent | applied) - {"absent", "piecewise"}) == 11  # two more where workers step by themselves
