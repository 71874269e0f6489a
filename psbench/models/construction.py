"""Construction of networks for training, the user's or psbench's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from psbench.data.several import Several, answer
from psbench.errors import ParameterError
from psbench.models.rng import drawing_from

if TYPE_CHECKING:
    from psbench.seeds import Streams


def built(
    what: str, make: Callable[[], nn.Module], streams: Streams, example: Tensor | Several | None = None
) -> nn.Module:
    """Return a network on the CPU whose constructors draw its initial values from the stream "model".

    Parameters
    ----------
    what : str
        What messages call it.
    make : callable
    streams : Streams
    example : Tensor or None, (B, ...)
        A batch that lazy layers take their shapes from.

    Raises
    ------
    ParameterError
        If it cannot be made, is no module, or its lazy layers cannot take the example.
    """
    with drawing_from(streams.integer("model")):
        module = made(what, make)
        if any(is_lazy(values) for values in (*module.parameters(), *module.buffers())):
            _materialise(what, module, example)
    return module


def made(what: str, make: Callable[[], nn.Module]) -> nn.Module:
    """Return the result of a callable, which must be a module.

    Raises
    ------
    ParameterError
    """
    try:
        module = make()
    except Exception as error:
        raise ParameterError(f"{what} cannot be created: {one_line(error)}") from error
    if not isinstance(module, nn.Module):
        raise ParameterError(f"{what} returns {type(module).__name__}, but must return a torch.nn.Module")
    return module.to("cpu")


def _materialise(what: str, module: nn.Module, example: Tensor | Several | None) -> None:
    """Give lazy layers their shapes; in eval mode, so that no running statistic moves."""
    if example is None:
        raise ParameterError(f"{what} has lazy layers, but there is no batch to infer their shapes from")
    was_training = module.training
    try:
        with torch.no_grad():
            answer(module.eval(), example)
    except Exception as error:
        raise ParameterError(
            f"{what}: its lazy layers cannot take a batch of {described(example)}: {one_line(error)}"
        ) from error
    module.train(was_training)


def count(module: nn.Module) -> int:
    """Return the number of entries of parameters and buffers, without lazy layers."""
    tensors = (*module.parameters(), *module.buffers())
    return sum(tensor.numel() for tensor in tensors if not is_lazy(tensor))


def described(batch: Tensor | Several) -> str:
    """Return type and shape of a batch, in words.

    >>> described(torch.zeros(4, 2))
    'float32 of shape (4, 2)'
    """
    if isinstance(batch, Several):
        names = batch.names or map(str, range(len(batch.parts)))
        return ", ".join(f"{name} {described(part)}" for name, part in zip(names, batch.parts, strict=True))
    return f"{str(batch.dtype).removeprefix('torch.')} of shape {tuple(batch.shape)}"


def one_line(error: BaseException) -> str:
    """Return an error's class and the first line of its message.

    >>> one_line(ValueError("no"))
    'ValueError: no'
    """
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
