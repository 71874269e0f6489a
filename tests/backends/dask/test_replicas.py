"""The replica of a live run, with all processes in threads; `test_recovery` kills real ones."""

from __future__ import annotations

import json
import threading
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from test_live_workers import SERVERS, experiment, simulated
from threaded_run import HOST, KEY, Killed, ThreadedRun
from toybox import at_night

from psbench.backends.dask.coordinator.beginning import Start
from psbench.backends.dask.placement import check_replica
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Json, Message
from psbench.backends.dask.protocol.messages import ReleaseMessage
from psbench.backends.dask.protocol.roles import REPLICA, RunKey
from psbench.backends.dask.protocol.transport import ClientSocket, ServerSocket
from psbench.backends.dask.record import Record
from psbench.backends.dask.replica_recovery import take_back
from psbench.backends.dask.server.replica import Replica
from psbench.backends.dask.worker.worker import Worker
from psbench.checkpoints.file import Checkpoint
from psbench.core.log import ROW, EventLog, Kind
from psbench.core.worker_policy import Directive
from psbench.errors import BackendError, ParameterError

pytestmark = pytest.mark.usefixtures("one_torch_thread")

ONE = {"recovery": {"replicas": 1}}


class RecordingReplica(Replica):
    """A replica that does not forget, and can be killed at a state."""

    dies_at = -1

    def __init__(self, *sockets: Any) -> None:
        super().__init__(*sockets)
        self.states: list[msg.KeepState] = []

    @property
    def version(self) -> int:
        """The last one that it has."""
        return int(self.states[-1].state["engine"]["view"]["version"])

    def _take(self, message: Message) -> None:
        if isinstance(message, msg.KeepState):
            self.states.append(message)
            if len(self.states) == self.dies_at:
                raise Killed
        super()._take(message)


class KeptRun(ThreadedRun):
    replica_class = RecordingReplica


def states_of(done: ThreadedRun) -> list[msg.KeepState]:
    """Return the states that the replica has had, if it has begun."""
    return [] if done.replica is None else done.replica.states


def is_whole(kept: msg.KeepState) -> bool:
    """Whether each push that waits has its payload."""
    held = {name.split("/")[1] for name in kept.tensors if name.startswith("push/")}
    return held == {str(push["id"]) for push in kept.state["engine"]["view"]["pending"]}


