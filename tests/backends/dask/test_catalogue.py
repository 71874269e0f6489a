"""Every strategy of the catalogue, live in threads: as it is, and with lossy codecs on two servers.

What depends on steps alone has the bits of virtual time.
"""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
import torch
from threaded_run import ThreadedRun
from toybox import at_night

from psbench.backends.control import Control
from psbench.backends.simulated.simulation import run_simulated
from psbench.core.log import EventLog, Kind
from psbench.core.part import Part
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.switching_strategy import SwitchingStrategy
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.runs.replaying import replay
from psbench.strategies import CATALOGUE
from psbench.training.build import Workload

CODECS = [
    *({"name": "fp16"}, {"name": "top_k", "ratio": 0.1}, {"name": "random_k", "ratio": 0.1}),
    *({"name": "terngrad"}, {"name": "qsgd", "levels": 16}, {"name": "sign"}, {"name": "one_bit"}),
]
ASSIGNMENTS = ["contiguous", "layer", "hash", "size_threshold", "best_fit"]
#: its jobs need Dask: test_map_reduce_jobs.py
NAMES = sorted(set(CATALOGUE) - {"map_reduce"})


def kinds_of(name: str) -> set[type[Part]]:
    """Return the parts of an entry that act where vectors are; the others decide, live as elsewhere."""
    compositions = CATALOGUE[name]().compositions
    acting = [part for c in compositions for part in (c.aggregation, c.communication, c.placement)]
    return {type(part) for part in (*acting, *(c.communication.codec for c in compositions))}


#: entries with a part that none before has; the others run at night
FIRST = [
    name for at, name in enumerate(NAMES) if kinds_of(name) - set[type]().union(*map(kinds_of, NAMES[:at]))
]
WITHOUT_SERVER = [
    n for n in NAMES if any(isinstance(c.placement, PeerToPeer) for c in CATALOGUE[n]().compositions)
]
#: a barrier's, or neighbours', whose parts look at seconds, or whose last models are of the moment
OF_SECONDS = {
    "drop_stragglers",
    "epsp",
    "flex_rr",
    "lb_bsp",
    "osp",
    "strategy_switch",
    "sync_switch",
    "d_psgd",
}
#: a ring adds vectors up, and workers without a server mix models, which these codecs' bits do not allow
WITH_SERVERS = sorted(
    set(NAMES) - {"all_reduce", "fsdp", "power_sgd", "one_bit_adam", "hogwild", *WITHOUT_SERVER}
)
CASES = list(zip(WITH_SERVERS, cycle(CODECS), cycle(ASSIGNMENTS), strict=False))
#: every codec and every assignment twice; the others run at night
SOME = CASES[::3]
#: an entry whose defaults are for longer runs: chunks so small that one is done in a moment
SMALLER = {
    "hermes": {"chunk_samples": 48, "passes": 1, "alpha": -0.1, "patience": 1},
    "halos": {"pushes_per_exchange": 1, "global_lr": 1.0},
    "hogwild": {"write_s": 0},  # live, a write takes the time that it takes
}
#: the stalest push of a busy machine still leads downhill
SMALL_STEPS = {"name": "sgd", "lr": 0.02}
HALFWAY = {"rule": {"name": "after", "fraction": 0.5}}


def trained(strategy: dict[str, Any]) -> ThreadedRun:
    """Run on two workers and check what holds for every strategy."""
    spec = Experiment(
        strategy=strategy,
        cluster={"workers": 2, "step_time": "constant"},
        batch_size=24,
        optimizer=SMALL_STEPS,
        stop={"epochs": 0.3},
        evaluate_every=0.15,
        backend="dask",
    )
    done = ThreadedRun(spec).run()
    assert done.error is None
    assert done.outcome.status == "finished", done.outcome.reason
    assert torch.isfinite(done.parameters).all()
    evaluations = done.log.evaluations()
    assert evaluations[0]["train_loss"] > evaluations[-1]["train_loss"] > 0
    facts = Workload.build(spec).facts()
    assert replay(Run(spec, done.log, facts)) == len(done.log)  # the same decisions, from the log alone
    return done


@pytest.mark.by_day(12)
@pytest.mark.parametrize("name", [*FIRST, *at_night(*(name for name in NAMES if name not in FIRST))])
def test_every_entry_trains_live_and_is_replayed(name: str) -> None:
    switch = HALFWAY if name == "strategy_switch" else {}
    done = trained({"name": name} | SMALLER.get(name, {}) | switch)
    first = CATALOGUE[name]().compositions[0]
    rows = done.log.rows()
    # of so short a run one worker may do all, where the strategy does not have it wait
    pushed = set(rows["worker"][rows["kind"] == Kind.PUSH].tolist())
    assert pushed == {0, 1} or (pushed and first.consistency.name in {"asp", "grace", "hogwild"})
    if first.consistency.name in {"bsp", "neighbours"} and name not in OF_SECONDS:
        simulated = run_simulated(Workload.build(done.experiment), EventLog(), Control())
        assert torch.equal(done.parameters, simulated.parameters)


def compressed(name: str, codec: dict[str, Any], assignment: str) -> dict[str, Any]:
    made = CATALOGUE[name]().compositions[0]
    whole = made.aggregation.per_tensor  # whose tensors are not cut
    servers = {"name": "parameter_server", "servers": 1 if whole else 2, "assignment": assignment}
    if made.sends_fragments or made.aggregation.reply == "answer":
        codec = {"name": "fp16"}  # others keep whole vectors, or what was sent before
    parts = {"codec": codec, "codec_down": codec, "placement": servers}
    strategy = {"name": name} | SMALLER.get(name, {})
    if isinstance(CATALOGUE[name](), SwitchingStrategy):
        return strategy | HALFWAY | {"first": {"name": "bsp"} | parts, "second": {"name": "asp"} | parts}
    return strategy | parts


@pytest.mark.by_day(6)
@pytest.mark.parametrize(
    ("name", "codec", "assignment"),
    [case if case in SOME else pytest.param(*case, marks=pytest.mark.nightly) for case in CASES],
    ids=str,
)
def test_any_codec_and_any_assignment_on_any_strategy(name, codec, assignment) -> None:
    trained(compressed(name, codec, assignment))
