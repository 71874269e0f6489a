"""What is to hold in every live run, seen from outside: in its messages, its log and its processes."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from psbench.backends.dask.coordinator.beginning import Start
from psbench.backends.dask.coordinator.live_run import LiveRun
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Message
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.roles import (
    CLIENT,
    EVALUATOR,
    REPLICA,
    Address,
    worker_name,
    worker_number,
)
from psbench.backends.dask.record import Record
from psbench.core.collective import Collective, Shares
from psbench.core.events import COLLECTIVE, Join, Push
from psbench.core.log import ROW, EventLog, Kind
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.view import Status
from psbench.testing.invariants import BrokenContract, Invariants
from psbench.training.build import Workload
from tests.live_runs.servers import version_of
from tests.live_runs.workers import FakeWorker

#: the time of a push's way is stored with 4 bytes
_ROUNDING_S = 1e-3
#: servers wait for a while for what may have been lost
_PATIENCE_S = 1.0
_CHANGES = (Kind.JOIN, Kind.LEAVE, Kind.DROP, Kind.READMIT)


def broken_invariants(live: LiveRun) -> list[str]:
    """Return the invariants of `RunState` that do not hold after an input, as its comments state them."""
    run = live.run
    replica, evaluations = run.replica, run.evaluations
    between_answers = run.wait is live.training_wait and not run.ending
    found = {
        "training has started without a store": run.training and not run.has_store,
        "the time is before the start": run.now < run.start_s,
        "there is no wait after the first input": run.wait is None and not run.ending,
        "a model is with the evaluator that is not pending": not (
            evaluations.sent.keys() <= evaluations.pending.keys()
        ),
        "an evaluation is pending without an evaluator": evaluations.is_off and bool(evaluations.pending),
        "models are requested between two answers": between_answers and evaluations.asked is not None,
        "a checkpoint without missing parts is unfinished": not all(
            checkpoint.missing for checkpoint in run.unfinished.values()
        ),
        "the log is held although the replica has the state": (
            run.log_stream.held != (replica.awaited is not None)
        ),
        "a replica is awaited that is not there": replica.awaited is not None and not replica.is_there,
        "the preview is another engine than the spare one": run.preview not in (None, run.spare_engine),
        "an event is in a ring between two answers": between_answers and run.in_ring is not None,
        "a number is missing that no engine waits for": (
            bool(run.measurement.missing) and not (run.engine.measuring or run.ending)
        ),
    }
    return [sentence for sentence, holds in found.items() if holds]


class Checks:
    """Follows one run, and says at the first input after which something does not hold.

    Parameters
    ----------
    workload : Workload
    live : LiveRun
    record : Record
        The client's.
    log : EventLog
        The client's, as far as the run has sent it.
    """

    def __init__(self, workload: Workload, live: LiveRun, record: Record, log: EventLog) -> None:
        self._experiment, self._live, self._record, self._log = workload.experiment, live, record, log
        # whether every model of the run is of one version: where workers' models diverge a mean is not
        self.is_plain = not any(
            each.own_steps or each.communication.pushes == "together"
            for each in workload.experiment.strategy.compositions
        )
        self._dataset_size = live.run.view.dataset_size
        placements = [each.placement for each in workload.experiment.strategy.compositions]
        self._is_gossip = any(isinstance(each, PeerToPeer) for each in placements)
        self._has_servers = not (self._is_gossip or any(isinstance(each, Collective) for each in placements))
        self._invariants = None if live.start else Invariants("a live run", live.run.engine)
        self._rows = 0
        self._first_push = live.start.checkpoint.state["next_push"] if live.start else 0
        self._first_tensors = live.start.checkpoint.tensors if live.start else {}
        self._pushes: list[tuple[int, msg.PushMessage, float]] = []
        self._tickets: dict[int, int] = {}  # of the last release that each worker was sent
        self._tickets_before = _tickets_at(live.start)  # and of that which it had at a checkpoint
        self._versions: dict[float, int] = {}  # that were evaluated, by the loss that was found
        self._kept_version = -1  # of the last state that the replica has
        self._state_versions: dict[int, int] = {}  # of states on their way to the replica, by tag
        self._client_rows = live.start.rows if live.start else 0  # of the log, that it had or was sent
        self._replica_rows = 0  # that it was sent
        self._unkept: int | None = None  # the tag of a state that the replica has not acknowledged
        self._incidents = Counter[str]()  # by the role that they are about
        self._addresses: dict[str, dict[int, Address]] = {}  # that each process was sent
        self._rings: dict[int, set[int | None]] = {}  # whom each ring was ordered from, by its number
        self._evaluator_since = 0.0  # the version at which it was there; infinity while there is none
        self._strayed: dict[int, list[float]] = {}  # when a worker was not where the run takes it to be
        self._begin: set[int] = set()  # the workers with which training began
        self._unready: set[str] = set()  # processes that have connected and are not ready
        self._lost_by_hand: set[int] = set()
        self._back_by_hand: dict[int, float] = {}  # and when, in seconds of the run
        self.has_outcome = False
        self._lost_by_then: set[int] = set()  # workers, when the outcome was sent
        self._late: set[str] = set()  # processes that connected when the run had ended
        self.stored_versions: list[int] = []
        self.lacked_evaluator = False  # in the run that this one goes on from
        start = live.start
        #: versions at which this run and those before it went on
        self.resumed_at = {start.checkpoint.state["engine"]["view"]["version"]} if start else set[int]()

    # ---------------------------------------------------------------- messages

    def after_input(self) -> None:
        """Check the state of the run, and the log as far as it has grown."""
        if broken := broken_invariants(self._live):
            raise BrokenContract(f"the state of the run: {'; '.join(broken)}")
        rows = len(self._live.run.log)
        if self._invariants is not None and rows > self._rows:
            self._rows = rows
            self._invariants.look()

    def members(self) -> None:
        """Check that all workers are in the run, once all that has happened is handled, or are to join it."""
        live, run = self._live, self._live.run
        if live.run.wait is not live.training_wait or run.events:
            return
        due = [event for at, event in run.timers.entries() if at == run.now]  # the next input finds it
        joining = {event.worker for event in [*run.engine.waiting_events, *due] if isinstance(event, Join)}
        for worker in {*run.peers.workers()} - joining:
            if not self._is_in_run(worker) and not self._may_be_out(worker):
                raise BrokenContract(f"worker {worker} is here, and not in the run")

    def _is_in_run(self, worker: int) -> bool:
        known = self._live.run.view.workers.get(worker)
        return known is not None and known.status is not Status.GONE

    def _may_be_out(self, worker: int) -> bool:
        """Whether a worker is not in the run for now: by the plan, by hand, or as a straggler."""
        known = self._live.run.view.workers.get(worker)
        is_dropped = known is not None and known.dropped
        has_shares = isinstance(
            self._live.run.composition.placement, Shares
        )  # which none that joins later can have
        return is_dropped or has_shares or worker in self._lost_by_hand or self._is_planned_away(worker)

    def sent(self, name: str, message: Message, has_replica: bool) -> None:
        """Check a message of the coordinator to another process."""
        if isinstance(message, msg.LogRows):
            self._note_rows(name, len(message.rows) // ROW.itemsize)
        elif isinstance(message, msg.KeepState):
            self._keep(message)
        elif isinstance(message, msg.ReleaseMessage):
            self._release(name, message, has_replica)
        elif isinstance(message, msg.PeerAddresses):
            self._addresses.setdefault(name, {}).update(message.addresses)
        elif isinstance(message, msg.StartRing):
            self._ring(name, message)
        elif isinstance(message, msg.Incident):
            self._note_incident(message.text)
        elif isinstance(message, msg.RunOutcome):
            self.has_outcome, self._lost_by_then = True, self._live.run.peers.lost_workers
        elif isinstance(message, msg.StartTraining):
            self._begin = self._begin or set(self._live.run.peers.workers())
        elif name == EVALUATOR and isinstance(message, msg.EvaluateModel) and self.is_plain:
            version_of(message.tensors["parameters"], "what is evaluated")

    def _note_rows(self, name: str, count: int) -> None:
        """Take note of rows of the log; the client is sent none while the replica takes a state."""
        if name == REPLICA:
            self._replica_rows += count
        elif self._unkept is not None:
            raise BrokenContract(f"the client is sent {count} rows, and the replica is taking its state")
        else:
            self._client_rows += count

    def _keep(self, message: msg.KeepState) -> None:
        """Check that client and replica together have the log of a state; the replica may have more."""
        self._unkept = message.tag
        if message.state["engine"] is not None:
            self._state_versions[message.tag] = message.state["engine"]["view"]["version"]
        first, rows = message.rows_before, message.state["logged"][0]
        if first > self._client_rows or first + self._replica_rows < rows:
            raise BrokenContract(
                f"the replica has {self._replica_rows} rows of {rows} after {first}, and the client "
                f"{self._client_rows}"
            )

    def _note_incident(self, text: str) -> None:
        """Take note of whom the user is informed about, and of what became of pressing a worker."""
        first, second, *_ = text.split()
        self._incidents[f"{first} {second}" if second.isdigit() else first] += 1
        joins = "has joined" in text
        if first == REPLICA and not joins:
            self._unkept = None  # it is lost
        if first == EVALUATOR:
            self._evaluator_since = self._live.run.view.version if joins else math.inf
        if "by hand" in text and ("was removed" in text or "was brought back" in text):
            self._lost_by_hand.discard(int(second))
            self._back_by_hand.pop(int(second), None)
            if "was removed" in text:
                self._lost_by_hand.add(int(second))
            else:
                self._back_by_hand[int(second)] = self._live.run.now

    def _ring(self, name: str, order: msg.StartRing) -> None:
        """Check that members can reach each other, and that no worker is left out that has pushed.

        A worker is left out only if it was lost with what it had to add.
        """
        following = worker_name(order.place.following)
        there = self._live.run.peers.address_of(order.place.following)
        if following != name and self._addresses.get(name, {}).get(order.place.following) != there:
            raise BrokenContract(f"{name} is to send to {following} and has no address, or an old one")
        members = self._rings.setdefault(order.ring, set())
        members.add(worker_number(name))
        if len(members) < order.place.size:
            return
        pushed = {
            push.worker
            for push in self._live.run.view.pending.values()
            if push.id >= self._first_push or self._has_again(push)
        }
        left_out = pushed - members - {worker_number(name) for name in self._incidents}
        if left_out:
            raise BrokenContract(f"ring {order.ring} is without {sorted(left_out)}, who have pushed")

    def _has_again(self, push: Push) -> bool:
        """Whether a worker was given what it had to add at the checkpoint: it was here to be given it."""
        return push.worker in self._begin and f"push/{push.id}/payload" in self._first_tensors

    def _release(self, name: str, message: msg.ReleaseMessage, has_replica: bool) -> None:
        worker = worker_number(name)
        assert worker is not None
        if name in self._unready:
            raise BrokenContract(f"{name} is released, and is a process that is not ready")
        if message.ticket <= self._tickets.get(worker, -1):
            raise BrokenContract(f"{name} is sent ticket {message.ticket} twice")
        self._tickets[worker] = message.ticket
        view = self._live.run.view.workers[worker]
        if view.status is Status.COMPUTING and message.ticket > view.ticket:
            raise BrokenContract(f"{name} is sent ticket {message.ticket}, and is at {view.ticket}")
        if has_replica and message.sent and message.version > self._kept_version >= 0:
            raise BrokenContract(
                f"{name} is released from version {message.version}, and the replica has {self._kept_version}"
            )

    def arrived(self, sender: str, message: Message, now: float) -> None:
        """Take note of a message that the coordinator reads next."""
        worker = worker_number(sender)
        if isinstance(message, msg.Hello):
            self._unready.add(sender)
            self._addresses.pop(sender, None)
            if worker is not None:
                self._lost_by_hand.discard(worker)  # that is another process
                self._back_by_hand.pop(worker, None)
            if self.has_outcome:
                self._late.add(sender)
        elif isinstance(message, msg.Ready):
            self._unready.discard(sender)
        if isinstance(message, msg.PushMessage) and worker is not None:
            self._pushes.append((worker, message, now))
        elif isinstance(message, msg.Hello) and sender == REPLICA:  # a process that has nothing yet
            self._kept_version, self._replica_rows, self._unkept = -1, 0, None
        elif isinstance(message, msg.StateKept):
            self._unkept = None if message.tag == self._unkept else self._unkept
            self._kept_version = self._state_versions.get(message.tag, -1)

    def evaluated(self, tensors: StateDict, loss: float) -> None:
        """Take note of a model that was evaluated, and of what was found."""
        if self.is_plain:
            self._versions[loss] = version_of(tensors["parameters"], "what is evaluated")

    def state(self, state: dict[str, Any], tensors: StateDict, name: str) -> None:
        """Check that a checkpoint has one version, the payloads of its pushes, and all workers."""
        rows, texts = state["logged"]
        if name == CLIENT and (rows > len(self._log) or texts > len(self._log.texts)):
            raise BrokenContract(f"a checkpoint comes with {rows} rows, and the client has {len(self._log)}")
        if state["engine"] is None:
            return
        view = state["engine"]["view"]
        if self.is_plain:
            found = version_of(tensors["parameters"], "a checkpoint")
            if found != view["version"]:
                raise BrokenContract(f"a checkpoint of version {view['version']} has the model of {found}")
        for push in view["pending"]:
            was_lost = not self._has_servers and self._incidents[f"worker {push['worker']}"]
            if not (was_lost or self._is_gossip or f"push/{push['id']}/payload" in tensors):
                raise BrokenContract(f"a checkpoint lacks the payload of push {push['id']}")
            if push["id"] >= state["next_push"]:
                raise BrokenContract(f"push {push['id']} is in a checkpoint that gives its number again")

    def stored(self, message: msg.StoreCheckpoint) -> None:
        """Check that the client's checkpoints are one after another."""
        self.state(message.state, message.tensors, CLIENT)
        if message.state["engine"] is None:
            return
        version = message.state["engine"]["view"]["version"]
        if self.stored_versions and version < self.stored_versions[-1]:
            raise BrokenContract(f"a checkpoint of version {version} comes after {self.stored_versions[-1]}")
        self.stored_versions.append(version)

    @property
    def evaluator_was_lost(self) -> bool:
        """Whether the evaluator was lost, here or before, and with it evaluations."""
        return self.lacked_evaluator or self._incidents[EVALUATOR] > 0

    # ---------------------------------------------------------------- all messages have arrived

    def settled(self, workers: Mapping[str, FakeWorker], dead: set[str]) -> None:
        """Check that run and processes agree, when no message is under way and the run waits for events.

        Parameters
        ----------
        workers : mapping of name to FakeWorker
            Those that are alive.
        dead : set of str
            Processes of which the run may not know yet that they are gone.
        """
        live = self._live
        run = live.run
        if live.run.wait is not live.training_wait or run.events or run.engine.measuring:
            return
        taken = self._log_of_run(Kind.PUSH) + self._log_of_run(Kind.VOID, "push")
        if taken != len(self._pushes) and not live.start:
            raise BrokenContract(f"{len(self._pushes)} pushes have come, and the run has taken {taken}")
        # a worker that computes reads what it is asked for when its step is over
        evaluates = not (dead or run.store.awaits_replies) and EVALUATOR in run.peers.present
        if evaluates and self.is_plain and (awaited := len(live.run.evaluations.pending)):
            raise BrokenContract(f"{awaited} evaluations are awaited, and none is under way")
        for name, worker in workers.items():
            why = "" if dead else self._why_strayed(worker)
            if not why:
                self._strayed.pop(worker.worker, None)
                continue
            times = self._strayed.setdefault(worker.worker, [])
            times.append(run.clock_s)
            if len(times) > 3 and times[-1] - times[0] > _PATIENCE_S:
                raise BrokenContract(f"{name} {why}")

    def _why_strayed(self, worker: FakeWorker) -> str:
        """Return in which way a worker is not where the run takes it to be; empty if it is there."""
        run = self._live.run
        known = run.view.workers.get(worker.worker)
        if not self._is_in_run(worker.worker):
            return "" if self._may_be_out(worker.worker) else "is here, and not in the run"
        if self._is_planned_away(worker.worker):
            return f"is {known.status.name.lower()} in the run, and its failure is planned"
        if known.status is Status.COMPUTING:
            if known.hold_reason:  # its release is held back until others have made their steps: entries move
                return ""
            reads_later = worker.computing and (worker.exchanges or worker.mailbox)  # between two steps
            if worker.ticket != known.ticket and not reads_later:
                return f"is to compute under ticket {known.ticket}, and has {worker.ticket}"
            neighbour = run.view.workers.get(worker.awaits_neighbour)
            owes = neighbour is not None and neighbour.status is Status.COMPUTING  # at the end of its step
            is_busy = worker.computing or worker.in_full_ring or owes
            return "" if is_busy else "is to compute, and waits"
        if worker.computing and not known.overlapping:
            return f"computes, and is {known.status.name.lower()} in the run"
        return ""

    def _is_planned_away(self, worker: int) -> bool:
        """Whether the experiment has a worker away now: it joins later, or has failed and is not back yet."""
        cluster, now = self._experiment.cluster, self._live.run.now
        back_s = self._back_by_hand.get(
            worker, -math.inf
        )  # a failure that is planned for later comes all the same
        late = back_s < 0 and any(join.worker == worker and now < join.at_s for join in cluster.joins)
        return late or any(
            failure.worker == worker and back_s < failure.at_s <= now < (failure.rejoin_s or math.inf)
            for failure in cluster.failures
        )

    def _log_of_run(self, kind: Kind, text: str | None = None) -> int:
        log = self._live.run.log
        rows = log.rows()
        texts = rows["text"][rows["kind"] == kind]
        return len(texts) if text is None else sum(log.text(number) == text for number in texts)

    # ---------------------------------------------------------------- the end

    def ended(self, outcome: msg.RunOutcome, dead: set[str]) -> None:
        """Check the log and the outcome of a run that has ended and whose client has everything."""
        rows = self._log.rows()
        if len(rows) != self._live.run.log_stream.logged[0]:
            raise BrokenContract(f"the client has {len(rows)} rows of {self._live.run.log_stream.logged[0]}")
        self._check_pushes(rows)
        epochs = self._check_versions(rows, outcome)
        self._check_last_version(rows)
        if self.is_plain:
            self._check_evaluations(rows, epochs, outcome)
            if outcome.status == "finished":
                self._check_stop(epochs, outcome)
        self._check_facts(rows, outcome)
        for name in sorted(dead - self._late):
            if not self._incidents[name]:
                raise BrokenContract(f"{name} is gone, and the user was not informed")

    def _check_pushes(self, rows: Any) -> None:
        """Check that a push is applied or discarded once, with the numbers that its worker sent."""
        of = {int(row["id"]): row for row in rows[rows["kind"] == Kind.PUSH]}
        done = Counter(rows["id"][np.isin(rows["kind"], (Kind.APPLY, Kind.DISCARD))].tolist())
        for push, times in done.items():
            if times > 1 or push not in of:
                raise BrokenContract(f"push {push} was applied or discarded {times} times")
        if self._live.start:
            return
        for number, (worker, sent, now) in enumerate(self._pushes):
            row = of.get(number)
            if row is None:
                continue  # void, or the run had ended
            found = [
                *(int(row[name]) for name in ("worker", "version", "samples", "steps")),
                float(row["loss"]),
            ]
            if found != [worker, sent.version, sent.samples, sent.steps, float(np.float32(sent.loss))]:
                raise BrokenContract(f"push {number} of worker {worker} is logged as {found}")
            logged = json.loads(self._log.text(row["text"]) or "{}")
            ring_s = logged.pop(COLLECTIVE, 0.0)
            if self._has_servers > bool(row["bytes"]) or not logged.keys() >= (sent.stats or {}).keys():
                raise BrokenContract(f"push {number} is logged with {row['bytes']} bytes and {logged}")
            if abs(float(row["send_s"]) - ring_s - (now - sent.sent_s)) > _ROUNDING_S:
                raise BrokenContract(f"push {number} took {now - sent.sent_s:g} s, not {row['send_s']:g} s")

    def _check_versions(self, rows: Any, outcome: msg.RunOutcome) -> list[float]:
        """Return the epoch of each version; they are made one after another, and the last is the outcome."""
        applied = rows[rows["kind"] == Kind.APPLY]
        if self._is_gossip:
            self._check_own_versions(rows)
            return []
        versions = list(dict.fromkeys(applied["version"].tolist()))
        if versions != list(range(1, len(versions) + 1)):
            raise BrokenContract(f"the log has versions {versions}")
        if self.is_plain and outcome.status == "finished":
            found = version_of(outcome.tensors["parameters"], "the outcome")
            if found != len(versions):
                raise BrokenContract(f"the outcome is of version {found}, and the log has {len(versions)}")
        samples = [applied["samples"][applied["version"] <= version].sum() for version in versions]
        return [0.0, *(float(each) / self._dataset_size for each in samples)]

    def _check_own_versions(self, rows: Any) -> None:
        """Check that each worker's own model goes from version to version; one that comes has another's."""
        last: dict[int, int] = {}
        for row in rows[np.isin(rows["kind"], (Kind.APPLY, Kind.JOIN, Kind.READMIT))]:
            worker, version = int(row["worker"]), int(row["version"])
            if row["kind"] != Kind.APPLY:
                last.pop(worker, None)
                continue
            if version <= last.get(worker, 0):
                raise BrokenContract(f"worker {worker} has version {version} after {last[worker]}")
            last[worker] = version

    def _check_evaluations(self, rows: Any, epochs: list[float], outcome: msg.RunOutcome) -> None:
        seen: dict[int, int] = {}
        late = set[int]()  # versions whose evaluations came after the end, which have no number
        for row in rows[rows["kind"] == Kind.EVALUATED]:
            number, version = int(row["id"]), int(row["version"])
            values = json.loads(self._log.text(row["text"]))
            if self._versions.get(values["val_loss"], version) != version:
                raise BrokenContract(
                    f"evaluation {number} of version {version} is of {self._versions[values['val_loss']]}"
                )
            if not math.isclose(values["epoch"], epochs[version], abs_tol=1e-9):
                raise BrokenContract(f"version {version} is evaluated at epoch {values['epoch']:g}")
            if number in seen:
                raise BrokenContract(f"evaluation {number} is of versions {seen[number]} and {version}")
            if number < 0:
                late.add(version)
            else:
                seen[number] = version
        every, last, start = self._experiment.evaluate_every, len(epochs) - 1, self._live.start
        if outcome.status == "diverged" or (self._incidents[EVALUATOR] and last <= self._evaluator_since):
            return
        if last not in {*seen.values(), *late}:
            raise BrokenContract(f"version {last}, the last, is not evaluated: {seen}, {late}")
        if self._incidents[EVALUATOR]:
            return
        resumed = start.checkpoint.state["engine"]["view"]["version"] if start else 0
        for version in range(resumed + 1 if self.lacked_evaluator else 1, last):
            number = int(epochs[version] / every + 1e-9)
            soon = {*range(version, version + self._experiment.num_workers)}
            later = [each for each in self.resumed_at if version < each]
            soon |= {min(later)} if later else set()  # if it was under way at the checkpoint
            is_seen = not late.isdisjoint(soon) or any(seen[each] in soon for each in seen if each >= number)
            if number > int(epochs[version - 1] / every + 1e-9) and not is_seen:
                raise BrokenContract(f"evaluation {number} is due at version {version}: {seen}, {late}")

    def _check_last_version(self, rows: Any) -> None:
        """Check that no version is made after the answer with which the updates of the stop rule are done."""
        most = self._experiment.stop.updates
        if self._is_gossip or most is None:
            return
        applied = rows[rows["kind"] == Kind.APPLY]
        last = applied[applied["version"] >= most]
        if len(last) and last["time_s"][-1] > last["time_s"][0]:
            raise BrokenContract(f"version {last['version'][-1]} is made after the last of {most} updates")

    def _check_stop(self, epochs: list[float], outcome: msg.RunOutcome) -> None:
        """Check that a rule ended the run, and not later than it should."""
        stop, last = self._experiment.stop, len(epochs) - 1
        late = [
            version
            for version, epoch in enumerate(epochs)
            if version >= (stop.updates or math.inf) or epoch >= (stop.epochs or math.inf) - 1e-9
        ]
        most = self._experiment.num_workers  # that an answer makes after what was measured for the one before
        others = stop.seconds or stop.patience or stop.target_accuracy or stop.tolerance
        if (late and late[0] + most <= last) or not (late or others):
            raise BrokenContract(f"the run has {last} versions, and ended as {outcome.reason}")

    def _check_facts(self, rows: Any, outcome: msg.RunOutcome) -> None:
        """Check who is said to be lost, what time it is, and whether the end left workers unanswered."""
        facts, view = outcome.facts, self._live.run.view
        gone: set[int] = set()
        for row in rows[np.isin(rows["kind"], _CHANGES)]:
            if row["kind"] in (Kind.JOIN, Kind.READMIT):
                gone.discard(int(row["worker"]))
            else:
                gone.add(int(row["worker"]))
        lost, dead = set(facts["lost_workers"]), self._lost_by_then
        surely = gone | (dead - view.workers.keys())
        reported = {worker_number(name) for name in self._incidents}  # too late for the log
        profile = self._experiment.cluster
        planned = {each.worker for each in (*profile.failures, *profile.joins)}
        absent = view.workers.keys() - self._begin  # of those that a checkpoint has
        if surely - lost or lost - surely - reported - planned - absent:
            raise BrokenContract(f"{facts['lost_workers']} are said to be lost; the log says {sorted(gone)}")
        made = rows["time_s"][rows["kind"] == Kind.APPLY]
        if not max(made, default=0.0) <= facts["time_s"] <= self._live.run.now:
            raise BrokenContract(f"the run is said to have taken {facts['time_s']:g} s")
        ahead = [
            w
            for w, own in view.workers.items()
            if own.status is Status.COMPUTING
            and own.ticket > self._tickets.get(w, self._tickets_before.get(w, -1))
            and not own.hold_reason
            and w not in lost | planned | reported  # of whom the end came first, or who was back by then
        ]
        if ahead and not facts["unanswered"]:
            raise BrokenContract(f"workers {ahead} wait for releases, and the outcome does not say so")


def _tickets_at(start: Start | None) -> dict[int, int]:
    """Return the tickets that workers had at a checkpoint, if no release was still to be sent."""
    state = {"rest": [True]} if start is None else start.checkpoint.state
    return (
        {} if state["rest"] else {each["id"]: each["ticket"] for each in state["engine"]["view"]["workers"]}
    )
