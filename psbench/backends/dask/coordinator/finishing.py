"""The end of a live run: requests to stop, the last evaluation, and the outcome for the client."""

from __future__ import annotations

from psbench.backends.dask.coordinator import checkpointing, evaluation, membership
from psbench.backends.dask.coordinator.evaluation import HOLDERS
from psbench.backends.dask.coordinator.run_state import RunState, Script, Wait, answered
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.decoder import Json
from psbench.backends.dask.protocol.roles import CLIENT, names_or_count, server_name, servers_of, worker_name
from psbench.core import events as ev

#: seconds that a stop waits for a version to write a checkpoint of, before it waits for the workers' parts
_STOP_S = 1.5


# -------------------------------------------------------------------- requests to stop


def stop(run: RunState, with_checkpoint: bool) -> None:
    """End the run, with a checkpoint of its next version if wanted and if it comes soon."""
    if with_checkpoint and run.training:
        run.checkpoint_schedule.stop()
        run.stop_by_s = run.now + _STOP_S
    else:
        run.ending.stop()
    if not with_checkpoint:  # by hand: it ends here, with what it has
        run.retired = ""


def let_leavers_go(run: RunState) -> None:
    """Dismiss the roles on retiring Dask workers; a server's run continues on other Dask workers."""
    leaving, run.leaving = run.leaving, []
    for name in leaving:
        if not (run.ending or membership.let_go(run, name)):
            run.retired = name
            stop(run, with_checkpoint=True)


def stop_without_version(run: RunState) -> Script[None]:
    """End a run with a checkpoint of the current state, as no version came in time."""
    if run.ending:
        return
    if run.engine.measuring:  # until what is measured has come
        yield Wait(lambda: bool(run.events) or bool(run.ending), lambda: computing(run))
    else:
        checkpointing.write(run, "stopped")


def computing(run: RunState) -> str:
    """Return the names of the computing workers."""
    names = [*map(worker_name, run.view.computing)]
    return names_or_count(names, run.view.num_active, "workers") or "the workers"


# -------------------------------------------------------------------- the end


def move(run: RunState) -> Script[None]:
    """Send the last checkpoint to the client, which continues the run on other Dask workers."""
    yield from checkpointing.complete(run)
    run.out.send(CLIENT, msg.RunMoves(run.retired))


def finish(run: RunState) -> Script[None]:
    """Request the last evaluation, and send the client the outcome."""
    # handling them would make versions that the store does not have
    gone = membership.gone_at_last(run)
    for event in run.events:
        if type(event) is ev.Evaluated:
            evaluation.take_late(run, event)
    run.events.clear()
    time_s = min(run.now, run.rules.deadline_s)
    model = yield from answered(lambda then: evaluation.gather(run, then), HOLDERS)
    yield from checkpointing.complete(run)
    for worker in run.peers.workers():
        run.peers.dismiss(worker_name(worker))
        run.out.send(worker_name(worker), msg.StopRun())
    yield from evaluation.evaluate_last(run, model)
    yield from _await_usage(run)
    if run.workload.experiment.connection.stamps:
        yield from _await_served(run)
    run.log_stream.send()
    run.strangers.report()
    facts = {
        "time_s": time_s,
        "lost_workers": sorted(gone | (run.peers.lost_workers - run.view.workers.keys())),
        "strangers": run.strangers.total,
        "usage": sorted(run.peers.usage.values(), key=lambda used: used["worker"]),
        "unanswered": run.ending.unanswered,
    }
    run.out.send(CLIENT, msg.RunOutcome(run.ending.status, run.ending.reason, Json(facts), model))
    yield Wait(lambda: run.client_has_outcome, lambda: CLIENT)


def _await_usage(run: RunState) -> Script[None]:
    """Wait for the workers' reports of usage, except those in a long last step."""
    latest, looks = run.clock_s + run.workload.experiment.connection.settle_within_s, run.looks
    yield Wait(
        lambda: run.looks > looks and (run.clock_s > latest or run.peers.have_reported),
        lambda: names_or_count(run.peers.without_usage, len(run.peers.workers()), "workers"),
    )


def _await_served(run: RunState) -> Script[None]:
    """Request the report of each server's service, except from servers that are lost."""
    latest = run.clock_s + run.workload.experiment.connection.settle_within_s
    most = max(map(servers_of, run.workload.experiment.strategy.compositions))
    names = [name for name in map(server_name, range(most)) if name not in run.peers.gone]
    for name in names:
        run.out.send(name, msg.AskServed())
    yield Wait(
        lambda: run.clock_s > latest or run.peers.served.keys() >= set(names),
        lambda: names_or_count(
            [name for name in names if name not in run.peers.served], len(names), "servers"
        ),
    )
