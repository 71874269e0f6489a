"""Faults of workers and links: slowdowns, failures, late arrivals, corrupted pushes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from psbench.core import Specification
from psbench.errors import ParameterError


class WorkerFault(Specification):
    """Something that happens to one worker."""

    worker: int = Field(ge=0, description="number of the worker")


class Slowdown(WorkerFault):
    """A transient straggler: steps that begin at `from_s` <= t < `to_s` take `factor` times as long.

    Our reading: the whole step is slowed, and a step that begins before the spell is not.
    """

    from_s: float = Field(ge=0, description="beginning, seconds")
    to_s: float = Field(gt=0, description="end, seconds")
    factor: float = Field(gt=0, description="factor of the step time")


class Throttle(WorkerFault):
    """A worker's link that is slower for a while: it has 1 / `factor` of its bandwidth, both ways.

    A message that begins at `from_s` <= t < `to_s` passes at that rate to its end; latencies stay. In virtual
    time only.
    """

    from_s: float = Field(ge=0, description="beginning, seconds")
    to_s: float = Field(gt=0, description="end, seconds")
    factor: float = Field(gt=0, description="factor of the transfer time on the link")


class Failure(WorkerFault):
    """A worker is lost at `at_s` and, unless `rejoin_s` is None, is back at `rejoin_s`."""

    at_s: float = Field(ge=0, description="time of the failure, seconds")
    rejoin_s: float | None = Field(None, gt=0, description="time of the return, seconds; none: never")


class LateJoin(WorkerFault):
    """A worker that is absent at the start and arrives at `at_s`."""

    called_in_errors = "late join"

    at_s: float = Field(gt=0, description="time of the arrival, seconds")


class Corruption(WorkerFault):
    """A worker whose pushes are corrupted after its first `after` releases (a Byzantine fault).

    `how`: sign_flipped sends -factor times what it has computed, scaled sends factor times that, noise sends
    Gaussian numbers of factor times its root mean square, stale sends what it computed `age` pushes before
    (its first, until there are so many), nan sends NaN. The worker does not know: it computes, waits and is
    counted like any other, and no version says that what it sends is old.

    Source
    ------
    Blanchard et al. (2017), sec. 5: its Gaussian and omniscient adversaries are noise and sign_flipped.
    """

    how: Literal["sign_flipped", "scaled", "noise", "stale", "nan"] = Field(
        description="vector that is sent instead"
    )
    factor: float = Field(1.0, gt=0, description="magnitude of that vector")
    after: int = Field(0, ge=0, description="releases of the worker before its pushes are corrupted")
    age: int = Field(1, ge=1, description="age of a stale vector, in pushes")


def check_incidents(
    where: str,
    num_workers: int,
    slowdowns: Sequence[Slowdown],
    failures: Sequence[Failure],
    joins: Sequence[LateJoin],
    corruptions: Sequence[Corruption] = (),
    throttles: Sequence[Throttle] = (),
) -> None:
    """Raise ParameterError unless the incidents are possible on a cluster of that size."""
    for incident in (*slowdowns, *throttles, *failures, *joins, *corruptions):
        if incident.worker >= num_workers:
            raise ParameterError(
                f"{where}: {incident.error_name()} of worker {incident.worker}, "
                f"but the workers are 0 to {num_workers - 1}"
            )
    spells: list[Slowdown | Throttle] = [*slowdowns, *throttles]
    for slow in spells:
        if slow.from_s >= slow.to_s:
            raise ParameterError(
                f"{where}: {slow.error_name()} of worker {slow.worker}: "
                f"from_s = {slow.from_s:g} must be before to_s = {slow.to_s:g}"
            )
    arrivals = _arrivals(where, num_workers, joins)
    for worker in {failure.worker for failure in failures}:
        _check_failures(where, worker, [f for f in failures if f.worker == worker], arrivals.get(worker, 0.0))


def _arrivals(where: str, num_workers: int, joins: Sequence[LateJoin]) -> dict[int, float]:
    arrivals = {join.worker: join.at_s for join in joins}
    if len(arrivals) < len(joins):
        twice = next(j.worker for j in joins if sum(k.worker == j.worker for k in joins) > 1)
        raise ParameterError(
            f"{where}: worker {twice} joins late twice; use a failure with rejoin_s to return"
        )
    if len(arrivals) == num_workers:
        raise ParameterError(f"{where}: every worker joins late; at least one must be present at the start")
    return arrivals


def _check_failures(where: str, worker: int, failures: list[Failure], there_from: float) -> None:
    """Check that the failures of a worker, in time order, occur while it is active."""
    there: float | None = there_from
    for failure in sorted(failures, key=lambda f: f.at_s):
        if there is None or failure.at_s < there:
            raise ParameterError(
                f"{where}: worker {worker} fails at {failure.at_s:g} s, when it is not in the run"
            )
        if failure.rejoin_s is not None and failure.rejoin_s <= failure.at_s:
            raise ParameterError(
                f"{where}: failure of worker {worker}: "
                f"at_s = {failure.at_s:g} must be before rejoin_s = {failure.rejoin_s:g}"
            )
        there = failure.rejoin_s
