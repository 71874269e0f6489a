"""Entries that move between live servers, with all that is kept of them."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.aggregation.own_arithmetic import DiLoCo
from threaded_run import ThreadedRun
from toybox import at_night

from psbench.backends.control import Control
from psbench.backends.dask.protocol.instructions import Outbox
from psbench.backends.dask.protocol.messages import GiveEntries, MeasureLoad, StateReply, TakeEntries
from psbench.backends.dask.server.parameter_server import ParameterServerStore
from psbench.backends.dask.server.store import state_of
from psbench.backends.partition import Partition, gather, partitions_of
from psbench.backends.simulated.simulation import run_simulated
from psbench.core.actions import Action, Drop, Readmit
from psbench.core.log import EventLog, Kind
from psbench.core.parts import Stragglers
from psbench.core.view import ClusterView
from psbench.experiment import Experiment
from psbench.metrics import reassignments, server_loads
from psbench.runs.execution import run
from psbench.runs.replaying import replay
from psbench.training.build import Workload

pytestmark = pytest.mark.usefixtures("one_torch_thread")

MLP = {"name": "mlp", "hidden": [12]}


def experiment(strategy: Any, servers: int = 2, moves: bool = True, **changes: Any) -> Experiment:
    placement = {"name": "parameter_server", "servers": servers, "assignment": "layer"}
    if moves:
        placement["reassignment"] = {"name": "by_load", "every": 3, "threshold": 1.05}
    settings: dict[str, Any] = {
        "strategy": strategy | {"placement": placement},
        "model": MLP,
        "cluster": {"workers": 3, "step_time": "constant"},
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
        "batch_size": 24,
        "stop": {"updates": 16},
        "backend": "dask",
    }
    return Experiment(**settings | changes)


def simulated(spec: Experiment, log: EventLog | None = None) -> Any:
    return run_simulated(Workload.build(spec), EventLog() if log is None else log, Control())


@pytest.fixture
def lame_first_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Server 0 takes three times as long for an entry as the others, whatever this machine does."""

    def loads(self: ParameterServerStore, then: Any) -> None:
        entries = [part.size for part in self._parts]
        self._ask(MeasureLoad, lambda _: then([3.0 * entries[0], *map(float, entries[1:])]))

    monkeypatch.setattr(ParameterServerStore, "loads", loads)


def moves_of(done: ThreadedRun) -> list[str]:
    return [done.log.text(int(row["text"])) for row in done.log.rows() if row["kind"] == Kind.REASSIGN]


@pytest.mark.usefixtures("lame_first_server")
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_the_model_is_that_of_a_run_in_which_nothing_moves(name: str) -> None:
    """Bit by bit: what the optimizer remembers of an entry goes with it."""
    optimizer = {"name": name, "lr": 0.05} | ({"momentum": 0.9} if name == "sgd" else {})
    done = ThreadedRun(experiment({"name": "bsp"}, servers=3, optimizer=optimizer)).run()
    still = experiment({"name": "bsp"}, servers=3, moves=False, optimizer=optimizer)
    assert len(moves_of(done)) == 1
    assert torch.equal(done.parameters, simulated(still).parameters)


@pytest.mark.by_day(3)
@pytest.mark.usefixtures("lame_first_server")
@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "bsp", "codec": "top_k", "codec_down": "top_k"},
        {"name": "bsp", "codec": "one_bit"},
        {"name": "double_squeeze"},
        {"name": "bsp", "codec_down": "qsgd"},  # whose random numbers go on and are not drawn again
        {"name": "local_sgd", "local_steps": 2, "codec": "top_k", "codec_down": "fp16"},
        {"name": "selsync", "delta": 0.0, "aggregate": "gradient"},  # which is sent after the move
    ],
    ids=lambda strategy: "-".join(map(str, strategy.values())),
)
def test_residuals_move_with_their_entries(strategy: Any) -> None:
    """Live as in virtual time, where the loads are scripted alike by a link that is three times as slow."""
    spec = experiment(strategy)
    done = ThreadedRun(spec).run()
    cluster = {"workers": 3, "step_time": "constant", "server_bandwidth_mbit_s": [1.0, 3.0]}
    virtual = simulated(spec.but(backend="simulated", cluster=cluster), log := EventLog())
    assert len(moves_of(done)) == 1
    assert torch.equal(done.parameters, virtual.parameters)
    for kind in (Kind.PUSH, Kind.RELEASE):
        found, expected = (each.of_kind(kind)["bytes"] for each in (done.log, log))
        assert sorted(found.tolist()) == sorted(expected.tolist())


class DropsOnce(Stragglers):
    """Toy: drops worker 2 with version 7, and takes it back two versions later."""

    name: ClassVar[str] = "drops_once"

    def on_applied(self, view: ClusterView) -> list[Action]:
        if view.version == 7:
            return [Drop(2, "toy")]
        return [Readmit(2)] if view.version == 9 else []


