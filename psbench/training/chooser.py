"""A worker's half of a selection: its memory, and the checks of its choices."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from psbench.arrays import Array, Doubles, Integers
from psbench.core.actions import Orders
from psbench.core.selection import REPORTED, SUMS, Evaluate, KnownOfData, Memory, SampleGroups, Selection
from psbench.errors import DoubtfulComposition, ParameterError, ProtocolError, PsbenchError
from psbench.models.construction import one_line
from psbench.seeds import Streams
from psbench.training.batches import Batches

#: mini-batches that each worker chooses before the run, so that a selection that cannot work is refused then
_TRIALS = 2


class Chosen(NamedTuple):
    """A mini-batch: positions in the shard, samples, weights, and the number of samples computed for it."""

    positions: Integers
    indices: Integers
    weights: Doubles | None
    looked: int


class Chooser:
    """Chooses the mini-batches of one worker.

    Parameters
    ----------
    selection : Selection
    shard : int64 array
        Numbers of the worker's samples.
    streams : Streams
    worker : int
    known : KnownOfData
    """

    def __init__(
        self,
        selection: Selection,
        shard: Integers,
        streams: Streams,
        worker: int,
        known: KnownOfData,
    ) -> None:
        self._selection, self._streams, self._worker = selection, streams, worker
        self._passes = Batches(np.arange(len(shard)), streams, worker)
        self.memory = Memory(shard, known, self._passes)
        #: since the last report, by neighbourhood; none without neighbourhoods
        self._sums: dict[str, Doubles] = {}
        if known.groups is not None:
            self._sums = {name: np.zeros(len(known.groups.names)) for name in _sums_of(selection)}

    def choose(self, size: int, orders: Orders, evaluate: Evaluate) -> Chosen:
        """Choose the next mini-batch.

        Raises
        ------
        ProtocolError
            If the selection returns anything but a mini-batch of the worker's shard.
        """
        selection, memory = self._selection, self.memory
        rng = self._streams.generator("selection", self._worker, memory.step)
        looked = np.asarray(selection.look(size, rng, memory, orders))
        if len(looked):
            self._check_positions("look", looked)
            self._note(looked, evaluate(memory.samples[looked]))
        choice: Any = selection.choose(size, rng, memory, orders)
        given, weights = choice if isinstance(choice, tuple) else (choice, None)
        positions = np.asarray(given)
        self._check_positions("choose", positions)
        if len(positions) != size:
            raise ProtocolError(
                f"{self._who('choose')} returns {len(positions)} samples for a mini-batch of {size}"
            )
        if weights is not None:
            weights = self._checked(np.asarray(weights, dtype=np.float64), size)
        memory.taken_at[positions] = memory.step
        memory.step += 1
        memory.taken += size
        return Chosen(positions, memory.samples[positions], weights, len(looked))

    def learn(self, positions: Integers, found: Mapping[str, Array]) -> None:
        """Store the per-sample values of a step; of a sample that occurs twice, the last value."""
        self._note(positions, found)
        for name, sums in self._sums.items():
            sums += np.bincount(
                self.memory.neighbourhood[positions], self._numbers(name, positions, found), len(sums)
            )
        self._selection.learn(positions, self.memory)

    def _numbers(self, name: str, positions: Integers, found: Mapping[str, Array]) -> Array:
        """Return the number of each sample that is summed by neighbourhood."""
        if name == "samples":
            return np.ones(len(positions))
        return found["loss"] if name == "loss" else found["predicted"] != self.memory.right[positions]

    def report(self) -> dict[str, float]:
        """Return the report to the server's half that accompanies a push."""
        report = self._selection.report(self.memory)
        if self._sums:
            seen = np.flatnonzero(self._sums["samples"])
            report |= {f"{name}:{h}": sums[h] for name, sums in self._sums.items() for h in seen}
            for sums in self._sums.values():
                sums[:] = 0
        return {REPORTED + name: float(value) for name, value in report.items()}

    def _note(self, positions: Integers, found: Mapping[str, Array]) -> None:
        for name, values in found.items():
            getattr(self.memory, name)[positions] = values

    def _who(self, hook: str) -> str:
        return f"selection {self._selection.name!r}: {hook}() of worker {self._worker}"

    def _check_positions(self, hook: str, positions: Array) -> None:
        size = len(self.memory)
        if positions.ndim != 1 or positions.dtype.kind not in "iu":
            raise ProtocolError(
                f"{self._who(hook)} returns {positions.dtype} of shape {positions.shape}; return an array of "
                "whole numbers, one for each sample"
            )
        if len(positions) and not 0 <= positions.min() <= positions.max() < size:
            outside = positions[(positions < 0) | (positions >= size)][0]
            raise ProtocolError(
                f"{self._who(hook)} returns {outside}, which is not a sample of its shard: give positions in "
                f"the shard, from 0 to {size - 1}"
            )

    def _checked(self, weights: Doubles, size: int) -> Doubles:
        if weights.shape != (size,):
            raise ProtocolError(
                f"{self._who('choose')} returns weights of shape {weights.shape} for {size} samples"
            )
        if not np.isfinite(weights).all() or (weights < 0).any():
            wrong = weights[~(np.isfinite(weights) & (weights >= 0))][0]
            raise ProtocolError(
                f"{self._who('choose')} returns the weight {wrong}; weights must be finite and not negative"
            )
        if not weights.any():
            raise ProtocolError(f"{self._who('choose')} returns weights that are all 0")
        return weights

    # ---------------------------------------------------------------- checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of the worker's memory."""
        memory = self.memory
        found = {"taken_at": memory.taken_at, "taken": np.asarray(memory.taken)}
        found |= {name: getattr(memory, name) for name in self._selection.remembers}
        found |= {f"passes/{name}": value for name, value in self._passes.state().items()}
        found |= {f"state/{name}": np.asarray(value) for name, value in memory.state.items()}
        found |= {f"sums/{name}": sums for name, sums in self._sums.items()}
        return {name: torch.from_numpy(np.array(value)) for name, value in found.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from the copies that `tensors` returned."""
        memory, kept = self.memory, {name: tensor.numpy().copy() for name, tensor in tensors.items()}
        memory.taken = int(kept["taken"])
        for name in ("taken_at", *self._selection.remembers):
            if len(kept[name]) != len(memory):
                raise ValueError(f"{name} of {len(kept[name])} samples, but the shard has {len(memory)}")
            setattr(memory, name, kept[name])
        prefix = "passes/"
        self._passes.load({n.removeprefix(prefix): v for n, v in kept.items() if n.startswith(prefix)})
        state = {n.removeprefix("state/"): v for n, v in kept.items() if n.startswith("state/")}
        memory.state = {name: value if value.ndim else value.item() for name, value in state.items()}
        self._sums = {name: kept[f"sums/{name}"] for name in self._sums}


def _sums_of(selection: Selection) -> list[str]:
    needs = dict(zip(SUMS, (None, "loss", "predicted"), strict=True))
    return [name for name, need in needs.items() if need is None or need in selection.remembers]


def checked_groups(name: str, groups: SampleGroups) -> SampleGroups:
    """Return neighbourhoods after checking that each has training samples.

    Raises
    ------
    ParameterError
        Naming one that has none.
    """
    for h in np.flatnonzero(groups.counts == 0):
        raise ParameterError(
            f"neighbourhoods {name!r}: {groups.names[h]!r} has no training sample; use fewer or different "
            "neighbourhoods"
        )
    return groups


def check_neighbourhoods(selection: Selection, groups: SampleGroups, shards: Sequence[Integers]) -> None:
    """Warn of workers without some neighbourhood, and reject one without validation samples.

    Raises
    ------
    ParameterError
        If the selection goes by evaluations, and a neighbourhood has no validation sample.
    """
    names = groups.names
    unseen = np.flatnonzero(np.bincount(groups.val, minlength=len(names)) == 0)
    if selection.reads_evaluations and len(unseen):
        raise ParameterError(
            f"selection {selection.name!r}: {names[unseen[0]]!r} has no validation sample to compute its "
            "loss from; use fewer neighbourhoods, or more validation samples"
        )
    lacking = {
        worker: [names[h] for h in range(len(names)) if h not in own]
        for worker, shard in enumerate(shards)
        if len(own := set(groups.train[shard].tolist())) < len(names)
    }
    if lacking:
        worker, missing = next(iter(lacking.items()))
        warnings.warn(
            f"selection {selection.name!r}: some neighbourhood has no sample on {len(lacking)} of "
            f"{len(shards)} workers ({missing[0]!r} on worker {worker}); shares are renormalised there",
            DoubtfulComposition,
            stacklevel=2,
        )


def check_choices(
    selection: Selection,
    shards: Sequence[Integers],
    sizes: Sequence[int],
    streams: Streams,
    known: KnownOfData,
) -> None:
    """Try each worker's first mini-batches, and reject a selection that fails.

    Raises
    ------
    ParameterError
        Naming the selection, the worker and what it returned.
    """
    for worker, (shard, size) in enumerate(zip(shards, sizes, strict=True)):
        chooser = Chooser(selection, shard, streams, worker, known)
        try:
            for _ in range(_TRIALS):
                chosen = chooser.choose(size, {}, lambda where: assumed(selection, len(where)))
                chooser.learn(chosen.positions, assumed(selection, size))
                chooser.report()
        except PsbenchError as error:
            raise ParameterError(str(error)) from error
        except Exception as error:
            raise ParameterError(
                f"selection {selection.name!r}: worker {worker} cannot choose its first mini-batches: "
                f"{one_line(error)}"
            ) from error


def assumed(selection: Selection, size: int) -> dict[str, Array]:
    """Return arbitrary sample numbers for a mini-batch that is not computed."""
    found: dict[str, Array] = {name: np.ones(size) for name in selection.remembers}
    return found | {name: np.zeros(size, np.int64) for name in found if name == "predicted"}
