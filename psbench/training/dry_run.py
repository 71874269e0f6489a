"""One step on a few samples before the run: what cannot work is said in one line, and nothing is changed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from psbench.data import Dataset
from psbench.errors import DoubtfulComposition, ParameterError
from psbench.models.construction import described, one_line
from psbench.models.drawing import drawing_from
from psbench.optimization.losses import Loss, logits_of
from psbench.training.accuracy import right_answers
from psbench.training.device import computed

#: more show nothing that these do not
SAMPLES = 4


@dataclass(frozen=True)
class Trial:
    """What a step on a few samples has shown.

    Attributes
    ----------
    changed_buffers : names of buffers of whole numbers or booleans that the forward changes and reads
    has_accuracy : whether the outputs say which class is meant
    """

    changed_buffers: tuple[str, ...] = ()
    has_accuracy: bool = True


def check_parameters(what: str, module: nn.Module) -> None:
    """Refuse a module that has nothing to train, or parameters that are not 32-bit floats.

    Raises
    ------
    ParameterError
    """
    named = dict(module.named_parameters())
    if not any(values.requires_grad for values in named.values()):
        why = "all of them are frozen" if named else "it has none at all"
        raise ParameterError(f"{what} has no parameters to train: {why}")
    for name, values in named.items():
        if values.requires_grad and values.dtype != torch.float32:
            kind = str(values.dtype).removeprefix("torch.")
            remedy = (
                "make it two of real numbers, and torch.complex of them in the forward"
                if values.is_complex()
                else "call its .float()"
            )
            raise ParameterError(
                f"{what}: parameter {name!r} is {kind}, and what is trained is float32; {remedy}"
            )


class TrialOptions(NamedTuple):
    """How a step is tried.

    Parameters
    ----------
    samples : int
        How many, at most `SAMPLES`: no more than the smallest batch, as some layers need several.
    seed : int
        Of what the forward draws.
    precision : "bf16" or None
        See `FlatModel`.
    """

    samples: int = SAMPLES
    seed: int = 0
    precision: str | None = None


USUAL = TrialOptions()


def try_step(what: str, module: nn.Module, data: Dataset, loss: Loss, how: TrialOptions = USUAL) -> Trial:
    """Compute a step on the first samples, and put the module back as it was.

    Parameters
    ----------
    what : str
        What messages call the model.
    how : TrialOptions

    Raises
    ------
    ParameterError
        If the forward fails, the outputs do not fit, or the loss or its gradient cannot be computed or is not
        finite; in one line.
    """
    check_parameters(what, module)
    where = torch.arange(min(how.samples, SAMPLES, len(data.train_y)))
    inputs, targets = data.train_x[where], data.train_y[where]
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with drawing_from(how.seed):
        outputs = _forward(what, module.train(), data.name, inputs, how.precision)
        _check_outputs(what, outputs, data, loss)
        value = _loss(what, outputs, targets, loss)
        _check_mean(outputs, targets, loss, value)
        _check_gradient(what, module, value)
    changed = _changed(module, before)
    _put_back(module, before)
    return Trial(changed, right_answers(outputs, targets) is not None)


def _forward(what: str, module: nn.Module, name: str, inputs: Any, precision: str | None) -> Any:
    try:
        return computed(module, inputs, precision)
    except ParameterError as error:
        raise ParameterError(f"{what}: {error}") from None
    except Exception as error:
        raise ParameterError(
            f"{what} cannot take a batch of data {name!r}, {described(inputs)}: {one_line(error)}"
            f"{_as_floats(inputs)}"
        ) from error


def _as_floats(inputs: Any) -> str:
    """Return how to give whole numbers to layers that compute with floats."""
    if not isinstance(inputs, Tensor) or inputs.is_floating_point():
        return ""
    scaled = ", or images scaled to 0..1 as torchvision's ToTensor does: X / 255 as float32"
    return f"; give floats: ps.data(..., inputs='numbers'){scaled if inputs.dtype == torch.uint8 else ''}"


def _check_outputs(what: str, outputs: Any, data: Dataset, loss: Loss) -> None:
    """Refuse fewer logits than classes: the first batches may have none of the classes that are missing."""
    outputs = logits_of(outputs)
    if loss.name != "cross_entropy" or not isinstance(outputs, Tensor):
        return
    logits = outputs.shape[-1] if data.train_y.dim() + 1 == outputs.dim() else 0
    if data.task == "classification" and data.train_y.dim() == 1 and logits > data.num_outputs:
        warnings.warn(
            f"{what} answers with {logits} numbers a sample, and data {data.name!r} has {data.num_outputs} "
            f"classes: the other {logits - data.num_outputs} are never right; say classes={logits} if the "
            "data only lacks them",
            DoubtfulComposition,
            stacklevel=2,
        )
    if data.train_y.dim() <= 2 and logits < data.num_outputs:
        kind = "classes" if data.task == "classification" else "next tokens"
        wanted = (len(outputs), *data.train_y.shape[1:], data.num_outputs)
        raise ParameterError(
            f"{what} answers with {described(outputs)}, and data {data.name!r} has {data.num_outputs} "
            f"{kind}: give it outputs of shape {wanted}, or another loss"
        )


def _loss(what: str, outputs: Any, targets: Tensor, loss: Loss) -> Tensor:
    try:
        value: Any = loss.mean(outputs, targets)
    except ParameterError as error:
        raise ParameterError(f"{what}: {error}") from None
    except Exception as error:
        shown = described(outputs) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ParameterError(
            f"loss {loss.name!r} cannot take the outputs of {what}, {shown}, with targets of "
            f"{described(targets)}: {one_line(error)}"
        ) from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        shown = described(value) if isinstance(value, Tensor) else type(value).__name__
        raise ParameterError(f"loss {loss.name!r} gives {shown}, and must give a tensor of one number")
    if not bool(torch.isfinite(value.detach()).all()):
        raise ParameterError(
            f"{what}: its loss is {value.item()} before the first step; look at its initial values, and at "
            "the data"
        )
    return value


def _check_mean(outputs: Any, targets: Tensor, loss: Loss, value: Tensor) -> None:
    """Refuse a sum over the batch, which is twice as much for every sample twice: a mean stays as it is."""
    if not isinstance(outputs, Tensor) or len(outputs) != len(targets):
        return
    try:
        with torch.no_grad():
            twice = loss.mean(torch.cat([outputs, outputs]), torch.cat([targets, targets]))
    except Exception:  # a user's loss for batches of this size alone
        return
    once, both = float(value.detach()), float(torch.as_tensor(twice).detach())
    if once and abs(both - 2 * once) <= 1e-3 * abs(once):
        raise ParameterError(
            f"loss {loss.name!r} is a sum over the batch: with every sample twice it is {both:.4g} in the "
            f"place of {once:.4g}; give the mean, as reduction='mean' does"
        )


def _check_gradient(what: str, module: nn.Module, value: Tensor) -> None:
    trained = [values for values in module.parameters() if values.requires_grad]
    try:
        found = torch.autograd.grad(value.reshape(()), trained, allow_unused=True)
    except RuntimeError as error:
        raise ParameterError(f"{what}: its loss has no gradient: {one_line(error)}") from error
    gradients = [each for each in found if each is not None]
    if not gradients:
        raise ParameterError(f"{what}: its loss depends on none of its parameters")
    finite = all(bool(torch.isfinite(g.coalesce().values() if g.is_sparse else g).all()) for g in gradients)
    if not finite:
        raise ParameterError(f"{what}: the gradient of its loss is not finite before the first step")


def _changed(module: nn.Module, before: dict[str, Tensor]) -> tuple[str, ...]:
    """Return which buffers that are no floats have changed, but for counts that nothing reads."""
    unread = {
        f"{path}.num_batches_tracked".removeprefix(".")
        for path, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and layer.momentum is not None
    }
    return tuple(
        name
        for name, now in module.named_buffers()
        if not now.is_floating_point() and name not in unread and not torch.equal(now, before[name])
    )


def _put_back(module: nn.Module, before: dict[str, Tensor]) -> None:
    for name, values in before.items():
        path, _, own = name.rpartition(".")
        owner = module.get_submodule(path)
        now = getattr(owner, own)
        if now.shape != values.shape:
            raise ParameterError(
                f"buffer {name!r} changes its shape in the forward, from {tuple(values.shape)} to "
                f"{tuple(now.shape)}; its values are sent, so it must keep it"
            )
        owner._buffers[own] = values
