"""Evaluation of a live run's model during training, and the numbers that parts request.

The model is the run's result: the store's, or, where the workers' own models diverge between averages, their
mean. The evaluator computes losses and metrics; the servers compute the numbers that need their tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from psbench.backends.dask.coordinator.run_state import PendingEvaluation, RunState, Script, Wait, answered
from psbench.backends.dask.protocol import messages as msg
from psbench.backends.dask.protocol.framing import StateDict
from psbench.backends.dask.protocol.roles import EVALUATOR
from psbench.backends.dask.server.store import Then
from psbench.backends.schedule import UpdateSchedule
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.actions import Action
from psbench.core.log import Kind, plain_json
from psbench.core.peer_to_peer import PeerToPeer
from psbench.core.view import Status

#: the processes that a script waits for while it gathers a model
HOLDERS = "the holders of the model"


def update_schedule(run: RunState) -> UpdateSchedule:
    """Return the updated schedule, whose evaluation or end may be due with a version."""
    return UpdateSchedule(
        run.rules,
        run.view,
        evaluate=partial(evaluate, run),
        movement=lambda: run.evaluations.movement,
        end=run.ending.finish,
    )


# -------------------------------------------------------------------- in an answer of the engine


def before_answer(run: RunState, actions: Sequence[Action]) -> None:
    """Request the models of the workers that an answer releases, if an evaluation may be due with it.

    For a run whose model is the mean of theirs. They send them as they go on. The others are asked when the
    answer is performed, which may order them to mix.
    """
    if run.update_schedule.may_be_due:
        here = run.peers.workers()
        going = {a.worker for a in actions if type(a) is act.Release and a.then == "step"} & {*here}
        run.evaluations.asked = run.models.ask(released=going), going


def do_without_model(run: RunState, worker: int) -> None:
    """Stop waiting for a worker's model if its release is not sent."""
    if run.evaluations.asked is not None:
        run.models.leave(worker, run.evaluations.asked[0])


def after_answer(run: RunState) -> None:
    """Discard the models requested for a completed answer."""
    run.evaluations.asked = None


def after_update(run: RunState) -> Script[None]:
    """Evaluate or end the run if due with the current version; wait if the evaluator is behind."""
    state = run.evaluations
    if run.rules.sees_movement and run.update_schedule.may_be_due:
        state.movement = yield from answered(run.store.ask_movement, "the parameter server")
    run.update_schedule.after_update()
    if state.awaits_all:
        yield from _await_all(run)
    if state.is_full:
        yield Wait(lambda: not state.is_full, lambda: EVALUATOR)


# -------------------------------------------------------------------- evaluations


def evaluate(run: RunState, number: int) -> None:
    """Request an evaluation of the current version, without stopping training."""
    state = run.evaluations
    if not state.is_off:
        state.last = _progress(run)
    key = _expect(run, number)
    gather(run, partial(_send, run, key))


def evaluate_start(run: RunState) -> Script[None]:
    """Request an evaluation of the initial model, and wait for it."""
    evaluate(run, 0)
    yield from _await_all(run)


def evaluate_last(run: RunState, model: StateDict) -> Script[None]:
    """Request an evaluation of the final model unless it was evaluated; wait for all evaluations."""
    if run.evaluations.last != _progress(run) and run.ending.status != "diverged":
        _send(run, _expect(run, -1), model)
    yield from _await_all(run)


def _progress(run: RunState) -> tuple[int, int]:
    return run.view.version, run.view.samples


def _expect(run: RunState, number: int) -> int:
    """Record a pending evaluation of the current version, and return its key."""
    state = run.evaluations
    key = next(state.keys)
    if not state.is_off:
        state.pending[key] = PendingEvaluation(number, run.view.version, run.view.epoch)
    return key


def _send(run: RunState, key: int, model: StateDict) -> None:
    """Send the evaluator a model, unless the evaluation was cancelled."""
    state = run.evaluations
    if key in state.pending:
        state.spreads[key] = state.spread
        state.sent[key] = model
        run.out.send(EVALUATOR, msg.EvaluateModel(key, model))


def _await_all(run: RunState) -> Script[None]:
    pending = run.evaluations.pending
    yield Wait(lambda: not pending, lambda: f"{EVALUATOR} ({len(pending)} evaluations)")


def take(run: RunState, message: msg.EvaluationDone) -> None:
    """Handle an evaluation: an event, except before the first step and after the last."""
    state = run.evaluations
    state.sent.pop(message.key, None)
    found = state.pending.pop(message.key, None)
    if found is None:
        return  # of an evaluator that was given up
    number, version, epoch = found
    values = {"epoch": epoch} | message.values | state.spreads.pop(message.key, {})
    if number > 0 and not run.ending:
        _add_event(run, ev.Evaluated(number, version, values))
    else:
        _log(run, -1 if number else 0, version, values)


