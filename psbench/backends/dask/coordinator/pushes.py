"""Arrived pushes on their way to the engine; under All-Reduce, their sum comes first.

The payload of a push is in the first server's slice before its message is read, and nowhere else. It leaves
when the engine applies or discards the push, or when the engine has found the push void.

Under All-Reduce a version is stamped after its ring, so the ring comes before the engine is given the push.
The engine decides which workers take part in a ring and with which weights, and stamps what it decides. So
another engine in the same state is asked first. The workers add up what it decides; when they have the sum,
the run's own engine is given the event, at the time of then, as in virtual time. Events that come meanwhile
wait.
"""

from __future__ import annotations

from psbench.backends.dask.coordinator.run_state import RunState, Script, Wait
from psbench.backends.dask.protocol.messages import PushMessage
from psbench.backends.dask.protocol.roles import names_or_count, worker_name
from psbench.backends.dask.server.all_reduce import AllReduceStore
from psbench.backends.dask.server.store import key_of
from psbench.backends.pushes import why_diverged, with_stats
from psbench.core import events as ev
from psbench.core.actions import Apply
from psbench.core.view import Status
from psbench.training.batches import BatchPosition

# -------------------------------------------------------------------- arrival


def take(run: RunState, worker: int, message: PushMessage) -> None:
    """Add a push to the engine's queue."""
    state = run.pushes
    samples, steps = state.done.get(worker, (0, 0))
    state.done[worker] = samples + message.samples, steps + message.steps
    send_s = max(0.0, run.clock_s - message.sent_s)
    # a void push may be of another composition, with other fragments and statistics
    is_current = _is_current(run, worker, message.ticket)
    known = run.view.workers[worker]
    fragment, setting = (known.fragment, known.codec_setting) if is_current else (-1, -1)
    num_bytes = state.bytes_up(fragment, message.version, setting)
    # fmt: off
    push = ev.Push(
        state.next_number, worker, message.ticket, message.version, message.samples, message.steps,
        num_bytes, message.compute_s, send_s, message.loss, message.stats, message.overlapping,
    )
    # fmt: on
    state.next_number += 1
    run.store.arrived(push)
    if not message.is_finite:
        state.not_finite.add(push.id)
    run.events.append(with_stats(push, state.reads) if state.reads and is_current else push)


def _is_current(run: RunState, worker: int, ticket: int) -> bool:
    known = run.view.workers[worker]
    return ticket == known.ticket and known.status is Status.COMPUTING


def diverges(run: RunState, event: ev.Event) -> bool:
    """End the run if a valid push contains NaN or infinity; return whether it ends.

    When its turn has come: until then an answer may be under way whose checkpoint has the version before.
    """
    if not (type(event) is ev.Push and event.id in run.pushes.not_finite):
        return False
    if not _is_current(run, event.worker, event.ticket):
        return False
    run.engine.handle(event, run.now)
    run.ending.unanswered = True
    run.ending.end("diverged", why_diverged(event, run.now))
    return True


def discard_void(run: RunState) -> None:
    """Discard the payloads of pushes that the engine has found void."""
    waiting, pending = run.store.waiting, run.view.pending
    if len(waiting) <= len(pending) or run.engine.measuring:
        return
    needed = {key_of(push) for push in pending.values()}
    needed |= {key_of(event) for event in run.events if type(event) is ev.Push}
    for key in [key for key in waiting if key not in needed]:
        run.store.discard(key)


# -------------------------------------------------------------------- places in the data


def position_after(run: RunState, worker: int) -> BatchPosition:
    """Return the data position after a worker's last push; its chunk is unknown."""
    return BatchPosition(*run.pushes.done.get(worker, (0, 0)), 0, 0, 0)


def handled_position(run: RunState, worker: int) -> BatchPosition:
    """Return the data position after the last push of a worker that the engine has handled."""
    after = position_after(run, worker)
    queued = [event for event in run.events if type(event) is ev.Push and event.worker == worker]
    samples, steps = sum(push.samples for push in queued), sum(push.steps for push in queued)
    return after._replace(taken=after.taken - samples, steps=after.steps - steps)


# -------------------------------------------------------------------- sums of workers


def sum_before(run: RunState, event: ev.Event) -> Script[None]:
    """Order the sum of the version that the answer to an event will create, if any."""
    began, updates = run.clock_s, _updates_after(run, event)
    if not updates:
        return
    run.in_ring = event
    yield from sum_of(run, updates[0])
    if not run.ending:  # else the engine is not given it
        run.in_ring = None
    if type(event) is ev.Push:
        seconds = run.clock_s - began
        event.send_s += seconds
        event.stats = (event.stats or {}) | {ev.COLLECTIVE: seconds}


def sum_of(run: RunState, apply: Apply) -> Script[None]:
    """Order the sum of an update's pushes unless it exists, and wait until all members have it."""
    store = run.store
    assert isinstance(store, AllReduceStore)
    while not store.has_sum_for(apply):  # again, if all who had it are lost
        store.reduce(apply)
        yield Wait(lambda: not store.is_adding_up, lambda: f"{_adding_up(run, store)} (in a ring)")


def _adding_up(run: RunState, store: AllReduceStore) -> str:
    names = [*map(worker_name, store.adding_up)]
    return names_or_count(names, run.view.num_active, "workers")


def _updates_after(run: RunState, event: ev.Event) -> list[Apply]:
    """Return the updates in the answer that an event would receive now."""
    if not run.engine.measuring:
        run.preview = None
        if _can_complete(run, event):
            run.preview = run.spare_engine = run.spare_engine or run.workload.engine(None)
            run.preview.load_state_dict(run.engine.state_dict())
    elif run.preview is not None and not run.preview.measuring:
        run.preview = None  # it has decided otherwise, at another time
    if run.preview is None:
        return []
    answer = run.preview.handle(event, run.now)
    return [each for each in answer if isinstance(each, Apply)]


def _can_complete(run: RunState, event: ev.Event) -> bool:
    """Return whether an event can complete a barrier: the last worker's, or one that may drop the others."""
    view = run.view
    own = view.workers.get(getattr(event, "worker", -1))
    others = view.num_computing - (own is not None and own.status is Status.COMPUTING)
    return not others or run.engine.handles_pushes
