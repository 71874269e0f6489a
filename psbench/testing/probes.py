"""Probes of the arithmetic of both halves: every push has an effect, in any order, and the loss falls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from psbench.core import Apply, Push, Pushed, Release, Strategy
from psbench.core.aggregation import GradientSums
from psbench.core.peer_to_peer import Mixing, PeerToPeer
from psbench.optimization.optimizer import SGD
from psbench.testing.arithmetic import (
    ENTRIES,
    NONE,
    OPTIMIZER,
    SHAPES,
    answer_of,
    apply_to,
    drawn,
    is_close,
    named,
    pushes_of,
    some_fragments,
)
from psbench.testing.invariants import BrokenContract, MisfitOrBroken
from psbench.testing.scripted_cluster import ScriptedCluster
from psbench.training.local_model import LocalModel
from psbench.training.server import Server
from psbench.training.trainer import StepResult

#: small enough for outer steps with a large momentum, and for stale ones
_SLOWLY = SGD(lr=0.01, momentum=0.5)
#: of one worker; enough that its model has been replaced
_ROUNDS = 3
#: how many times the first loss is more than a large momentum overshoots by
_DIVERGES = 1000.0


# -------------------------------------------------------------------- the server's half


def check_commits(strategy: Strategy, commits: Sequence[Apply]) -> None:
    """Check the first version: it contains every push by weight, in any order, with total weight one.

    Parts for which a probe is wrong declare so: those that `withstands_nan` may ignore a push, those with
    `needs_base` take one push after another, and weights that set the rate `shares_rate`.

    Raises
    ------
    BrokenContract
    """
    part = strategy.aggregation
    if strategy.sends_fragments or isinstance(part, Mixing):
        return
    who = f"{type(part).__name__}.update"
    for commit in commits:
        apply = replace(commit, pushes=[replace(push, base_version=0) for push in commit.pushes])
        is_fresh = all(push.base_version == commit.version - 1 for push in commit.pushes)
        if not part.withstands_nan:
            _check_each_counts(who, strategy, apply)
        if strategy.consistency.barrier and is_fresh and not part.needs_base:
            _check_any_order(who, strategy, apply)
        if is_fresh and part.payload == "parameters":
            _check_the_model_stays(who, strategy, apply)
        elif is_fresh:
            _check_equal_pushes(who, strategy, apply)
    if _carry_information(commits) and not (part.exchanges or part.withstands_nan):
        _check_weights_count(who, strategy, commits)


def _check_each_counts(who: str, strategy: Strategy, apply: Apply) -> None:
    usual = _made(strategy, apply)
    for place, weight in enumerate(apply.weights):
        others = (_made(strategy, apply, changes={place: scale}) for scale in (10.0, -10.0, 0.1))
        if weight and all(_equal(usual, other) for other in others):
            raise BrokenContract(
                f"{who}: push number {place} of {len(apply.pushes)} has no effect, whatever its vector, "
                f"although its weight is {weight:g}. Use all of `pushes`, as step.sum(pushes) does; a "
                "robust part declares `withstands_nan`"
            )


def _check_any_order(who: str, strategy: Strategy, apply: Apply) -> None:
    usual, count = _made(strategy, apply), len(apply.pushes)
    for order in ([*range(count)][::-1], [*range(1, count), 0]):
        if not is_close(usual, _made(strategy, apply, order=order)):
            raise BrokenContract(
                f"{who}: under a barrier the version depends on the order of the pushes, which is random. "
                "Treat all alike; a part that handles pushes one by one lists "
                "NEEDS_SINGLE_PUSHES in its `needs`"
            )


def _check_equal_pushes(who: str, strategy: Strategy, apply: Apply) -> None:
    """Check that k equal gradients or differences move the model as one does."""
    part = strategy.aggregation
    if part.shares_rate or isinstance(part, GradientSums) or part.needs_base:
        return
    if _measures_vectors(strategy):
        return
    alike = dict.fromkeys(range(len(apply.pushes)), 0.0)
    together = _made(strategy, apply, changes=alike, same=True)
    one = replace(apply, pushes=apply.pushes[:1], weights=[1.0])
    if not is_close(together[:1], _made(strategy, one, changes={0: 0.0}, same=True)[:1]):
        raise BrokenContract(
            f"{who}: {len(apply.pushes)} equal pushes with the weights {_listed(apply.weights)} move the "
            "model differently from one of weight 1. The weights of a commit must sum to 1, and each must "
            "be used once; if weights are meant to set the rate, declare `shares_rate`"
        )


def _check_the_model_stays(who: str, strategy: Strategy, apply: Apply) -> None:
    """Check that a server keeps its model if all workers push that model."""
    if strategy.vectors_of_a_push > 1:
        return
    start = drawn("start")
    if not is_close(_made(strategy, apply, vector=start)[:1], [start]):
        raise BrokenContract(
            f"{who}: all workers push the server's model unchanged, with the weights "
            f"{_listed(apply.weights)}, but the model changes. Make the weights of a commit sum to 1, or "
            "move the model by a share of the distance: push.vector - x"
        )


def _check_weights_count(who: str, strategy: Strategy, commits: Sequence[Apply]) -> None:
    for commit in commits:
        apply = replace(commit, pushes=[replace(push, base_version=0) for push in commit.pushes])
        other = [weight * (1.7 if place % 2 else 0.6) for place, weight in enumerate(apply.weights)]
        if not _equal(_made(strategy, apply), _made(strategy, replace(apply, weights=other))):
            return
    raise BrokenContract(
        f"{who}: ignores the weights that on_commit decides. Use push.weight, or step.sum(pushes); a part "
        "that counts all pushes alike declares `weighs_samples` = False and gives all the same weight"
    )


def _carry_information(commits: Sequence[Apply]) -> bool:
    """Return whether weights differ other than by the number of pushes."""
    plain = {round(weight, 6) for apply in commits for weight in apply.weights}
    shares = {round(weight * len(apply.weights), 6) for apply in commits for weight in apply.weights}
    return len(plain) > 1 and len(shares) > 1


def _made(
    strategy: Strategy,
    apply: Apply,
    *,
    changes: dict[int, float] | None = None,
    same: bool = False,
    vector: Tensor | None = None,
    order: Sequence[int] = (),
) -> list[Tensor]:
    """Return a server's first version from a commit, its answer, and its state.

    Vectors at the places of `changes` are replaced: by others, so many times as large, or by the same one.
    Or all are, by one `vector`.
    """
    start = drawn("start")
    server = Server(start, NONE, OPTIMIZER, 1, strategy.aggregation, shapes=SHAPES)
    pushes = pushes_of(strategy, apply, drawn, defaultdict(lambda: start))
    for place, scale in (changes or {}).items():
        parts = [drawn("same" if same else f"other {place} {n}") for n in range(strategy.vectors_of_a_push)]
        pushes[place].vector = torch.cat(parts) * (1.0 if same else scale)
    if vector is not None:
        for push in pushes:
            push.vector = vector.clone()
    pushes = [pushes[place] for place in order] if order else pushes
    apply_to(server, pushes, apply, f"{type(strategy.aggregation).__name__}.update")
    answer = NONE if server.aggregate is None else server.aggregate
    # by name: a part may keep a vector for each worker, in the order of their first pushes
    kept = [tensor.float().reshape(-1) for _, tensor in sorted(server.tensors().items())]
    return [server.parameters.clone(), answer.clone(), torch.cat([tensor.clone() for tensor in kept])]


# -------------------------------------------------------------------- the worker's half


def check_adoption(strategy: Strategy) -> None:
    """Check that a worker with a model of its own computes its next step from the received model.

    Raises
    ------
    BrokenContract
    """
    m = strategy.communication
    if (
        not (strategy.has_local_steps or m.overlaps)
        or strategy.sends_fragments
        or isinstance(strategy.placement, PeerToPeer)
    ):
        return
    usual, other = (_models(strategy, name) for name in ("answer", "other answer"))
    if torch.equal(usual, other):
        hook = "receive" if strategy.aggregation.reply != "model" else "begin"
        raise BrokenContract(
            f"{type(m).__name__}.{hook}: a worker continues as if it had received nothing. Copy the "
            "received vector into `w`, in place: w.copy_(model)"
        )


def _models(strategy: Strategy, name: str) -> Tensor:
    """Return a worker's model after its third push; some use an answer when they push next."""
    model = LocalModel(strategy, OPTIMIZER)
    model.obey(defaultdict(lambda: 1))
    for number in range(_ROUNDS):
        given = answer_of(strategy, drawn, name if number == _ROUNDS - 1 else f"model {number}")
        if number and strategy.aggregation.reply != "model":
            model.receive(given)
        else:
            model.load(given, NONE)
        model.stepped(StepResult(drawn(f"gradient {number}"), NONE, 0.0), 4, 0.0)
        model.payload()
    return model.parameters.clone()