def gone_on(done: KeptRun, kept: msg.KeepState) -> ThreadedRun:
    """Return the run that goes on from a state of the replica, as the client lets it."""
    rows, texts = kept.state["logged"]
    state = json.loads(json.dumps(kept.state.data))
    again = ThreadedRun(
        done.experiment, start=Start(Checkpoint(kept.tensors, state), rows, list(done.log.texts[:texts]))
    )
    again.log = EventLog()
    again.log.extend(done.log.rows(0, rows), done.log.texts[:texts])
    again.run()
    assert again.error is None
    return again


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    "strategy",
    [
        *at_night({"name": "bsp", "placement": SERVERS}, {"name": "local_sgd", "placement": "all_reduce"}),
        {"name": "power_sgd", "start_iter": 2},
        {"name": "strategy_switch", "first": "double_squeeze", "second": "all_reduce"}
        | {"rule": {"name": "after", "fraction": 0.5}},
        {
            "name": "bsp",
            "codec": "qsgd",
            "codec_down": {"name": "random_k", "ratio": 0.3},
            "placement": SERVERS,
        },
        {"name": "local_sgd", "codec": "top_k", "local_momentum": "kept"},
    ],
    ids=json.dumps,
)
def test_with_a_replica_and_from_its_states_the_bits_are_those_without(strategy: Any) -> None:
    done = KeptRun(experiment(strategy, stop={"epochs": 0.1}, evaluate_every=0.02, **ONE)).run()
    assert done.error is None
    expected, _ = simulated(experiment(strategy, stop={"epochs": 0.1}, evaluate_every=0.02))
    assert torch.equal(done.parameters, expected)
    states = done.replica.states
    assert all(map(is_whole, states))
    for kept in (states[0], states[len(states) // 2], states[-1]):
        assert torch.equal(gone_on(done, kept).parameters, expected)


def test_all_servers_save_the_same_version() -> None:
    strategy = {"name": "asp", "placement": SERVERS}
    done = KeptRun(experiment(strategy, 1, stop={"updates": 12}, **ONE)).run()
    assert done.error is None
    for kept in done.replica.states[1::4]:
        version = kept.state["engine"]["view"]["version"]
        expected, _ = simulated(experiment(strategy, 1, stop={"updates": version}))
        assert torch.equal(kept.tensors["parameters"], expected)


TOP_K = {"codec": {"name": "top_k", "ratio": 0.2}}


@pytest.mark.parametrize(
    "strategy",
    [{"name": "asp", "placement": SERVERS}, "k_batch_asp", {"name": "ssp", "placement": SERVERS} | TOP_K],
    ids=json.dumps,
)
def test_no_worker_hears_of_an_update_that_the_replica_lacks(strategy: Any) -> None:
    heard: list[tuple[int, int]] = []

    class Listener(Worker):
        def _take(self, release: ReleaseMessage) -> Directive:
            heard.append((release.version, done.replica.version))
            return super()._take(release)

    done = KeptRun(experiment(strategy, 3, stop={"updates": 60}, **ONE), Listener)
    done.run()
    assert done.error is None
    assert len(heard) > 60
    assert all(version <= kept for version, kept in heard)
    for kept in done.replica.states:
        rows = done.log.rows(0, kept.state["logged"][0])
        pushed = rows[rows["kind"] == Kind.PUSH]
        if "codec" in str(strategy) and len(pushed) > 10:
            assert all(f"worker/{worker}/residual" in kept.tensors for worker in range(3))
        for worker in range(3):  # where each goes on is after what the state holds of it, no more and no less
            at = kept.state["workers"][str(worker)]["position"][0]
            assert at == pushed["samples"][pushed["worker"] == worker].sum()
        assert is_whole(kept)
    again = gone_on(done, done.replica.states[-5])
    made = list(dict.fromkeys(again.log.of_kind(Kind.APPLY)["version"].tolist()))
    assert made == list(range(1, 61))


@pytest.mark.parametrize(
    "strategy",
    [{"name": "asp", "placement": SERVERS}, "k_batch_asp", {"name": "bsp", "codec": "top_k"}],
    ids=json.dumps,
)
def test_a_lagging_replica_bounds_and_counts_what_a_recovery_loses(strategy: Any) -> None:
    """No worker hears of an update that is three beyond the replica's."""
    heard: list[tuple[int, int]] = []

    class Listener(Worker):
        def _take(self, release: ReleaseMessage) -> Directive:
            heard.append((release.version, done.replica.version))
            return super()._take(release)

    lagging = {"recovery": {"replicas": 1, "replica_every": 3}}
    done = KeptRun(experiment(strategy, 2, stop={"updates": 30}, **lagging), Listener)
    done.run()
    assert done.error is None
    kept = [each.state["engine"]["view"]["version"] for each in done.replica.states]
    assert kept[:10] == [*range(0, 30, 3)]  # and perhaps the last one
    assert {version - last for version, last in heard} >= {0, 1, 2}
    assert max(version - last for version, last in heard) == 2
    # a server is lost when the client has heard of two updates more than the replica
    last = done.replica.states[5]
    versions = done.log.of_kind(Kind.APPLY)["version"]
    rows = int(done.log.of_kind(Kind.APPLY)["row"][np.flatnonzero(versions == kept[5] + 2)[-1]]) + 1
    log = EventLog()
    log.extend(done.log.rows(0, rows), done.log.texts)
    record = Record(done.experiment, log, None, None, None)
    record.take_back(msg.StoreCheckpoint("replica", last.state, last.tensors))
    assert record.go_back().startswith("2 updates and ")
    again = gone_on(done, last)
    assert sorted(set(again.log.of_kind(Kind.APPLY)["version"])) == list(range(1, 31))


@pytest.mark.parametrize(
    ("strategy", "settings", "message"),
    [
        ("asp", {"replica_every": 3}, "there is no replica; set replicas to 1"),
        ({"name": "ssp", "codec": "top_k"}, {"replicas": 1, "replica_every": 2}, "set replica_every to 1"),
        ("asp", {"replicas": 1, "replica_every": 0}, "greater than or equal to 1"),
    ],
    ids=str,
)
def test_a_lag_that_loses_more_is_refused(strategy: Any, settings: dict[str, int], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        experiment(strategy, 2, recovery=settings)


def test_a_replica_that_dies_stops_nobody() -> None:
    class Mortal(RecordingReplica):
        dies_at = 5

    done = KeptRun(experiment("ssp", 2, stop={"updates": 40}, **ONE))
    done.replica_class = Mortal
    done.run()
    assert done.error is None
    assert done.outcome.reason == "40 updates are done"
    (incident,) = done.incidents
    assert incident.startswith("replica was lost at ")
    assert incident.endswith(" s: until it is replaced, a lost server costs updates")


class ReplacedRun(KeptRun):
    """A run whose replica dies at its fifth state, and which then gets another, as from the client."""

    class replica_class(RecordingReplica):
        dies_at = 5

    def _take(self, message: Message, client: ClientSocket) -> None:
        if message == msg.RoleLost(REPLICA):
            self.replica_class = RecordingReplica  # type: ignore[misc, assignment]
            self._go(self._replicate, self.address)
        super()._take(message, client)


@pytest.mark.parametrize("encrypted", [False, True], ids=["on loopback", "as elsewhere"])
def test_another_replica_has_state_and_log_that_the_client_may_lack(encrypted: bool) -> None:
    def stop_late(done: ThreadedRun, client: ClientSocket) -> None:
        if done.replica_class is RecordingReplica and len(states_of(done)) > 10:
            client.send(msg.RequestStop(checkpoint=False))

    spec = experiment("ssp", 2, stop={"updates": 10**9, "epochs": 10**6}, **ONE)
    done = ReplacedRun(spec)
    done.run(stop_late)
    assert (done.outcome.status, done.error) == ("stopped", None)
    assert [text.split(" at ")[0] for text in done.incidents] == [
        "replica was lost",
        "replica has joined on another Dask worker",
    ]
    kept = done.replica.states[-1]
    rows, texts = kept.state["logged"]
    assert 0 < kept.rows_before < rows - 5
    behind = EventLog()
    behind.extend(done.log.rows(0, rows - 5), done.log.texts[: kept.texts_before])
    record = Record(spec, behind, None, None, None)
    with ServerSocket(HOST, KEY, encrypted) as socket:
        done.replica._socket = socket
        thread = threading.Thread(target=done.replica.run)  # the coordinator is gone
        thread.start()
        take_back(socket.address, RunKey(KEY), record, spec.connection)
        thread.join(60)
    assert not thread.is_alive()
    assert behind.rows().tobytes() == done.log.rows(0, rows).tobytes()
    assert behind.texts == done.log.texts[:texts]
    assert record.start is not None
    assert record.start.checkpoint.state["engine"] == kept.state["engine"]
    assert record.go_back().startswith("no update since ")


def test_a_client_that_is_cut_off_from_a_coordinator_gets_the_state_too() -> None:
    spec = experiment("asp", 2, stop={"updates": 10**9, "epochs": 10**6}, **ONE)
    log = EventLog()
    record = Record(spec, log, None, None, None)

    def take_then_stop(done: ThreadedRun, client: ClientSocket) -> None:
        if record.start is None and len(states_of(done)) > 10:
            log.extend(done.log.rows(len(log)), done.log.texts)  # what the client has
            take_back(done.replica._socket.address, RunKey(KEY), record, spec.connection)
        if done.incidents:
            client.send(msg.RequestStop(checkpoint=False))

    done = KeptRun(spec).run(take_then_stop)
    assert (done.outcome.status, done.error) == ("stopped", None)
    assert record.start is not None
    assert record.start.checkpoint.state["engine"]["view"]["version"] == done.replica.version
    assert done.incidents[0].startswith("replica was lost at ")


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        ("osp", "compute while they wait"),
        ("selsync", "vote in the middle of a push"),
        ("flex_rr", "counters of their own"),
        ({"name": "k_bsp", "codec": "sign"}, "have residuals"),
        ("bounded_step", "measures in the middle of an answer"),
        ("map_reduce", "has no servers"),
        ({"name": "strategy_switch", "first": "adacomm"}, "'adacomm'.* measures"),
    ],
    ids=str,
)
def test_what_a_replica_cannot_hold_is_refused(strategy: Any, why: str) -> None:
    with pytest.raises(ParameterError, match=rf"recovery.replicas: .*{why}.*; use checkpoint_every"):
        experiment(strategy, **ONE)


def test_a_simulated_run_has_no_replica() -> None:
    with pytest.raises(ParameterError, match=r"recovery.replicas: servers can be lost on dask only"):
        experiment("bsp", backend="simulated", **ONE)


def test_a_replica_is_not_placed_beside_a_server() -> None:
    check_replica({"coordinator": "a", "replica": "b", "worker 0": "a"})
    with pytest.raises(BackendError, match="only 1 Dask workers for 1 servers: add one"):
        check_replica({"coordinator": "a", "replica": "a", "worker 0": "a"})


def test_a_replica_gives_the_log_up_to_its_state_and_no_further() -> None:
    """It may have been sent more, of which the run that goes on from the state makes another future."""

    class Client:
        sent: ClassVar[list[Message]] = []

        def send(self, name: str, message: Message) -> None:
            self.sent.append(message)

    socket: Any = Client()
    replica = Replica(socket, socket)
    socket.send = lambda *sent: Client.sent.append(sent[-1])
    rows = [bytes([number]) * ROW.itemsize for number in range(5)]
    replica._take(msg.LogRows(["a", "b"], b"".join(rows[:3])))
    state = Json({"logged": [5, 4]})  # one row and one text went before what it has
    replica._take(msg.KeepState(1, 2, 2, state, {}))
    replica._take(msg.LogRows(["c"], b"".join(rows[3:])))
    replica._give(msg.GiveStateBack(3, 3))
    given = [message for message in Client.sent if isinstance(message, msg.LogRows)]
    assert [(each.texts, each.rows) for each in given] == [(["b"], b"".join(rows[1:3]))]
