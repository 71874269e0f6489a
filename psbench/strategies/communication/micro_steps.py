"""Micro-steps: a worker's batch in pieces, so that its progress is known and its size can be changed."""

from __future__ import annotations

from collections.abc import Mapping

from psbench.core import ClusterView, Communication, Directive, Orders, WorkerPolicy, parameter

SOURCE = "Harlap et al. 2016, FlexRR"


class MicroSteps(Communication):
    """Split a worker's batch into micro-batches, report after each, and push the mean gradient.

    Every micro-batch is computed on the model that the worker was released with.

    Notes
    -----
    Reduces to: `every_step` with one piece; to rounding, with any number, for models without BatchNorm.
    Orders for a worker: `quota`, the samples that it is to have done before it pushes; with `round`, the
    version that the worker must have for them to mean anything. Those that come too late change nothing, but
    that the piece which is being computed becomes the last. Reports: `done`, and `piece`, samples both.

    Examples
    --------
    >>> policy = MicroSteps(pieces=2).worker_policy()
    >>> policy.on_orders({"round": 0, "batch": 5})
    >>> policy.step_samples(5), policy.after_step({}), policy.step_samples(5), policy.after_step({})
    (3, 'report', 2, 'push')
    """

    name = "micro_steps"
    source = SOURCE
    accumulates = True
    reports_progress = True

    pieces: int = parameter(8, "micro-batches in a batch", source=SOURCE, ge=1, le=1024)

    def worker_policy(self) -> WorkerPolicy:
        return Cutting(pieces=self.pieces)

    def smallest_step(self, batch: int) -> int:
        """Return the size of the last piece."""
        piece = -(-batch // self.pieces)
        return batch % piece or piece

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Begin a round, with its version and batch size."""
        return {"round": view.version, "batch": view.workers[worker].batch_size}


class Cutting(WorkerPolicy):
    """A worker that pushes when it has done its quota, and reports after every piece before."""

    pieces: int = 1
    round: int = -1
    quota: int = 0
    done: int = 0
    piece: int = 0  # of the batch, rounded up
    next: int = 0  # the piece that is being computed, or comes next

    def on_orders(self, orders: Orders) -> None:
        """Begin a round, or change the quota of the current one."""
        if "batch" in orders:
            self._begin(orders["round"], orders["batch_size" if "batch_size" in orders else "batch"])
        elif orders.get("round") == self.round and "quota" in orders:
            self.quota = max(orders["quota"], self.done + self.next)

    def step_samples(self, batch_size: int) -> int:
        return self.next

    def after_step(self, stats: Mapping[str, float]) -> Directive:
        """Report, or push with the last piece."""
        self.done += self.next
        self.next = min(self.piece, self.quota - self.done)
        if self.next:
            return "report"
        self.round = -1  # orders for it come too late
        return "push"

    def report(self, stats: dict[str, float]) -> dict[str, float]:
        """Return the statistics with the number of finished samples."""
        return stats | {"done": float(self.done), "piece": float(self.piece)}

    def _begin(self, number: int, batch_size: int) -> None:
        self.round, self.quota, self.done = number, batch_size, 0
        self.piece = self.next = -(-batch_size // self.pieces)
