"""State that a forward pass keeps in a module; only buffers are sent with a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

#: of torch's modules: their tensors and layers, which are compared by themselves, and their hooks
_OF_TORCH = {name for name in vars(nn.Module()) if name.startswith("_")} | {
    "training",
    "_c",
    "_concrete_type",
}
#: nothing in them is a module's own
_CODE = (type, FunctionType, ModuleType, torch.dtype, torch.device)

Values = dict[str, object]


def attributes(module: nn.Module) -> Values:
    """Return the attributes of a module and its layers by name, as comparable values.

    Parameters, buffers and hooks are left out. Attributes are followed into containers and objects.
    """
    found: Values = {}
    for path, layer in module.named_modules():
        for name, value in vars(layer).items():
            if name not in _OF_TORCH:
                found[f"{path}.{name}".removeprefix(".")] = comparable(value, {id(layer)})
        if isinstance(layer, torch.jit.ScriptModule):
            found |= {f"{path}.{n}".removeprefix("."): v for n, v in _scripted(layer)}
    return found


def changed(before: Values, after: Values) -> str | None:
    """Return the first attribute that was added, removed or changed; None if all are equal."""
    names = (*after, *(name for name in before if name not in after))
    return next((n for n in names if n not in before or n not in after or before[n] != after[n]), None)


def changed_parameter(module: nn.Module, before: Mapping[str, Tensor]) -> str | None:
    """Return the first parameter whose values have changed, trained or not; None if there is none."""
    now = dict(module.named_parameters())
    return next((n for n, t in before.items() if n not in now or not torch.equal(now[n], t)), None)


def _scripted(layer: torch.jit.ScriptModule) -> Iterator[tuple[str, object]]:
    """Yield the attributes of a scripted module, which are not in `__dict__`; constants cannot change."""
    inner: Any = layer._c
    declared: Any = layer._concrete_type
    left_out = {"training", *dict(layer.named_parameters()), *dict(layer.named_buffers())}
    for name in declared.get_attributes() if declared is not None else ():
        value = inner.getattr(name)
        if name not in left_out and not isinstance(value, torch.ScriptObject):
            yield name, comparable(value)


def comparable(value: Any, seen: Set[int] = frozenset()) -> object:
    """Return a comparable value: tensors as bytes, containers and objects by their content."""
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return value
    if isinstance(value, (float, complex)):
        return repr(value)  # nan is equal to itself
    if isinstance(value, Tensor):
        return _of_tensor(value)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, _CODE) or id(value) in seen:
        return None
    seen = {*seen, id(value)}
    if isinstance(value, Mapping):
        return [(repr(key), comparable(each, seen)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return [comparable(each, seen) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if hasattr(value, "getstate"):  # as Python's random has it
        return repr(value.getstate())
    if hasattr(value, "__dict__"):
        return [(name, comparable(each, seen)) for name, each in vars(value).items()]
    return type(value).__name__


def _of_tensor(tensor: Tensor) -> object:
    plain = tensor.detach()
    plain = (plain.to_dense() if plain.layout != torch.strided else plain).cpu().contiguous()
    return str(plain.dtype), tuple(plain.shape), plain.reshape(-1).view(torch.uint8).numpy().tobytes()
