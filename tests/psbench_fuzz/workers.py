"""The workers of a schedule: worker loops, their current steps, and their messages in transit."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psbench.core import Directive
from psbench.core import actions as act
from psbench.core import events as ev
from psbench.core.worker_loop import WorkerLoop
from psbench.testing.invariants import BrokenContract
from psbench.testing.scripted_cluster import Statistics
from psbench_fuzz.numbers import noise, quarters

if TYPE_CHECKING:
    from torch import Tensor

    from psbench_fuzz.vectors import WorkerVectors


@dataclass
class FuzzedWorker:
    """One worker's process.

    Attributes
    ----------
    loop : WorkerLoop or None
        None before its first release under the composition in force.
    computing : bool
        Whether a step is under way.
    outbox : deque of events
        Messages under way, oldest first; those of one worker arrive in order.
    void : list of events
        Messages of work that was cancelled or lost, which may still arrive.
    half : WorkerVectors or None
        Its vectors, if the schedule carries any; made with the loop.
    payloads : dict of push to tensor
        What every push has carried.
    answer : Release and vectors, or None
        One that came while the worker computed on (overlap).
    batch : int, samples
        Of the step under way: orders that come meanwhile are for the next one.
    unpushed : int, samples
        Of steps that no push has carried and no answer has counted.
    ties : bool
        See `Schedule`.
    """

    number: int
    alive: bool = False
    loop: WorkerLoop | None = None
    computing: bool = False
    outbox: deque[ev.Event] = field(default_factory=deque)
    void: list[ev.Event] = field(default_factory=list)
    last: ev.Event | None = None
    half: WorkerVectors | None = None
    payloads: dict[int, Tensor] = field(default_factory=dict)
    answer: tuple[act.Release, tuple[Tensor, ...]] | None = None
    batch: int = 0
    unpushed: int = 0
    steps: int = 0
    pushes: int = 0
    ties: bool = False
    _reads_send_s: bool = False

    def drop_work(self) -> None:
        """Discard the current step; its messages are void, and may still arrive."""
        if self.computing and self.loop is not None:
            self.void.append(ev.Push(self._push_id(), self.number, self.loop.ticket, self.loop.version, 1))
        self.void.extend(self.outbox)
        self.outbox.clear()
        self.computing, self.answer, self.unpushed = False, None, 0

    def forget(self) -> None:
        """Start over as a new process does, or under another composition."""
        self.drop_work()
        self.loop = self.half = None

    def release(self, release: act.Release, vectors: tuple[Tensor, ...]) -> None:
        """Execute a release, at once or after the current step."""
        if self.computing:
            self.answer = release, vectors
        else:
            self._do(self._answered(release, vectors))

    def end_step(self, names: tuple[str, ...], seed: int) -> None:
        """Take the result of the current step, and execute the worker loop's directive."""
        assert self.loop is not None
        self.computing, self._reads_send_s = False, "send_s" in names
        self.steps += 1
        if self.half is not None:
            self.half.step(self.batch, self.loop.epoch)
        answer = self.answer
        self.unpushed += self.batch
        if answer is not None and self.loop.takes_answer(stepped=True):
            self.answer = None
            self._answered(*answer)
        slowness = 8.0 if noise(seed, 4, self.number) < 0.3 else 1.0
        seconds = slowness * (0.1 + noise(seed, 1, self.number, self.steps))
        loss = noise(seed, 2, self.number, self.steps)
        if self.ties:
            seconds, loss = max(0.25, quarters(seconds)), quarters(loss)
        directive = self.loop.stepped(self.batch, seconds, loss, self._statistics(names, seed))
        if self.half is not None and directive in ("continue", "report"):
            self.half.keep()
        self._do(directive)

    def _statistics(self, names: tuple[str, ...], seed: int) -> Mapping[str, float]:
        drawn = {name: noise(seed, 3 + i, self.number, self.steps) for i, name in enumerate(names)}
        return Statistics({name: quarters(value) for name, value in drawn.items()} if self.ties else drawn)

    def _answered(self, release: act.Release, vectors: tuple[Tensor, ...]) -> Directive:
        assert self.loop is not None
        exchanging = self.loop.exchanging
        rate = release.epoch, release.epochs_per_step
        directive = self.loop.release(
            release.then, release.ticket, release.load, release.orders, release.allowance, *rate
        )
        if release.then == "step" and self.half is not None:
            self.half.renew(release, vectors, exchanging)
        if release.then == "step" and not exchanging:
            self.unpushed = 0  # pushed before, or kept after a vote and counted
        return directive

    def _do(self, directive: Directive) -> None:
        assert self.loop is not None
        if directive == "report":
            self.outbox.append(self.loop.report())
        elif directive == "vote":
            self.outbox.append(self.loop.vote())
        elif directive in ("push", "push_and_continue"):
            self.outbox.append(self._push(overlapping=directive == "push_and_continue"))
        self.computing = directive in ("continue", "report", "push_and_continue")
        self.batch = self.loop.batch_size if self.computing else 0

    def _push(self, overlapping: bool) -> ev.Push:
        assert self.loop is not None
        push = self.loop.push(self._push_id(), bytes=100, overlapping=overlapping)
        if self.half is not None:
            self.payloads[push.id] = self.half.payload(push)
        push.stats = Statistics((push.stats or {}) | ({"send_s": 0.1} if self._reads_send_s else {}))
        if push.samples != self.unpushed:
            raise BrokenContract(
                f"worker {self.number} pushes {push.samples} samples, but computed {self.unpushed}"
            )
        self.unpushed = 0
        return push

    def _push_id(self) -> int:
        self.pushes += 1
        return self.number + 1000 * self.pushes
