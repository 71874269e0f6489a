"""Losses and metrics of the user's: functions, or the module and name of a function."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from psbench.core import Part, make_part, parameter
from psbench.core.code_identity import code_digest, qualified_name
from psbench.core.imports import ImportedCall
from psbench.core.user_object import Own, is_module
from psbench.errors import ParameterError, in_short
from psbench.optimization.losses import Loss
from psbench.optimization.scores import Metric

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_NAME = re.compile(r"[A-Za-z]\w*")
#: what is evaluated anyway
_TAKEN = ("loss", "accuracy")


class _ImportedFunction(ImportedCall):
    """Base of parts that import a function, with further `arguments`, or a class to be called with them."""

    @property
    def function(self) -> Callable[..., Any]:
        found = self.imported()
        made = found(**self.arguments) if isinstance(found, type) else None
        return functools.partial(found, **self.arguments) if made is None else made


class OwnLoss(Own, Loss):
    """A function that was passed: (outputs, targets) -> the mean over the batch."""

    def mean(self, outputs: Any, targets: Tensor) -> Tensor:
        value: Tensor = self.object(outputs, targets)
        return value

    def on(self, device: torch.device) -> Loss:
        """Return the loss on that device, if it is a module with tensors."""
        if not hasattr(self.object, "to"):
            return self
        return type(self).around(copy.deepcopy(self.object).to(device), self.type, self.fingerprint)


class ImportedLoss(_ImportedFunction, Loss):
    """A loss from an importable function, such as `my.package:focal_loss`, or class, `torch.nn:HuberLoss`."""

    name = "import"

    def mean(self, outputs: Any, targets: Tensor) -> Tensor:
        value: Tensor = self.function(outputs, targets)
        return value

    def on(self, device: torch.device) -> Loss:
        """Return the loss with its function loaded, to import it only once."""
        return OwnLoss.around(self.function, self.target, "").on(device)


class _Declared(Metric):
    """Base of metrics whose direction is declared, or unknown."""

    of_all = True

    better: Literal["higher", "lower"] | None = parameter(None, "whether higher or lower values are better")

    @property
    def lower_is_better(self) -> bool | None:  # pyrefly: ignore[bad-override]
        """Return True if smaller values are better; None if undeclared."""
        return None if self.better is None else self.better == "lower"


class OwnMetric(Own, _Declared):
    """A function that was passed: (outputs, targets) -> a number."""

    @property
    def argument(self) -> str:
        """The field of an experiment that takes it."""
        return "metrics"

    def value(self, outputs: Any, targets: Tensor) -> float:
        return float(self.object(outputs, targets))


class ImportedMetric(_ImportedFunction, _Declared):
    """A metric from an importable function, such as `my.package:score`."""

    name = "import"

    def value(self, outputs: Any, targets: Tensor) -> float:
        return float(self.function(outputs, targets))


def as_loss(value: Any) -> Loss:
    """Return a loss from a loss, its name, a mapping with its name and parameters, or a function.

    Raises
    ------
    UnknownName, ParameterError

    Examples
    --------
    >>> as_loss("huber").delta
    1.0
    >>> as_loss(lambda outputs, targets: (outputs - targets).abs().mean()).name
    'own'
    """
    loss = _as_part(value, OwnLoss)
    assert isinstance(loss, Loss)
    if isinstance(value, type) and isinstance(loss, OwnLoss):  # a class of torch, as nn.HuberLoss
        loss = OwnLoss.around(value(), loss.type, loss.fingerprint)
    if isinstance(loss, OwnLoss) and loss.is_there and _is_trained(loss.object):
        raise ParameterError(
            f"loss {loss.type!r} has parameters, which would not be trained; put them into the model"
        )
    return loss


def as_metrics(value: Any) -> dict[str, Metric]:
    """Return metrics by name, from a mapping of name to metric or function, or a list of them.

    `{"function": f1, "better": "higher"}` declares which values are better; the function may be a path.

    In a list a metric goes by its own name, and a function by its.

    Raises
    ------
    UnknownName, ParameterError

    Examples
    --------
    >>> list(as_metrics(["perplexity", {"name": "top_k", "k": 3}]))
    ['perplexity', 'top_k']
    """
    if isinstance(value, str) or not isinstance(value, (Mapping, list, tuple)):
        raise ParameterError(
            f"metrics: expected a mapping of name to function, or a list, got {in_short(value)}"
        )
    if not isinstance(value, Mapping):
        value = _by_name(value)
    for name in value:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _TAKEN:
            raise ParameterError(
                f"metrics: {name!r} is not a valid name of a metric: letters, digits and _, and not one of "
                f"{', '.join(_TAKEN)}"
            )
    return {name: _as_metric(each) for name, each in value.items()}


def _by_name(listed: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in listed:
        if (name := _name_of(each)) in found:
            raise ParameterError(
                f"metrics: two are called {name!r}; give a mapping with a name for each, as "
                f"{{{name}: ..., {name}_2: ...}}"
            )
        found[name] = each
    return found


def _as_metric(value: Any) -> Metric:
    if isinstance(value, Mapping) and "function" in value:
        return _declared(dict(value))
    metric = _as_part(value, OwnMetric)
    assert isinstance(metric, Metric)
    return metric


def _declared(given: dict[str, Any]) -> Metric:
    """Return a metric from its function or import path, and its direction."""
    function = given.pop("function")
    if isinstance(function, str):
        return ImportedMetric(target=function, **given)
    if unknown := given.keys() - {"better"}:
        raise ParameterError(
            f"metrics: {min(unknown)!r} is not an option of a function; the only option is better"
        )
    metric = _as_part(function, OwnMetric)
    assert isinstance(metric, OwnMetric)
    return OwnMetric.around(metric.object, metric.type, metric.fingerprint, **given)


def _name_of(value: Any) -> str:
    if isinstance(value, Mapping):
        return _name_of(value["function"]) if "function" in value else str(value.get("name"))
    if isinstance(value, (str, Part)):
        return value if isinstance(value, str) else value.name
    return str(getattr(value, "__name__", type(value).__name__))


def _as_part(value: Any, own: type[OwnLoss | OwnMetric]) -> Part:
    if isinstance(value, type) and issubclass(value, Part):
        value = value()
    if isinstance(value, Mapping) and value.get("name") == Own.name:
        return own.described(value)
    if callable(value) and not isinstance(value, Part):
        return own.around(value, qualified_name(value), code_digest(value, _settings(value)))
    return make_part(own.domain, value)


def _settings(value: Any) -> str:
    """Return the settings of a torch module that its class lacks, such as the 2 of `HuberLoss(delta=2)`."""
    found = vars(value).items() if is_module(value) else ()
    return repr(sorted((name, each) for name, each in found if isinstance(each, (int, float, str))))


def _is_trained(value: Any) -> bool:
    return is_module(value) and any(each.requires_grad for each in value.parameters())
