"""Who takes part in a live run: peers that are lost, workers that join, and what the others do then."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from psbench.backends.dask.coordinator.checkpointing import CheckpointWriter, admit_worker
from psbench.backends.dask.coordinator.evaluation import Evaluation
from psbench.backends.dask.coordinator.measurements import Measurements
from psbench.backends.dask.coordinator.pushes import PushIntake
from psbench.backends.dask.coordinator.replacements import Replacements
from psbench.backends.dask.coordinator.replication import Replication
from psbench.backends.dask.coordinator.run_state import RunState
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.instructions import Forget
from psbench.backends.dask.protocol.roles import CLIENT, EVALUATOR, REPLICA, worker_name, worker_number
from psbench.core import events as ev
from psbench.core.collective import Shares
from psbench.core.view import Status
from psbench.errors import Cancelled, ServerLost

#: roles that training goes on without, while another process is found for them
_HELPERS = EVALUATOR, REPLICA


class Membership:
    """Loses and admits the peers of a run."""

    def __init__(
        self,
        run: RunState,
        pushes: PushIntake,
        checkpoints: CheckpointWriter,
        evaluation: Evaluation,
        measurements: Measurements,
        replication: Replication,
    ) -> None:
        self._run, self._peers, self._timers, self._pushes = run, run.peers, run.timers, pushes
        self._checkpoints, self._replication = checkpoints, replication
        self._evaluation, self._measurements = evaluation, measurements
        self._replacements = Replacements(run.workload.experiment, run.out, run.peers.known)
        self._speeds: dict[int, float] = {}  # as the user wants them, times those of the profile
        self._put_off = set[int]()  # that could not join, while each worker had a share of the model

    def begin(self, begin_s: float) -> None:
        """Let training begin, at that time of this process's clock."""
        self._run.began(begin_s)
        self._run.training = True
        rings = self._peers.rings
        for worker in self._peers.workers():
            self._run.out.send(worker_name(worker), msg.StartTraining(begin_s, rings))
            if worker in self._speeds:  # of a process that was replaced, too
                self._run.out.send(worker_name(worker), msg.ChangeSpeed(self._speeds[worker]))

    def press(self, press: msg.PressWorker) -> None:
        """Do to a worker what the user wants, as if the profile had it; the client hears what came of it."""
        worker, run, coming = press.worker, self._run, [*self._run.coming()]
        name, is_gone = worker_name(worker), self._is_gone(worker, coming)
        if not run.training:
            said = "cannot be pressed: training has not begun"
        elif worker not in self._peers.workers():
            said = "cannot be pressed: it has no process"
        elif press.what == "speed":
            factor = self._speeds[worker] = self._speeds.get(worker, 1.0) * press.factor
            run.out.send(name, msg.ChangeSpeed(factor))
            said = f"is {press.factor:g} times as fast by hand"
        elif is_gone == (press.what == "lost"):
            said = "is gone already" if is_gone else "is there already"
        elif self._deals_shares:
            said = f"cannot be {press.what} by hand: each worker has a share of the model"
        elif press.what == "back":
            run.events.append(ev.Join(worker))
            said = "is back by hand"
        elif sum(not self._is_gone(each, coming) for each in run.view.workers) < 2:
            said = "is the last one: it cannot be lost"
        else:
            run.events.append(ev.Leave(worker, "failed"))
            said = "is lost by hand"
        run.out.send(CLIENT, msg.Incident(f"{name} {said} at {run.now:.2f} s"))

    def let_go(self, name: str) -> bool:
        """Remove a peer whose Dask worker is being retired; False if the run needs it."""
        if name in self._peers.gone:
            return True
        run, worker = self._run, worker_number(name)
        has_share = run.has_store and isinstance(run.composition.placement, Shares)
        needed = worker is None or has_share or self._peers.workers() == [worker]
        if needed and name not in _HELPERS:
            return False
        self._run.out.send(name, msg.StopRun())
        self.lose(name, "left, as its Dask worker is being retired,")
        return True

    def lose(self, name: str, how: str = "was lost") -> None:
        """Remove a peer that is gone.

        Raises
        ------
        ServerLost, Cancelled
            If it is a server, or the client.
        """
        self.close(name)
        self._do_without(name, how)

    def meet(self, name: str) -> None:
        """Take note of a peer's connection.

        A second one is of another process: the client, which asks Dask's scheduler, knew before this run that
        the first is dead. The connection of that one is closed already.
        """
        if self._peers.has_connected(name):
            self._peers.lose(name)
            self._do_without(name, "was lost", is_replaced=True)
        self._peers.connect(name)

    def _do_without(self, name: str, how: str, is_replaced: bool = False) -> None:
        worker = worker_number(name)
        if worker is not None:
            self._lose_worker(worker, how, is_replaced)
        elif name == CLIENT:
            self.close(REPLICA)  # it keeps what it has, as the client may only be cut off
            raise Cancelled("the client is gone")
        elif name not in _HELPERS:
            why = "its process was killed or is frozen, or its machine is unreachable"
            raise ServerLost(f"{name} is gone: {why}", name)
        else:
            self._replacements.lose(name, self._run.now, how, is_replaced)
            self._expect_again(name)
            if name == REPLICA:
                self._replication.lose()

    def close(self, name: str) -> None:
        """Close the connection of a peer, and count it as gone."""
        self._peers.lose(name)
        self._run.out.add(Forget(name))

    def _lose_worker(self, worker: int, how: str, is_replaced: bool) -> None:
        name = worker_name(worker)
        self._replacements.lose(name, self._run.now, how, is_replaced)
        self._expect_again(name)
        if self._run.has_store:
            self._run.store.leave(worker, self._run.view.last_ticket(worker))
            self._run.averaging.leave(worker)
            self._checkpoints.leave(worker)
        if self._run.training:
            self._run.events.append(ev.Leave(worker, "lost"))

    def _expect_again(self, name: str) -> None:
        """Begin only when another process has taken that role, or without it if none is sought."""
        if self._run.training:
            return
        if self._replacements.seeks(name):
            self._peers.expect_again(name)
        else:
            self._peers.do_without(name)

    def lose_unconnected(self, name: str) -> None:
        """Drop a role whose Dask worker is gone, unless it has connected: then its death shows.

        Of one that was lost before, the client looks for another Dask worker already.
        """
        peers = self._peers
        if name in peers.known and name not in peers.gone and not peers.has_connected(name):
            self.lose(name)

    def set_ready(self, name: str, ready: msg.Ready) -> None:
        """Take note that a role is ready, and begin with one that was lost or missing."""
        self._peers.admit(name, ready)
        self._replacements.find(name, self._run.now)
        worker = worker_number(name)
        if worker is not None and self._run.training:
            self._admit(worker)
        elif worker is not None and self._run.has_store:
            self._run.store.join(worker)
        elif name == EVALUATOR:
            self._evaluation.queue.begin_again()
            self._measurements.begin_again()
        elif name == REPLICA:
            self._replication.begin()

    def _admit(self, worker: int) -> None:
        """Let a process join that has taken a worker's place."""
        admit_worker(self._run.out, worker, self._pushes.position_after(worker), self._run.view)
        self._run.store.join(worker)
        self.begin(self._run.begin_s)
        if not self._timers.is_away(worker, self._run.now):
            self._run.events.append(ev.Join(worker))

    def find_no_place(self, name: str) -> None:
        """Drop a role for which there is no Dask worker, unless one was found before this was read."""
        if not self._replacements.is_missing(name):
            return
        self._replacements.give_up(name)
        if name in self._peers.missing:
            self._peers.do_without(name)
        if name == EVALUATOR:
            self._evaluation.queue.do_without()

    def changes_since_checkpoint(self, time_s: float, without_part: Collection[int]) -> list[ev.Event]:
        """Return what a run that resumes at `time_s` must know: workers that are missing, or that are back.

        A failure or join of the profile may have been due then, and have waited for its turn. Of workers
        `without_part` in the checkpoint nothing is left.
        """
        here, there = self._peers.workers(), self._run.view.workers
        gone = {w.id for w in there.values() if w.status == Status.GONE and not w.dropped}
        away = {worker for worker in here if self._timers.is_away(worker, time_s)}
        lost = {*without_part}
        left = sorted(there.keys() - gone - {*here}.difference(away, lost))
        is_in = there.keys() - gone - lost
        back = [worker for worker in here if worker not in is_in and worker not in away]
        why = {True: "failed", False: "lost"}
        return [*(ev.Leave(worker, why[worker in away]) for worker in left), *map(ev.Join, back)]

    @property
    def awaits_worker(self) -> bool:
        """Whether a worker is to join that is not gone for good."""
        joins = any(type(event) is ev.Join and self.is_possible(event) for event in self._run.events)
        expects = self._timers.expects_join(self._peers.lost_workers)
        return joins or expects or self._replacements.awaits_worker

    def is_possible(self, event: ev.Event) -> bool:
        """Return whether a join or failure of the profile is possible: a dead process does not come back.

        Another that has taken its place joins once, be it by itself or when the profile has it return.
        """
        waiting = self._run.engine.waiting_events
        if type(event) is ev.Join and self._deals_shares:
            return False  # a share never moves, and the others have all of them
        if type(event) is ev.Join:
            return event.worker in self._peers.workers() and self._is_gone(event.worker, waiting)
        if type(event) is ev.Leave:
            return event.worker in self._run.view.workers or not self._is_gone(event.worker, waiting)
        return True

    def put_off(self, event: ev.Event) -> None:
        """Take note of a join that is not possible while each worker has a share of the model."""
        if type(event) is ev.Join and self._deals_shares:
            self._put_off.add(event.worker)

    def joins_put_off(self) -> list[ev.Join]:
        """Return the joins that were put off, once they are possible."""
        if self._deals_shares:
            return []
        joining = sorted(self._put_off)
        self._put_off.clear()
        return [ev.Join(worker) for worker in joining]

    @property
    def _deals_shares(self) -> bool:
        """Whether each worker has a share of the model, or is about to have one."""
        run = self._run
        in_force = run.workload.experiment.strategy.compositions[run.view.in_force]
        return any(isinstance(each.placement, Shares) for each in (run.composition, in_force))

    def gone_at_last(self) -> set[int]:
        """Return the workers that are out of the run as it ends, or have left it and not come back since."""
        coming = [*self._run.coming()]
        return {w for w in self._run.view.workers if self._is_gone(w, ()) or self._is_gone(w, coming)}

    def _is_gone(self, worker: int, coming: Iterable[ev.Event]) -> bool:
        """Return whether a worker is not in the run once these events, which have happened, are handled."""
        known = self._run.view.workers.get(worker)
        gone = known is None or known.status is Status.GONE
        for event in coming:
            if isinstance(event, ev.Leave | ev.Join) and event.worker == worker:
                gone = type(event) is ev.Leave
        return gone
