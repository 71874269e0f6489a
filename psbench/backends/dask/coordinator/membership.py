"""The membership of a live run: lost and replaced processes, and workers that leave and join."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from psbench.backends.dask.coordinator import checkpointing, evaluation, pushes
from psbench.backends.dask.coordinator.run_state import RunState
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Json
from psbench.backends.dask.protocol.instructions import Forget
from psbench.backends.dask.protocol.roles import CLIENT, EVALUATOR, REPLICA, worker_name, worker_number
from psbench.backends.dask.server.parameter_server import as_lists
from psbench.core import events as ev
from psbench.core.collective import Shares
from psbench.core.view import Status
from psbench.errors import Cancelled, ServerLost

#: roles that training goes on without, while another process is found for them
_HELPERS = EVALUATOR, REPLICA


# -------------------------------------------------------------------- processes that come


def meet(run: RunState, name: str) -> None:
    """Accept a peer's connection.

    A second one is of another process: the client, which asks Dask's scheduler, knew before this run that
    the first is dead. The connection of that one is closed already.
    """
    if run.peers.has_connected(name):
        run.peers.lose(name)
        _do_without(run, name, "was lost", is_replaced=True)
    run.peers.connect(name)


def set_ready(run: RunState, name: str, ready: msg.Ready) -> None:
    """Admit a ready process to an expected, lost or missing role."""
    run.peers.admit(name, ready)
    run.replacements.find(name, run.now)
    worker = worker_number(name)
    if worker is not None and run.training:
        _admit(run, worker)
    elif worker is not None and run.has_store:
        run.store.join(worker)
    elif name == EVALUATOR:
        evaluation.begin_again(run)
    elif name == REPLICA:
        checkpointing.begin_replica(run)


def _admit(run: RunState, worker: int) -> None:
    """Admit a replacement worker, which continues at its predecessor's position in the data."""
    view = run.view
    ranges = None if view.ranges is None else as_lists(view.ranges)
    part = checkpointing.part_at(pushes.position_after(run, worker))
    run.out.send(worker_name(worker), msg.ResumeWorker(view.in_force, ranges, Json(part.state), {}))
    run.store.join(worker)
    _start_worker(run, worker)
    if not run.timers.is_away(worker, run.now):
        run.events.append(ev.Join(worker))


def start_training(run: RunState, begin_s: float) -> None:
    """Start training on all present workers; `begin_s` is time 0 of the run by the clock."""
    run.began(begin_s)
    run.training = True
    for worker in run.peers.workers():
        _start_worker(run, worker)


def _start_worker(run: RunState, worker: int) -> None:
    run.out.send(worker_name(worker), msg.StartTraining(run.begin_s))
    if worker in run.speeds:  # of a process that was replaced, too
        run.out.send(worker_name(worker), msg.ChangeSpeed(run.speeds[worker]))


# -------------------------------------------------------------------- processes that are lost


def lose(run: RunState, name: str, how: str = "was lost") -> None:
    """Remove a lost peer.

    Raises
    ------
    ServerLost, Cancelled
        If it is a server, or the client.
    """
    close(run, name)
    _do_without(run, name, how)


def close(run: RunState, name: str) -> None:
    """Close a peer's connection, and count the peer as lost."""
    run.peers.lose(name)
    run.out.add(Forget(name))


def lose_unconnected(run: RunState, name: str) -> None:
    """Drop a role whose Dask worker is gone and that never connected; a connection reports its own end.

    Of one that was lost before, the client looks for another Dask worker already.
    """
    peers = run.peers
    if name in peers.known and name not in peers.gone and not peers.has_connected(name):
        lose(run, name)


def let_go(run: RunState, name: str) -> bool:
    """Remove a peer on a retiring Dask worker; False if the run needs the peer."""
    if name in run.peers.gone:
        return True
    worker = worker_number(name)
    has_share = run.has_store and isinstance(run.composition.placement, Shares)
    needed = worker is None or has_share or run.peers.workers() == [worker]
    if needed and name not in _HELPERS:
        return False
    run.out.send(name, msg.StopRun())
    lose(run, name, "left, as its Dask worker is being retired,")
    return True


def find_no_place(run: RunState, name: str) -> None:
    """Drop a role without a Dask worker, unless one was found meanwhile."""
    if not run.replacements.is_missing(name):
        return
    run.replacements.give_up(name)
    if name in run.peers.missing:
        run.peers.do_without(name)
    if name == EVALUATOR:
        evaluation.do_without(run)


def _do_without(run: RunState, name: str, how: str, is_replaced: bool = False) -> None:
    worker = worker_number(name)
    if worker is not None:
        _lose_worker(run, worker, how, is_replaced)
    elif name == CLIENT:
        close(run, REPLICA)  # it keeps what it has, as the client may only be cut off
        raise Cancelled("the client is gone")
    elif name not in _HELPERS:
        why = "its process was killed or is frozen, or its machine is unreachable"
        raise ServerLost(f"{name} is gone: {why}", name)
    else:
        run.replacements.lose(name, run.now, how, is_replaced)
        _expect_again(run, name)
        if name == REPLICA:
            checkpointing.lose_replica(run)