# -------------------------------------------------------------------- both halves


def check_descent(strategy: Strategy, cluster: ScriptedCluster) -> None:
    """Check that the loss |x - a|^2 / 2, whose gradient is x - a, falls during a run without lost messages.

    Raises
    ------
    BrokenContract
    """
    if isinstance(strategy.placement, PeerToPeer) or strategy.communication.pushes == "together":
        return
    if _measures_vectors(strategy):
        return
    run = _Descent(strategy)
    for _, event, actions in cluster.history:
        run.follow(event, actions)
    first, *others = (float((x - run.goal).square().sum()) / 2 for x in run.versions)
    if not others:
        return
    if not min(others) < first:  # a large momentum may overshoot later
        raise MisfitOrBroken(
            f"{strategy.name}: on |x - a|^2 / 2 the loss rises, from {first:.3g} to {others[-1]:.3g} over "
            f"{len(others)} versions. Most likely a sign: gradients and differences are directions "
            "of descent, which `update` subtracts and `payload` returns as they are; a difference is the "
            "received model minus the worker's own"
        )
    if others[-1] > _DIVERGES * first:
        raise MisfitOrBroken(
            f"{strategy.name}: on |x - a|^2 / 2 the loss falls to {min(others):.3g} and grows to "
            f"{others[-1]:.3g} over {len(others)} versions. Most likely steps count more than once: a "
            "difference is from the model that was received last, and a version has each push once"
        )