def _add_event(run: RunState, event: ev.Evaluated) -> None:
    """Queue an evaluation as an event: before later pushes if the learning rate depends on it."""
    if not run.evaluations.awaits_all:
        run.events.append(event)
        return
    earlier = [place for place, each in enumerate(run.events) if type(each) is ev.Evaluated]
    run.events.insert(max(earlier, default=-1) + 1, event)


def take_late(run: RunState, event: ev.Evaluated) -> None:
    """Log an evaluation that arrived before the run's end but after the answer that ended it."""
    _log(run, -1, event.version, event.values)


def _log(run: RunState, number: int, version: int, values: dict[str, float]) -> None:
    at = run.now if number else 0.0
    run.log.add(Kind.EVALUATED, at, id=number, version=version, text=plain_json(values))


def ends_with(run: RunState, values: dict[str, float]) -> bool:
    """Return whether an evaluation ends the run, and end it."""
    reason = run.rules.after_evaluation(values)
    if reason:
        run.ending.finish(reason)
    return bool(reason)


# -------------------------------------------------------------------- models


def gather(run: RunState, then: Then) -> None:
    """Call `then` with the run's model."""
    state = run.evaluations
    if not run.averages:
        run.store.gather(False, then)
        return
    tag, going = state.asked or (run.models.ask(), set[int]())
    run.models.ask_more(tag, _with_models(run) - going)
    store = run.store

    def take_mean(mean: StateDict, spread: dict[str, float]) -> None:
        state.spread = spread if isinstance(run.composition.placement, PeerToPeer) else {}
        if mean:
            then(mean)
        else:
            store.gather(False, then)

    run.models.mean(tag, take_mean)


def _with_models(run: RunState) -> set[int]:
    """Return the present workers that were released under this composition."""
    workers = run.view.workers
    here = [workers[w] for w in run.peers.workers() if w in workers]
    return {w.id for w in here if w.status not in (Status.NEW, Status.GONE)}


# -------------------------------------------------------------------- numbers that parts request


def measure(run: RunState, measure: act.Measure) -> None:
    """Request the numbers of a `Measure` from the servers and the evaluator."""
    state, store, pending = run.measurement, run.store, run.view.pending
    needs, state.samples = measure.needs, measure.samples
    state.missing, state.numbers, state.asked = set(needs), {}, {}
    loads = [name for name in needs if name.startswith("server_load:")]
    if loads:
        store.loads(partial(_take_loads, run, loads))
    if products := [name for name in needs if name.startswith("dot:")]:
        store.products(products, pending, partial(take_number, run))
    for name, number in needs.items():
        kind = name.split(":")[0]
        if kind in ("server_load", "dot"):
            continue
        push = pending[number] if number is not None else None
        if kind == "train_loss":
            store.gather(False, partial(_request_loss, run, name, "train"))
        elif push is None:
            store.gather(False, partial(_request_loss, run, name, "test"))
        elif kind == "candidate_loss":
            store.payload(push, partial(_request_loss, run, name, "test"))
        else:
            store.distance_sq(push, partial(take_number, run, name))


def _take_loads(run: RunState, names: list[str], seconds: list[float]) -> None:
    for name in names:
        take_number(run, name, seconds[int(name.partition(":")[2])])


def _request_loss(run: RunState, name: str, which: Literal["train", "test"], model: StateDict) -> None:
    if not model:  # lost with the worker that had it
        take_number(run, name, float("nan"))
        return
    tensors = {part: model[part] for part in ("parameters", "buffers")}
    state = run.measurement
    state.asked[name] = msg.MeasureLoss(name, which, state.samples, tensors)
    run.out.send(EVALUATOR, state.asked[name])


def take_number(run: RunState, name: str, number: float) -> None:
    """Store a requested number; the last one sends all to the engine before any other event."""
    state = run.measurement
    if name not in state.missing:
        return  # of an evaluator that was given up
    state.asked.pop(name, None)
    state.numbers[name] = number
    state.missing.discard(name)
    if not state.missing:
        run.events.appendleft(ev.Measured(state.numbers))


# -------------------------------------------------------------------- the evaluator


def begin_again(run: RunState) -> None:
    """Repeat all unanswered requests to a new evaluator."""
    run.evaluations.is_off = False
    for key, model in run.evaluations.sent.items():
        run.out.send(EVALUATOR, msg.EvaluateModel(key, model))
    for message in run.measurement.asked.values():
        run.out.send(EVALUATOR, message)


def do_without(run: RunState) -> None:
    """Stop evaluating until a new evaluator joins."""
    run.evaluations.is_off = True
    run.evaluations.pending.clear()
    run.evaluations.sent.clear()
