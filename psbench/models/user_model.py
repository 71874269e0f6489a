"""The user's own networks: a module, its class, or a function that builds one."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from psbench.core.code_identity import code_identity, qualified_name
from psbench.core.part import Part, make_part
from psbench.core.user_object import Own, is_module
from psbench.errors import ParameterError
from psbench.models.base import ForeignModel, Model

if TYPE_CHECKING:
    from torch import nn


class OwnModel(Own, ForeignModel):
    """A torch module that the user passed, or a function that builds one; created by `as_model`.

    Notes
    -----
    The weights of a module are the start, whatever the seed, and it is copied: later changes of the original
    change nothing here, and training does not change the original.
    """

    def maker(self, num_outputs: int) -> tuple[str, Callable[[], Any]]:
        """Return the module's name, and a function that copies or builds it."""
        value = self.object
        return f"model {self.type!r}", value if isinstance(value, type) else lambda: _fresh(value)

    @property
    def known_size(self) -> int:
        """Number of entries of the module's parameters and buffers; 0 for a function."""
        from psbench.models.construction import count

        return count(self.object) if is_module(self.object) else 0


def as_model(value: Any) -> Model:
    """Return a model from any value that an experiment accepts as one.

    Parameters
    ----------
    value : Model, str, mapping, torch.nn.Module, or callable
        A model of psbench, its name, or a mapping with its name and parameters; or a module, a class of
        modules or a function that builds one without arguments.

    Raises
    ------
    UnknownName, ParameterError
        If it is none of these, or a module that cannot be copied.

    Examples
    --------
    >>> as_model("mlp").hidden
    (64,)
    >>> from torch import nn
    >>> as_model(nn.Linear(4, 2)).type
    'torch.nn.modules.linear.Linear'
    """
    if isinstance(value, type) and issubclass(value, Model):
        value = value()
    if isinstance(value, Mapping) and value.get("name") == OwnModel.name:
        return OwnModel.described(value)
    if is_module(value):
        return OwnModel.around(_copied(value), qualified_name(value), _fingerprint_of_module(value))
    if callable(value) and not isinstance(value, Part):
        made_by = hashlib.sha256(code_identity(value).encode()).hexdigest()
        return OwnModel.around(value, qualified_name(value), made_by)
    model = make_part("model", value)
    assert isinstance(model, Model)
    return model


def _fresh(value: Any) -> Any:
    """Return a copy of a module, or of the module that a function returns."""
    from torch.nn.parameter import is_lazy

    module = value if is_module(value) else value()
    if is_module(module) and any(is_lazy(each) for each in (*module.parameters(), *module.buffers())):
        return module if module is not value else _copied(value)  # torch cannot copy all of those
    return copy.deepcopy(module)


def _copied(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as error:
        from psbench.models.construction import one_line

        raise ParameterError(
            f"model {qualified_name(module)!r} cannot be copied: {one_line(error)}; pass a function that "
            "builds it, or remove open files and the like from it"
        ) from error


def _fingerprint_of_module(module: nn.Module) -> str:
    """Return the SHA-256 of the tensors, of the trained flags, and of the code of the classes."""
    import torch
    from torch.nn.parameter import is_lazy

    content = hashlib.sha256()
    for kind in dict.fromkeys(type(layer) for layer in module.modules()):
        known = kind.__module__.startswith("torch.")
        content.update((qualified_name(kind) if known else code_identity(kind)).encode())
    trained = [name for name, values in module.named_parameters() if values.requires_grad]
    content.update(repr((str(module), trained)).encode())
    for name, values in module.state_dict().items():
        content.update(name.encode())
        if isinstance(values, torch.Tensor) and not is_lazy(values):
            content.update(f"{values.dtype} {tuple(values.shape)}".encode())
            plain = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            content.update(plain.numpy().data)
    return content.hexdigest()