def _lose_worker(run: RunState, worker: int, how: str, is_replaced: bool) -> None:
    name = worker_name(worker)
    run.replacements.lose(name, run.now, how, is_replaced)
    _expect_again(run, name)
    run.introductions.forget(worker)
    if run.has_store:
        run.store.leave(worker, run.view.last_ticket(worker))
        run.models.leave(worker)
        checkpointing.leave(run, worker)
    if run.training:
        run.events.append(ev.Leave(worker, "lost"))


def _expect_again(run: RunState, name: str) -> None:
    """Wait for a replacement of a lost role, or start without it if none is sought."""
    if run.training:
        return
    if run.replacements.seeks(name):
        run.peers.expect_again(name)
    else:
        run.peers.do_without(name)


# -------------------------------------------------------------------- faults by hand


def inject_fault(run: RunState, press: msg.PressWorker) -> None:
    """Apply a user's fault (lost, back, speed) like one of the profile, and report it to the client."""
    worker, coming = press.worker, [*run.coming()]
    name, is_gone = worker_name(worker), _is_gone(run, worker, coming)
    if not run.training:
        said = "cannot be changed: training has not begun"
    elif worker not in run.peers.workers():
        said = "cannot be changed: it has no process"
    elif press.what == "speed":
        factor = run.speeds[worker] = run.speeds.get(worker, 1.0) * press.factor
        run.out.send(name, msg.ChangeSpeed(factor))
        said = f"was made {press.factor:g} times as fast by hand"
    elif is_gone == (press.what == "lost"):
        said = "is already lost" if is_gone else "is already in the run"
    elif _deals_shares(run):
        said = f"cannot be {press.what} by hand: each worker has a share of the model"
    elif press.what == "back":
        run.events.append(ev.Join(worker))
        said = "was brought back by hand"
    elif sum(not _is_gone(run, each, coming) for each in run.view.workers) < 2:
        said = "is the last worker and cannot be lost"
    else:
        run.events.append(ev.Leave(worker, "failed"))
        said = "was removed by hand"
    run.out.send(CLIENT, msg.Incident(f"{name} {said} at {run.now:.2f} s"))


# -------------------------------------------------------------------- workers that leave and join


def awaits_worker(run: RunState) -> bool:
    """Return whether a worker that may still come has yet to join."""
    joins = any(type(event) is ev.Join and is_possible(run, event) for event in run.events)
    expects = run.timers.expects_join(run.peers.lost_workers)
    return joins or expects or run.replacements.awaits_worker


def is_possible(run: RunState, event: ev.Event) -> bool:
    """Return whether a join or failure of the profile is possible: a dead process does not come back.

    Another that has taken its place joins once, be it by itself or when the profile has it return.
    """
    waiting = run.engine.waiting_events
    if type(event) is ev.Join and _deals_shares(run):
        return False  # a share never moves, and the others have all of them
    if type(event) is ev.Join:
        return event.worker in run.peers.workers() and _is_gone(run, event.worker, waiting)
    if type(event) is ev.Leave:
        return event.worker in run.view.workers or not _is_gone(run, event.worker, waiting)
    return True


def put_off(run: RunState, event: ev.Event) -> None:
    """Postpone a join while each worker has a share of the model."""
    if type(event) is ev.Join and _deals_shares(run):
        run.joins_put_off.add(event.worker)


def take_joins_put_off(run: RunState) -> list[ev.Join]:
    """Remove and return the postponed joins once they are possible."""
    if not run.joins_put_off or _deals_shares(run):
        return []
    joining = sorted(run.joins_put_off)
    run.joins_put_off.clear()
    return [ev.Join(worker) for worker in joining]


def _deals_shares(run: RunState) -> bool:
    """Return whether each worker has, or is about to receive, a share of the model."""
    in_force = run.workload.experiment.strategy.compositions[run.view.in_force]
    return any(isinstance(each.placement, Shares) for each in (run.composition, in_force))


def changes_since_checkpoint(run: RunState, time_s: float, without_part: Collection[int]) -> list[ev.Event]:
    """Return the membership changes of a run that resumes at `time_s`: missing and returned workers.

    A failure or join of the profile may have been due then, and have waited for its turn. Of workers
    `without_part` in the checkpoint nothing is left.
    """
    here, there = run.peers.workers(), run.view.workers
    gone = {w.id for w in there.values() if w.status == Status.GONE and not w.dropped}
    away = {worker for worker in here if run.timers.is_away(worker, time_s)}
    lost = {*without_part}
    left = sorted(there.keys() - gone - {*here}.difference(away, lost))
    is_in = there.keys() - gone - lost
    back = [worker for worker in here if worker not in is_in and worker not in away]
    why = {True: "failed", False: "lost"}
    return [*(ev.Leave(worker, why[worker in away]) for worker in left), *map(ev.Join, back)]


def gone_at_last(run: RunState) -> set[int]:
    """Return the workers that are lost at the end of the run, or have left it for good."""
    coming = [*run.coming()]
    return {w for w in run.view.workers if _is_gone(run, w, ()) or _is_gone(run, w, coming)}


def _is_gone(run: RunState, worker: int, coming: Iterable[ev.Event]) -> bool:
    """Return whether a worker is out of the run after these pending events."""
    known = run.view.workers.get(worker)
    gone = known is None or known.status is Status.GONE
    for event in coming:
        if isinstance(event, ev.Leave | ev.Join) and event.worker == worker:
            gone = type(event) is ev.Leave
    return gone
