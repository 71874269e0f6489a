"""Samples that are several tensors each: a pair of images, tokens and their mask, an image and its text."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from psbench.errors import ParameterError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

#: per tensor: its type and the shape of one sample, in which a padded dimension is None
SampleLayout: TypeAlias = list[list[Any]]


@dataclass(frozen=True, eq=False)
class Several:
    """Inputs with several arrays or tensors of equal length; indexed like one array.

    Parameters
    ----------
    parts : tuple of ndarray, Tensor, or what is indexed by rows, each (N, ...)
    names : tuple of str
        The arguments of `forward` that they are; empty if they are given in order.
    lengths : tuple of (int64 (N,) or None)
        Of a part that was padded: how many entries of its second dimension each sample has of its own.
    padding : tuple of float
        What those parts are padded with.
    """

    parts: tuple[Any, ...]
    names: tuple[str, ...] = ()
    lengths: tuple[Any, ...] = ()
    padding: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, where: Any) -> Several:
        return self.map(lambda part: part[where])

    def map(self, function: Callable[[Any], Any]) -> Several:
        """Return the results of a function for each array, including the lengths."""
        lengths = tuple(None if each is None else function(each) for each in self.lengths)
        return Several(tuple(map(function, self.parts)), self.names, lengths, self.padding)

    def to(self, device: torch.device) -> Several:
        """Return the inputs on that device."""
        return self.map(lambda part: part.to(device))

    def numpy(self) -> np.ndarray:
        """Return all samples as rows of numbers, (N, numbers), for methods based on distances."""
        rows = [np.asarray(part).reshape(len(self), -1).astype(np.float32) for part in self.parts]
        return np.concatenate(rows, axis=1)

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts)

    @property
    def called(self) -> str:
        """The parts in words.

        >>> Several((np.zeros((2, 3)), np.zeros((2, 5))), ("image", "text")).called
        'image, text'
        """
        return ", ".join(self.names) or f"{len(self.parts)} tensors"

    def length_of(self, place: int) -> Any:
        """Return the lengths of a part's samples, (N,); None if it is not padded."""
        return self.lengths[place] if self.lengths else None

    def trimmed(self) -> Several:
        """Return a batch whose padded parts are as long as its longest sample."""
        if not self.lengths or not len(self):
            return self
        parts = (
            part if lengths is None else part[:, : max(1, int(lengths.max()))]
            for part, lengths in zip(self.parts, self.lengths, strict=True)
        )
        return Several(tuple(parts), self.names, self.lengths, self.padding)

    def given_to(self, module: nn.Module) -> Any:
        """Return the module's output: inputs are passed by name if they have names, else in order.

        A module whose `forward` takes one argument is given all of them in it, as a tuple or a dict.

        Raises
        ------
        ParameterError
            If `forward` can be called in neither way.
        """
        kind: Any = type(module)
        if _in_one(kind, self.names, len(self.parts)):
            named = dict(zip(self.names, self.parts, strict=True)) if self.names else self.parts
            return module(named)
        if self.names:
            return module(**dict(zip(self.names, self.parts, strict=True)))
        return module(*self.parts)


@cache
def _in_one(kind: Any, names: tuple[str, ...], count: int) -> bool:
    """Return whether a module class takes all inputs as one argument."""
    forward = inspect.signature(kind.forward)
    ways = [((), dict.fromkeys(names)) if names else ((None,) * count, {}), ((None,), {})]
    for in_one, (positional, named) in enumerate(ways):
        try:
            forward.bind(None, *positional, **named)  # the first is the module itself
        except TypeError:
            continue
        return bool(in_one)
    given = ", ".join(names) or f"{count} tensors"
    raise ParameterError(
        f"{kind.__qualname__}.forward takes {_arguments(forward)}, but a sample of the data is {given}; "
        "name its arguments like the inputs, let it take one argument, or exclude inputs with features=[...]"
    )


def _arguments(forward: inspect.Signature) -> str:
    return f"({', '.join(list(forward.parameters)[1:])})"


def answer(module: nn.Module, inputs: Any) -> Any:
    """Return a module's output for a batch: a tensor, or `Several`."""
    return inputs.trimmed().given_to(module) if isinstance(inputs, Several) else module(inputs)


def each_array(inputs: Any, function: Callable[[Any], Any]) -> Any:
    return inputs.map(function) if isinstance(inputs, Several) else function(inputs)


def joined(batches: Sequence[Any]) -> Any:
    """Return the concatenated rows of several tensors, or of several `Several`.

    Padded parts become as long as the longest.
    """
    import torch

    first = batches[0]
    if not isinstance(first, Several):
        return torch.cat(list(batches))
    parts = tuple(
        torch.cat(_as_long([batch.parts[place] for batch in batches], first, place))
        for place in range(len(first.parts))
    )
    lengths = tuple(
        None if each is None else torch.cat([batch.lengths[place] for batch in batches])
        for place, each in enumerate(first.lengths)
    )
    return Several(parts, first.names, lengths, first.padding)


def _as_long(parts: list[Tensor], first: Several, place: int) -> list[Tensor]:
    from torch.nn.functional import pad

    if first.length_of(place) is None:
        return parts
    longest = max(part.shape[1] for part in parts)
    # pairs of what is put before and behind, the last dimension first
    missing = ((*(0, 0) * (part.ndim - 2), 0, longest - part.shape[1]) for part in parts)
    return [pad(part, each, value=first.padding[place]) for part, each in zip(parts, missing, strict=True)]


def without_lengths(inputs: Any) -> Any:
    """Return inputs with untrimmed padding."""
    return Several(inputs.parts, inputs.names) if isinstance(inputs, Several) else inputs


def layout_of(inputs: Any) -> SampleLayout:
    """Return type and shape of a sample's tensors; see `SampleLayout`.

    >>> import torch
    >>> layout_of(Several((torch.zeros(2, 3), torch.zeros(2, 5)), lengths=(None, torch.ones(2))))
    [['float32', 3], ['float32', None]]
    """
    if not isinstance(inputs, Several):
        return [_of_one(inputs)]
    found = [_of_one(part) for part in inputs.parts]
    for place, each in enumerate(found):
        if inputs.length_of(place) is not None:
            each[1] = None
    return found


def _of_one(part: Any) -> list[Any]:
    return [str(part.dtype).removeprefix("torch."), *map(int, part.shape[1:])]


def zeros(layout: SampleLayout, names: Sequence[str], samples: int) -> Any:
    """Return zero inputs with such a layout, from which lazy layers infer their shapes."""
    import torch

    parts = [
        torch.zeros(samples, *(1 if size is None else size for size in shape), dtype=getattr(torch, dtype))
        for dtype, *shape in layout
    ]
    return parts[0] if len(parts) == 1 and not names else Several(tuple(parts), tuple(names))


def sample_bytes(inputs: Any) -> int:
    parts = inputs.parts if isinstance(inputs, Several) else (inputs,)
    return sum(part.element_size() * math.prod(part.shape[1:]) for part in parts)


def in_words(layout: SampleLayout) -> str:
    """Return the shapes of a layout in words.

    >>> in_words([["float32", 3]]), in_words([["int64", None], ["uint8", 1, 8, 8]])
    ('(3,)', '(any,) and (1, 8, 8)')
    """
    shapes = [tuple("any" if size is None else size for size in shape) for _, *shape in layout]
    return " and ".join(str(shape).replace("'", "") for shape in shapes)
