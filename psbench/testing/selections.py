"""Checks of the worker's half of a selection: choices, repeatability, memory and side effects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from psbench.arrays import Array, Integers
from psbench.core.selection import KnownOfData, SampleGroups, Selection
from psbench.errors import PsbenchError
from psbench.seeds import Streams
from psbench.testing.invariants import BrokenContract
from psbench.training.chooser import Chooser, Chosen

#: samples of toy shards, and of the mini-batches that are chosen from them: also more than the shard has
_SHARDS = ((40, 6), (7, 7), (5, 12))
_STEPS, _CLASSES, _SAMPLES = 25, 3, 60
#: arrays of a memory that only the worker changes
_OF_WORKER = ("loss", "norm", "predicted", "taken_at")


def check_selection(selection: Selection) -> None:
    """Check the half of a selection that chooses.

    Raises
    ------
    BrokenContract
        Says what was seen and the likely cause.
    """
    for size, batch in _SHARDS:
        where = f"selection {selection.name!r} on a toy shard of {size} samples, mini-batches of {batch}"
        try:
            chosen = [each.indices.tolist() for each in _played(selection, size, batch, where)]
            again = [each.indices.tolist() for each in _played(selection, size, batch, where)]
            resumed = [each.indices.tolist() for each in _played(selection, size, batch, where, saved=True)]
        except PsbenchError as error:
            raise BrokenContract(f"{where}: {error}") from error
        except Exception as error:
            raise BrokenContract(f"{where}: it raised {type(error).__name__}: {error}") from error
        if chosen != again:
            raise BrokenContract(
                f"{where}: the same seed gives different samples. Most likely it draws from a global random "
                "state instead of `rng`, or keeps state on itself instead of in memory.state"
            )
        if chosen != resumed:
            raise BrokenContract(
                f"{where}: saving and loading its memory changes its choices. Most likely it keeps state "
                "outside memory.state, or has entries there that are neither arrays nor numbers"
            )


def _played(selection: Selection, size: int, batch: int, where: str, saved: bool = False) -> Iterator[Chosen]:
    """Yield a worker's choices; if `saved`, with its memory saved and loaded before each mini-batch."""
    selection = selection.fresh()
    chooser, losses = _chooser(selection, size), np.random.default_rng(1)

    def found(samples: Integers) -> Mapping[str, Array]:
        known: dict[str, Array] = {
            "loss": losses.random(len(samples)),
            "norm": losses.random(len(samples)),
            "predicted": losses.integers(_CLASSES, size=len(samples)),
        }
        return {name: known[name] for name in selection.remembers}

    for _ in range(_STEPS):
        if saved:
            kept, step = chooser.tensors(), chooser.memory.step
            selection = selection.fresh()
            chooser = _chooser(selection, size)
            chooser.memory.step = step
            chooser.load(kept)
        chosen = chooser.choose(batch, {}, found)
        numbers = found(chosen.indices)
        expected = {name: getattr(chooser.memory, name).copy() for name in _OF_WORKER}
        for name, values in numbers.items():
            expected[name][chosen.positions] = values
        chooser.learn(chosen.positions, numbers)
        for name, values in expected.items():
            if not np.array_equal(values, getattr(chooser.memory, name), equal_nan=True):
                raise BrokenContract(
                    f"{where}: learn() changes memory.{name}; keep its state in memory.state"
                )
        chooser.report()
        yield chosen


def _chooser(selection: Selection, size: int) -> Chooser:
    """Return a worker with every other sample of a toy set, but only its first classes."""
    groups = SampleGroups(np.arange(2 * _SAMPLES) // 2 % 4, np.arange(4), ("a", "b", "c", "d"))
    known = KnownOfData(
        groups, _CLASSES, lambda samples: samples % _CLASSES, lambda name: np.arange(2.0 * _SAMPLES)
    )
    return Chooser(selection, 2 * np.arange(size), Streams(0), 0, known)
