"""A push: its size, its statistics, and the reasons for which it may end the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

from psbench.core.actions import Action, Apply
from psbench.core.events import COLLECTIVE, Push
from psbench.core.selection import REPORTED
from psbench.core.strategy import Strategy
from psbench.core.view import ClusterView
from psbench.core.wire_size import WireSize


def with_stats(push: Push, reads: Sequence[str]) -> Push:
    """Put the statistics that parts read into `push.stats`, with all digits.

    A worker with a loop has sent them, except the time its push took.
    """
    sent = push.stats or {}
    others = {name: sent[name] for name in sent if name == COLLECTIVE or name.startswith(REPORTED)}
    push.stats = {name: sent[name] if name in sent else getattr(push, name) for name in reads} | others
    return push


def bases_of_updates(actions: Sequence[Action]) -> set[int]:
    """Return the versions that the pushes of an answer's updates started from.

    The view, which is as after the answer, does not have them.
    """
    return {push.base_version for action in actions if type(action) is Apply for push in action.pushes}


def versions_in_use(view: ClusterView, load: int, bases: set[int]) -> set[int]:
    """Return the versions that distances may refer to; `load` is the version of a release.

    `bases` are those of the answer that is being performed; see `bases_of_updates`.
    """
    started = {worker.base_version for worker in view.workers.values()}
    return started | {load} | bases | {push.base_version for push in view.pending.values()}


def why_diverged(push: Push, now: float) -> str:
    """Return the reason for ending a run at a push with a NaN or infinite loss or payload."""
    where = f"push {push.id} of worker {push.worker}, computed on version {push.base_version} at {now:.3f} s,"
    if math.isfinite(push.loss):
        return f"{where} has entries that are not finite, or too large for the codec: lower the learning rate"
    return f"{where} has loss {push.loss}: lower the learning rate"


def bytes_of_pushes(
    composition: Strategy, size: WireSize, num_workers: int
) -> Callable[[int, int, int], int]:
    """Return a function to the bytes of a push.

    Its arguments are a fragment (-1: all entries), the version that the push is computed on, and the setting
    of the worker's codec.
    """
    if composition.aggregation.exchanges:
        return lambda fragment, version, setting: composition.bytes_up(size, num_workers, version=version)
    parts = *composition.communication.fragments(size.layout), None

    @cache
    def known(fragment: int, setting: int) -> int:
        return composition.bytes_up(size, num_workers, parts[fragment], setting=setting)

    return lambda fragment, version, setting: known(fragment, setting)