class _Descent:
    """The vectors of a run with given decisions."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._fragments = some_fragments(strategy, range(ENTRIES))
        self.goal = drawn("goal")
        start = torch.zeros(ENTRIES)
        self._server = Server(start, NONE, _SLOWLY, 1, strategy.aggregation, self._fragments, SHAPES)
        self.versions = [start]
        self._workers: dict[int, LocalModel] = {}
        self._sent: dict[int, Tensor] = {}

    def follow(self, event: object, actions: Sequence[object]) -> None:
        if isinstance(event, Push):
            self._sent[event.id] = self._push(event)
        for action in actions:
            if isinstance(action, Apply):
                self._apply(action)
            elif isinstance(action, Release) and action.then == "step":
                self._release(action)

    def _push(self, push: Push) -> Tensor:
        model = self._workers[push.worker]
        with named(type(self._strategy.communication).__name__):
            for number in range(push.steps):
                gradient = model.parameters - self.goal
                model.stepped(StepResult(gradient, NONE, 0.0), push.samples // push.steps, 0.0)
                if number < push.steps - 1:
                    model.keep()
            payload = model.payload(push.fragment).clone()
            if model.notes_pushes:
                model.sent(payload)
            return payload

    def _apply(self, apply: Apply) -> None:
        pushes = [
            Pushed(self._sent.pop(push.id), NONE, push.worker, push.samples, push.steps, weight=weight)
            for push, weight in zip(apply.pushes, apply.weights, strict=True)
        ]
        if self._strategy.aggregation.needs_base:
            for push, each in zip(apply.pushes, pushes, strict=True):
                each.base = self.versions[push.base_version]
        apply_to(self._server, pushes, apply, f"{type(self._strategy.aggregation).__name__}.update")
        self.versions.append(self._server.parameters.clone())

    def _release(self, release: Release) -> None:
        model = self._workers.get(release.worker)
        if model is None:
            model = LocalModel(self._strategy, _SLOWLY, self._fragments)
            self._workers[release.worker] = model
        model.obey(release.orders)
        answer, fragment = self._server.aggregate, release.fragment
        with named(type(self._strategy.communication).__name__):
            if release.aggregate and answer is not None:
                model.receive(answer.clone())
            elif release.send:
                x = self._server.sent_model()
                model.load(x.clone() if fragment < 0 else self._fragments[fragment].of(x), NONE, fragment)
            else:
                model.keep()


# -------------------------------------------------------------------- tools


def _measures_vectors(strategy: Strategy) -> bool:
    """Return whether decisions depend on vectors, whose measures a scripted cluster draws at random."""
    return bool({*strategy.measures} - {"server_load"})


def _equal(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return all(map(torch.equal, left, right))


def _listed(weights: Sequence[float]) -> str:
    return ", ".join(f"{weight:.3g}" for weight in weights)
