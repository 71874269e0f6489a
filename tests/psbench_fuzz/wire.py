"""Transport between toy workers and servers: the package's codecs, and a record of their residuals.

Of all that a worker was to push, some has arrived, some is its residual, and some is lost: with the worker,
by a codec that keeps nothing or only a share, or at a switch to pushes of another unit. The account adds up
vectors, and must come to the residuals that the package has.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from torch import Tensor

from psbench.backends.compression import Compression
from psbench.backends.partition import even_ranges, partitions_of
from psbench.core import Push, Strategy
from psbench.core import actions as act
from psbench.core.collective import Collective
from psbench.seeds import Streams
from psbench.testing.invariants import BrokenContract
from psbench_fuzz.model.arithmetic import ModelVector

#: codecs compute with 32-bit floats; halves have 11 bits
_ROUNDING, _HALF = 1e-5, 1e-3


class Wire:
    """Encodes and decodes messages between toy workers and servers, and records the residuals.

    Parameters
    ----------
    composition : Strategy
        The first of the schedule's.
    entries : int
        Of the model.
    seed : int
        Of the codecs' draws.
    """

    def __init__(self, composition: Strategy, entries: int, seed: int) -> None:
        self._entries, self._streams = entries, Streams(seed)
        #: of each worker, what of its pushes has neither arrived nor been lost; the same at its last release
        self._owed: dict[int, ModelVector] = {}
        self._at_release: dict[int, ModelVector] = {}
        self._use(composition, {})

    def _use(self, composition: Strategy, residuals: dict[int, Tensor]) -> None:
        self._composition, communication = composition, composition.communication
        self._codec, self._down = communication.codec, communication.codec_down
        self._pushed = self._entries * composition.vectors_of_a_push
        servers = min(composition.placement.num_servers, self._entries)
        self._ranges = [[(cut.start, cut.stop)] for cut in even_ranges(self._entries, servers)]
        if not self.is_exact:
            residuals = {worker: each.float() for worker, each in residuals.items()}
        self._codecs = Compression(composition, partitions_of(self._ranges), self._streams, residuals)
        self._kept, self._version = np.zeros(self._entries), -1  # of aggregates, and the version of the last

    @property
    def is_exact(self) -> bool:
        """Whether all messages arrive exactly, except residuals of the previous composition."""
        return self._codec.name == self._down.name == "none"

    def model(self, release: act.Release, parameters: Tensor) -> Tensor:
        """Return the model that a release carries, as it arrives."""
        sent = parameters if self.is_exact else parameters.float()
        if not sent.isfinite().all():  # the run would end
            return parameters.clone()
        return self._codecs.model(release.worker, release.ticket, release.load, sent).double()

    def aggregate(self, release: act.Release, aggregate: Tensor) -> Tensor:
        """Return the aggregate that a release carries, as it arrives."""
        sent = aggregate if self.is_exact else aggregate.float()
        if not sent.isfinite().all():
            return aggregate
        arrived = self._codecs.aggregate(release.worker, release.load, sent).double()
        if not self._down.has_memory:
            return arrived
        if release.load != self._version:  # else it is sent to one worker more
            self._version = release.load
            self._kept = self._down.memory * self._kept + aggregate.numpy() - arrived.numpy()
        residual = self._codecs.checkpoint_servers()[0]["residual"].double().numpy()
        if _apart(self._kept, residual, aggregate.numpy()):
            raise BrokenContract(
                f"{self._composition.name}: {self._kept.tolist()} of the server's aggregates has not been "
                f"sent, and its residual is {residual.tolist()}"
            )
        self._kept = residual
        return arrived

    def received(self, worker: int) -> None:
        """Save a worker's residual at a release, to which a restart from a checkpoint returns."""
        self._codecs.mark_release(worker)
        self._at_release[worker] = self._owed.get(worker, np.zeros(self._pushed))

    def push(self, push: Push, payload: Tensor) -> Tensor:
        """Return the payload of a push as it arrives."""
        if push.fragment >= 0:
            return payload
        sent = payload if self._codec.name == "none" and self._is_entrywise else payload.float()
        arrived = self._codecs.push(push, sent).double()
        wanted = payload.numpy() + self._owed.pop(push.worker, 0.0) * self._codec.memory
        if not np.isfinite(wanted + arrived.numpy()).all():  # the run would end
            self._owed = self._residuals()
            return arrived
        if self._codec.entrywise and _apart(wanted, arrived.numpy(), wanted, _HALF):
            raise BrokenContract(
                f"worker {push.worker}'s push and residual come to {wanted.tolist()}, and {arrived.tolist()} "
                "arrives"
            )
        if self._codec.has_memory:
            self._owed[push.worker] = wanted - arrived.numpy()
        self._check(np.abs(wanted).max())
        return arrived

    @property
    def _is_entrywise(self) -> bool:
        return self.is_exact or isinstance(self._composition.placement, Collective)

    def leave_out(self, worker: int, residual: Tensor) -> None:
        """Add back the part of a worker's push that an exchange leaves out."""
        self._owed[worker] = self._owed.get(worker, 0.0) + residual.numpy()
        self._codecs.leave_out(worker, residual)
        self._check()

    def leave(self, worker: int) -> None:
        """Lose a worker."""
        self._owed.pop(worker, None)
        self._at_release.pop(worker, None)
        self._codecs.leave(worker)
        self._check()

    def hand_over(self, to: Strategy) -> None:
        """Continue under another composition, whose units may differ."""
        before = self._composition
        kinds = [(each.aggregation.payload, each.aggregation.carries) for each in (before, to)]
        if kinds[0] != kinds[1] or to.sends_fragments:
            self._owed.clear()
        self._at_release.clear()
        self._use(to, {} if to.forgets_residual(before) else self._codecs.residuals())
        self._check()

    def move(self) -> None:
        """Move every entry to another server."""
        self._ranges = [*self._ranges[1:], self._ranges[0]]
        self._codecs.repartition(self._ranges)
        self._check()

    def restart(self, waiting: Collection[int]) -> None:
        """Resume from a checkpoint: workers that do not wait lose their pushes since the last release."""
        known = self._owed.keys() | self._at_release.keys()
        saved = {worker: self._codecs.checkpoint_worker(worker, worker in waiting) for worker in known}
        servers, ranges = self._codecs.checkpoint_servers(), self._ranges
        kept, version = self._kept, self._version
        self._use(self._composition, {})
        self._ranges, self._kept, self._version = ranges, kept, version
        self._codecs.repartition(ranges)
        for worker, state in saved.items():
            self._codecs.restore_worker(worker, *state)
        self._codecs.restore_servers(*servers)
        void = {worker: owed for worker, owed in self._at_release.items() if worker not in waiting}
        self._owed = {w: owed for w, owed in {**self._owed, **void}.items() if owed.any()}
        self._check()

    def _residuals(self) -> dict[int, ModelVector]:
        return {worker: each.double().numpy() for worker, each in self._codecs.residuals().items()}

    def _check(self, largest: float = 1.0) -> None:
        """Compare residuals with the record, and continue from them, so that rounding does not accumulate."""
        found, none = self._residuals(), np.zeros(self._pushed)
        for worker in sorted(found.keys() | self._owed.keys()):
            residual, owed = found.get(worker, none), self._owed.get(worker, none)
            if _apart(owed, residual, largest):
                raise BrokenContract(
                    f"{self._composition.name}: of worker {worker}'s pushes {owed.tolist()} has neither "
                    f"arrived nor been lost, and its residual is {residual.tolist()}"
                )
        self._owed = found


def _apart(one: ModelVector, other: ModelVector, among: ModelVector, rounding: float = _ROUNDING) -> bool:
    """Return whether two vectors differ by more than the rounding of numbers as large as `among`."""
    largest = max(1.0, np.abs(one).max(), np.abs(other).max(), np.abs(among).max())
    return bool(np.abs(one - other).max() > rounding * largest)


__all__ = ["Wire"]
