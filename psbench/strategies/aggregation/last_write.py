"""Updates in memory without locks: the last write remains."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.core import Action, Apply, ClusterView, Push
from psbench.core.arithmetic import Pushed, State, Step, Vector, apart
from psbench.core.shared_memory import Overwriting


class LastWrite(Overwriting):
    """Apply a gradient but for the blocks that another worker is writing when their write ends.

    A block is a tensor of the model. A worker reads it, adds to it and writes it back, one block after
    another, each for the share of its write that the block has of all entries. Another that has read the
    block in this window writes over it. The weight of a push is the share of its entries that remain.

    Notes
    -----
    Reduces to: the mean gradient, where no two workers write at a time.
    Our reading: all workers write the blocks in the same order and equally fast, so that two writes that
    begin `d` seconds apart overlap in each block that takes longer than `d`. A lost block stays lost, though
    a third worker that has read it in between would write it back. The blocks of a tensor's size stand for
    the words of memory that Recht et al. update one by one, with shorter windows and sparse gradients.
    """

    name = "last_write"
    source = "Recht et al. 2011; thesis 3.1"
    per_tensor = True

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Find the blocks that are lost."""
        (push,) = pushes
        began = view.workers[push.worker].last_push_s
        pending = view.pending.values()
        others = [view.workers[other.worker].last_push_s for other in pending if other.id != push.id]
        apart_s = min((other - began for other in others if other >= began), default=float("inf"))
        entries = sum(size for _, size in view.layout)
        write_s = view.now - began
        lost = [number for number, (_, size) in enumerate(view.layout) if apart_s < write_s * size / entries]
        remaining = entries - sum(view.layout[number][1] for number in lost)
        share = remaining / entries if lost else 1.0
        return [Apply(pushes, [share], {f"lost:{number}": 1.0 for number in lost})]

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Step along the remaining entries of the gradient."""
        gradient = pushes[0].vector
        if step.numbers:
            gradient = gradient.clone()
            blocks = apart(gradient, [size for _, size in step.tensors])
            for (number, _), block in zip(step.tensors, blocks, strict=True):
                if f"lost:{number}" in step.numbers:
                    block.zero_()
        step.move(gradient)
