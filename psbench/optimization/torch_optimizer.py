"""Any optimizer class of torch, for those that `optimizer` does not implement."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from psbench.core import make_part, parameter
from psbench.core.imports import imported
from psbench.core.part import REGISTRY
from psbench.errors import ParameterError, UnknownName
from psbench.optimization.optimizer import Optimizer

if TYPE_CHECKING:
    import torch

#: classes of torch.optim that step on a slice of a model, by the name that each has as an optimizer here
BY_NAME = {
    name.lower(): name
    for name in ("Adadelta", "Adagrad", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
}
#: entries and steps on which an optimizer is tried
_TRIAL, _STEPS = 6, 3


class TorchOptimizer(Optimizer):
    """Any optimizer of torch by class name; `adamw`, `rmsprop` and others have names of their own.

    The class is tried on a short vector when the experiment is made: it must take a flat vector, and step
    each entry by that entry's gradient alone, since servers hold slices of the model. Its weight decay is the
    field's, 0 unless given, whatever the class would take.

    Raises
    ------
    ParameterError
        If torch has no such class, the class refuses the arguments, or its steps depend on the whole vector.

    Examples
    --------
    >>> TorchOptimizer(type="AdamW", lr=0.001, arguments={"betas": [0.9, 0.95]}).tensors
    2
    """

    name = "torch"
    source = "torch.optim"

    lr: float = parameter(0.001, "single-node learning rate", gt=0)
    type: str = parameter(
        "AdamW",
        "class in torch.optim, as AdamW, or elsewhere, as my.package:Lion; short names: "
        + ", ".join(BY_NAME),
    )
    arguments: dict[str, Any] = Field(
        default_factory=dict,
        description="keyword arguments of the class, except lr and weight_decay",
        json_schema_extra={"unit": "", "source": ""},
    )

    @field_validator("type")
    @classmethod
    def _as_in_torch(cls, value: str) -> str:
        return BY_NAME.get(value, value)  # short names may be typed where the class is asked for, too

    def model_post_init(self, context: Any) -> None:
        """Try the class; see the class's docstring."""
        super().model_post_init(context)
        if taken := {"lr", "weight_decay", "params"} & set(self.arguments):
            name = min(taken)
            raise ParameterError(
                f"optimizer 'torch': arguments: {name} is a field of the optimizer; "
                + ("remove it" if name == "params" else f"give {name} beside type")
            )
        self._check_slices()

    @property
    def coefficient(self) -> float:
        """The argument `momentum`, if the class has one."""
        return float(self.arguments.get("momentum", 0.0))

    @property
    def tensors(self) -> int:  # pyrefly: ignore[bad-override]
        """As many as it keeps after a step on a short vector."""
        _, optimizer = self._stepped([slice(None)])
        kept: Any = next(iter(optimizer[0].state.values()), {}).values()
        return sum(getattr(each, "numel", lambda: 0)() == _TRIAL for each in kept)

    def build(self, parameters: torch.Tensor) -> torch.optim.Optimizer:
        """Return torch's optimizer."""
        made, options = self._class(), {"lr": self.lr, **_tuples(self.arguments)}
        if "weight_decay" in inspect.signature(made).parameters:
            options["weight_decay"] = self.weight_decay
        elif self.weight_decay:
            raise ParameterError(f"optimizer 'torch': {self.type} has no weight_decay; remove it")
        try:
            found: torch.optim.Optimizer = made([parameters], **options)
        except Exception as error:
            raise ParameterError(
                f"optimizer 'torch': {self.type} does not take one flat vector and these arguments: {error}"
            ) from error
        return found

    def _class(self) -> Any:
        if ":" in self.type:
            return imported("optimizer 'torch': type", self.type)
        classes = _classes()
        if self.type not in classes:
            alike = {name.lower(): name for name in classes}
            near = get_close_matches(self.type.lower(), alike, 1)
            hint = f"did you mean {alike[near[0]]!r}? " if near else ""
            raise ParameterError(
                f"optimizer 'torch': type: torch.optim has no {self.type!r}; {hint}(there are: "
                f"{', '.join(sorted(classes))})"
            )
        return classes[self.type]

    def _stepped(self, slices: list[slice]) -> tuple[torch.Tensor, list[torch.optim.Optimizer]]:
        """Return a short vector after some steps of an optimizer for each slice, and the optimizers."""
        import torch

        whole = torch.linspace(-1, 1, _TRIAL)
        parts = [whole[each].clone() for each in slices]
        optimizers = [self.build(part) for part in parts]
        for number in range(_STEPS):
            gradient = torch.linspace(0.5, 3, _TRIAL) * (-1) ** number
            for part, optimizer, each in zip(parts, optimizers, slices, strict=True):
                part.grad = gradient[each].clone()
                try:
                    optimizer.step()
                except Exception as error:
                    raise ParameterError(
                        f"optimizer 'torch': {self.type} cannot step on a flat vector and its "
                        f"gradient alone ({type(error).__name__}: {error}); use one that can, such as AdamW"
                    ) from error
        return torch.cat([part.detach() for part in parts]), optimizers

    def _check_slices(self) -> None:
        import torch

        half = _TRIAL // 2
        whole, _ = self._stepped([slice(None)])
        sliced, _ = self._stepped([slice(half), slice(half, None)])
        if not torch.equal(whole, sliced):
            raise ParameterError(
                f"optimizer 'torch': a step of {self.type} depends on the whole vector, but a server may "
                "hold only a slice; use one that steps each entry by itself, such as AdamW"
            )


