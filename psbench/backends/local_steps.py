"""Decisions about workers with local steps, shared by both backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from psbench.backends.exchange import Exchange
from psbench.core.events import Push, Report, Vote
from psbench.core.strategy import Strategy
from psbench.core.worker_loop import WorkerLoop
from psbench.core.worker_policy import Directive
from psbench.training.corruption import Corruptions
from psbench.training.local_model import LocalModel, numbers_of
from psbench.training.mixing import ModelVectors


def brought(exchange: Exchange, release: Any, sent: bool) -> tuple[Tensor, ...]:
    """Return the content of a release: the last commit's aggregate; parameters and buffers; or nothing.

    `sent`: whether anything does; it does not after a vote, or to a worker that holds the current version.
    """
    if not sent:
        return ()
    return (exchange.aggregate(release),) if release.aggregate else exchange.model(release)


def renew(model: LocalModel, vectors: Sequence[Tensor], fragment: int = -1) -> None:
    """Update a worker's model according to a release that orders a step.

    Parameters
    ----------
    vectors : sequence of tensor
        What it brings; see `brought`. Without any the last step is kept.
    fragment : int
        The entries that the parameters are of; -1: all.
    """
    if len(vectors) == 1:
        model.receive(vectors[0])
    elif vectors:
        model.load(vectors[0], vectors[1], fragment)
    else:
        model.keep()


def obey(
    directive: Directive,
    loop: WorkerLoop,
    *,
    keep: Callable[[], None],
    send: Callable[[Report | Vote], None],
    push: Callable[[bool], None],
) -> bool:
    """Execute the worker loop's directive after a step, and return whether the worker computes another.

    Parameters
    ----------
    keep : callable
        Keeps the last step in the worker's model.
    send : callable
        Sends a report or a vote.
    push : callable
        Pushes; called with whether the worker computes on meanwhile (overlap).
    """
    if directive in ("continue", "report"):
        keep()
        if directive == "report":
            send(loop.report())
        return True
    if directive == "vote":
        send(loop.vote())
    elif directive != "wait":
        push(directive == "push_and_continue")
    return directive == "push_and_continue"


def push_round(
    model: LocalModel,
    loop: WorkerLoop,
    exchange: Exchange,
    corruptions: Corruptions | None,
    *,
    num_bytes: int,
    overlapping: bool,
    reported: Mapping[str, float],
) -> Push:
    """Push a worker's steps since its last push; a faulty worker pushes a corrupted vector.

    `reported`: what its selection reports with it.
    """
    payload = model.payload(loop.fragment)
    measured = numbers_of(payload, loop.reads)
    push = loop.push(-1, bytes=num_bytes, overlapping=overlapping, measured=measured, reported=reported)
    if corruptions is not None:
        payload = corruptions.of(loop.worker, push.ticket, payload, push.fragment)
    decoded = exchange.push(push, payload, model.buffers)
    if model.notes_pushes and (vector := decoded()) is not None:
        model.sent(vector)
    return push


def restored_loop(plain: Mapping[str, Any], composition: Strategy, worker: int) -> WorkerLoop | None:
    """Return the worker loop of a checkpoint; None if the worker had not been released."""
    if "loop" not in plain:
        return None
    loop = WorkerLoop(composition, worker, 1)  # its state has the batch size, too
    loop.load_state_dict(plain["loop"])
    return loop


def mean_model(models: Sequence[ModelVectors]) -> ModelVectors | None:
    """Return the mean of the workers' models, given in worker order; None if no worker has one yet."""
    models = [model for model in models if len(model[0])]
    if not models:
        return None
    first, rest = models[0], models[1:]
    parameters, buffers = (
        sum((model[i] for model in rest), first[i].clone()) / len(models) for i in range(2)
    )
    return parameters, buffers