@pytest.mark.usefixtures("lame_first_server")
def test_a_worker_that_is_taken_back_knows_where_entries_are() -> None:
    """It has forgotten what it computed, and cut its pushes as before the entries moved."""
    moves, still = (experiment({"name": "bsp"}, 3, each, stop={"updates": 14}) for each in (True, False))
    drops = {"consistency": "bsp", "aggregation": "mean", "stragglers": DropsOnce()}
    made = [drops | {"placement": each.strategy.placement} for each in (moves, still)]
    done = ThreadedRun(moves.but(strategy=made[0])).run()
    assert done.error is None
    assert len(moves_of(done)) == len(done.log.of_kind(Kind.READMIT)["row"]) == 1
    assert torch.equal(done.parameters, simulated(still.but(strategy=made[1])).parameters)


@pytest.mark.usefixtures("lame_first_server")
@pytest.mark.parametrize("name", ["ssp", "k_bsp", "osp", *at_night("asp", "k_asp")])
def test_nobody_is_lost_on_the_way(name: str) -> None:
    done = ThreadedRun(experiment({"name": name}, stop={"updates": 20})).run()
    assert done.error is None
    assert done.outcome.status == "finished"
    assert len(moves_of(done)) == 1
    assert torch.isfinite(done.parameters).all()


@pytest.mark.usefixtures("lame_first_server")
def test_so_do_the_vectors_of_a_part_of_ones_own() -> None:
    """The velocity goes with its entries, and the number of rounds stays where it is."""
    strategy = {"consistency": "bsp", "communication": "local_sgd", "aggregation": DiLoCo()}
    done = ThreadedRun(experiment(strategy, servers=3)).run()
    assert done.error is None
    assert len(moves_of(done)) == 1
    still = simulated(experiment(strategy, servers=3, moves=False))
    assert torch.equal(done.parameters, still.parameters)


def test_nobody_is_released_before_all_servers_hold_their_entries() -> None:
    """A worker that keeps its model pushes at once, and what is not as long as the slice is dropped."""
    spec = experiment({"name": "asp"}, moves=False)
    workload = Workload.build(spec)
    before = spec.strategy.placement.ranges(workload.model.layout)
    after = [*before[::-1]]
    out = Outbox()
    state = state_of(workload.server(), states=True)
    store, done = ParameterServerStore(out, workload, 0, state, itertools.count(1)), list[bool]()
    out.take()
    store.reassign(after, lambda: done.append(True))
    asked, servers = out.take(), ["server 0", "server 1"]
    assert [type(order.message) for order in asked] == [GiveEntries] * 2
    for number, order in enumerate(asked):
        own = {
            name: partitions_of(before)[number].of(vector) for name, vector in state.items() if len(vector)
        }
        store.reply(servers[number], StateReply(order.message.tag, own))
    moved = out.take()
    assert [(order.to, type(order.message)) for order in moved] == [(name, TakeEntries) for name in servers]
    for order in moved:
        assert not done
        store.reply(order.to, StateReply(order.message.tag, {}))
    assert done == [True]


def test_what_a_server_does_is_measured() -> None:
    """Both servers are busy for some time; which for longer is the machine's affair."""
    spec = experiment({"name": "asp"}, model={"name": "mlp", "hidden": [1024]}, stop={"updates": 30})
    done = ThreadedRun(spec).run()
    loads = server_loads(done.log)
    assert (loads["load_s"] > 0).all()
    assert set(loads["server"]) == {0, 1}
    for moved in reassignments(done.log):
        assert sum(moved["entries"]) == len(done.parameters)


@pytest.mark.dask
def test_on_dask_too(scheduler: str) -> None:
    """Whatever the loads are there, and whatever moves: the model is that of virtual time."""
    spec = experiment({"name": "bsp"}, scheduler=scheduler, stop={"updates": 20})
    live, still = run(spec), experiment({"name": "bsp"}, moves=False, stop={"updates": 20})
    assert len(server_loads(live.log))
    assert torch.equal(live.parameters, simulated(still).parameters)
    assert replay(live) == len(live.log)


@given(st.integers(1, 5), st.data())
def test_cuts_take_apart_and_put_together(count: int, data: Any) -> None:
    length = data.draw(st.integers(count, 30))
    own = data.draw(st.lists(st.integers(0, count - 1), min_size=length, max_size=length))
    ranges = [[(i, i + 1) for i in range(length) if own[i] == server] for server in range(count)]
    parts, vector = partitions_of(ranges), torch.arange(float(length))
    assert torch.equal(gather([cut.of(vector) for cut in parts], parts), vector) or count == 1
    whole = Partition((slice(0, length),))
    for cut in parts:
        rest = whole.without(cut)
        assert rest.size + cut.size == length
        assert set(rest.of(vector).tolist()).isdisjoint(cut.of(vector).tolist())
        assert torch.equal(cut.of(cut.scatter(cut.of(vector), length)), cut.of(vector))