def _classes() -> dict[str, Any]:
    import torch

    return {
        name: each
        for name, each in vars(torch.optim).items()
        if isinstance(each, type) and issubclass(each, torch.optim.Optimizer) and name != "Optimizer"
    }


def as_optimizer(value: Any) -> Optimizer:
    """Return an optimizer from an optimizer, its name, a mapping, or a class of torch or of the user.

    A `functools.partial` of a class gives its arguments.

    Raises
    ------
    UnknownName, ParameterError

    Examples
    --------
    >>> import torch
    >>> made = as_optimizer(functools.partial(torch.optim.RMSprop, lr=0.01, alpha=0.9))
    >>> made.type, made.lr, made.arguments
    ('RMSprop', 0.01, {'alpha': 0.9})
    >>> as_optimizer("adamw") == as_optimizer(torch.optim.AdamW)
    True
    """
    made, options = value, {}
    if isinstance(value, functools.partial):
        if value.args:
            raise ParameterError("optimizer: give the arguments of a partial by name")
        made, options = value.func, dict(value.keywords)
    if isinstance(made, type) and not issubclass(made, Optimizer):
        return _of_class(made, options)
    if callable(made):
        raise ParameterError(
            f"optimizer: {getattr(made, '__qualname__', made)} is a function; give a class, such as "
            "torch.optim.AdamW, or functools.partial of one"
        )
    if (named := _named_as_in_torch(value)) is not None:
        return named
    optimizer = make_part(Optimizer.domain, value)
    assert isinstance(optimizer, Optimizer)
    return optimizer


def _named_as_in_torch(value: Any) -> TorchOptimizer | None:
    """Return the torch optimizer of a class name, given alone or with arguments."""
    options = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = options.pop("name", None)
    if not isinstance(name, str) or name.lower() in REGISTRY[Optimizer.domain] or ":" in name:
        return None
    import torch

    classes = {each.lower(): each for each in _classes()}
    if name.lower() not in classes:
        raise UnknownName("optimizer part", name, {**REGISTRY[Optimizer.domain], **BY_NAME})
    fields = TorchOptimizer.model_fields.keys() - {"type", "arguments", "lr", "weight_decay"}
    own = {field: options.pop(field) for field in fields & options.keys()}
    arguments = options.pop("arguments", {})
    return _of_class(getattr(torch.optim, classes[name.lower()]), {**arguments, **options}, own)


def _of_class(made: type, options: dict[str, Any], own: Mapping[str, Any] | None = None) -> TorchOptimizer:
    """Return the optimizer of a class, with the class's own rate and weight decay unless they are given."""
    defaults = {name: each.default for name, each in inspect.signature(made).parameters.items()}
    given = {
        name: options.pop(name, defaults.get(name))
        for name in ("lr", "weight_decay")
        if name in options or isinstance(defaults.get(name), (int, float))
    }
    return TorchOptimizer(type=_name_of(made), arguments=options, **given, **(own or {}))


def _name_of(made: type) -> str:
    if made.__module__.startswith("torch.optim"):
        return made.__name__
    if made.__module__ == "__main__":
        raise ParameterError(
            f"optimizer: {made.__qualname__} is defined in a notebook or script, which other processes "
            "cannot import; put it into a module"
        )
    return f"{made.__module__}:{made.__qualname__}"


def _tuples(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with lists, as files have them, replaced by tuples, as torch requires."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}
