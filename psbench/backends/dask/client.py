"""A live run from the client's side: placement on the cluster, and a restart after the loss of a server."""

from __future__ import annotations

from collections.abc import Callable, Collection

from distributed import Client

from psbench.backends.control import Control, Observer
from psbench.backends.dask.attempt import Attempt
from psbench.backends.dask.connecting import connected
from psbench.backends.dask.energy_meters import EnergyMeters
from psbench.backends.dask.machines import check_machines, check_one_host
from psbench.backends.dask.objects import check_objects
from psbench.backends.dask.place_search import demand
from psbench.backends.dask.placement import check_replica, find_room, place_with_resources, placing, room_on
from psbench.backends.dask.protocol.roles import COORDINATOR, first_roles
from psbench.backends.dask.reach import check_reach
from psbench.backends.dask.record import Record
from psbench.backends.dask.retirement import ServerRetired
from psbench.backends.dask.rpc import Departed, Unresponsive
from psbench.backends.dask.shipping import bare
from psbench.backends.dask.versions import check_versions
from psbench.backends.outcome import Outcome
from psbench.checkpoints.file import Checkpoint
from psbench.checkpoints.folder import CheckpointFolder
from psbench.core.log import EventLog
from psbench.errors import BackendError, Cancelled, ServerLost
from psbench.experiment import Experiment
from psbench.system.start_progress import start_progress
from psbench.training.build import Workload


def run_dask(
    workload: Workload,
    log: EventLog,
    control: Control,
    observer: Observer | None = None,
    checkpoints: CheckpointFolder | None = None,
    start: Checkpoint | None = None,
    client: Client | None = None,
) -> Outcome:
    """Run an experiment on real Dask workers, in real time.

    Without a scheduler's address a cluster of processes is started on this machine, bound to loopback, and
    ended with the run. The processes do not import the script that calls this, so it needs no guard.

    The cluster's profile is emulated on top of the real machines: a slower worker waits as long as it would
    have computed, one that fails forgets what it computes, and one that joins late or rejoins begins then.
    The network is the real one.

    A run that loses a parameter server goes on from its last checkpoint, as often as
    `Recovery.max_restarts` allows; the log is cut off there, and the outcome's `incidents` say what was lost.

    Parameters
    ----------
    workload : Workload
    log : EventLog
        Grows a few times a second while the run goes on.
    control : Control
    observer : callable or None
        Called with the log, in this thread, whenever it has grown.
    checkpoints : CheckpointFolder or None
        Where checkpoints go; the last one is kept in memory only without it.
    start : Checkpoint or None
        Where to resume; the log up to there is in `log` already.
    client : Client or None
        Dask's, of the caller: its cluster is used, and it stays open.

    Raises
    ------
    BackendError
        If the scheduler does not answer, has too few workers, or a task fails; its message then holds the
        task's own traceback.
    ServerLost, WorkerLost
        If a server is gone once too often, or every worker is.
    """
    experiment = workload.experiment
    check_objects(bare(experiment))
    record = Record(experiment, log, observer, checkpoints, start)
    roles, least = first_roles(experiment)
    start_progress().expect(roles)
    with connected(experiment, len(roles), client, control.check) as connection:
        restarts, most, leaving = 0, experiment.recovery.max_restarts, set[str]()
        attempt: Attempt | None = None
        to_the_end = _runner(experiment, connection)
        while True:
            try:
                attempt = _placed(workload, record, control, connection, client is None, leaving)
                return to_the_end(attempt)
            except ServerRetired as retired:
                leaving |= retired.leaving
                _go_on(record, retired, "on other Dask workers")
            except Unresponsive as silent:
                if silent.addresses <= leaving:
                    raise
                leaving |= silent.addresses
                if not isinstance(silent, Departed):
                    others = room_on(connection, experiment.connection, leaving, control.check)
                    if not (record.has_gone_back or others.has(roles[:least])):
                        raise
                record.note(f"{silent}; the run continues without it")
            except ServerLost as lost:
                if restarts == most:
                    often = f"; it was started again {restarts} times (recovery.max_restarts)"
                    raise ServerLost(f"{lost}; {record.last_checkpoint}{often if restarts else ''}") from None
                restarts += 1
                if attempt is not None and lost.role in attempt.placed:  # it may be frozen, and be there
                    leaving.add(attempt.placed[lost.role])
                _go_on(record, lost, f"(restart {restarts} of {most})")
            except Cancelled:
                outcome = record.stopped()
                if outcome is None:
                    raise
                return outcome


def _runner(experiment: Experiment, client: Client) -> Callable[[Attempt], Outcome]:
    """Return the function that runs an attempt to its end; it meters energy if the cluster has costs."""
    metered = experiment.cluster.costs is not None
    return EnergyMeters(client, experiment.connection).run if metered else Attempt.run


def _placed(
    workload: Workload,
    record: Record,
    control: Control,
    client: Client,
    is_own: bool,
    leaving: Collection[str],
) -> Attempt:
    """Return an attempt with submitted tasks, on Dask workers that are free and not retiring."""
    control.check()
    experiment = workload.experiment
    roles, least = first_roles(experiment)
    wait_s, limits = experiment.recovery.wait_for_workers, experiment.connection
    if record.has_gone_back:  # a process that was killed is started again
        wait_s = max(wait_s, limits.restart_within_s)

    with placing(client, wait_s, control.check, limits), demand(client, limits) as wanted:
        try:
            room = find_room(
                client, roles, least, wait_s, control.check, leaving, limits=limits, ask=wanted.ask
            )
        except BackendError as error:
            if record.has_gone_back and not isinstance(error, Cancelled):
                raise BackendError(f"{error}; {record.last_checkpoint}") from None
            raise
        is_local = is_own and not experiment.has_scheduler
        placed = place_with_resources(roles, room, limits.hosts)
        check_replica(placed)
        start_progress().place(placed)
        check_one_host(client, workload, placed, is_local=is_local)
        if not is_local:
            check_reach(client, [placed[COORDINATOR]], limits)
            check_versions(client, placed.values(), limits, control.check)
            check_machines(client, workload, placed)
        attempt = Attempt(workload, record, control, client, placed, roles)
        wanted.end()  # from here on the cluster sees the roles themselves
        attempt.start()
    return attempt


def _go_on(record: Record, lost: ServerLost, how: str) -> None:
    """Return to the last checkpoint; raise if there is none and work would be lost."""
    if not record.can_go_back:
        raise ServerLost(f"{lost}; {record.last_checkpoint}") from None
    record.note(f"{lost}; {record.go_back()}; the run resumes from there {how}")
