"""A trial step on a few samples before the run: errors are reported early, and no state changes."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from psbench.arrays import Integers
from psbench.data import Dataset
from psbench.errors import DoubtfulComposition, ParameterError
from psbench.models.construction import described, one_line
from psbench.models.rng import drawing_from
from psbench.optimization.losses import Loss, logits_of
from psbench.optimization.scores import Metric
from psbench.training.accuracy import right_answers
from psbench.training.buffers import owner_of
from psbench.training.device import computed
from psbench.training.forward_state import Values, attributes, changed, changed_parameter, comparable

#: more show nothing that these do not
SAMPLES = 4
#: unless the loss leaves out all of them
MOST_SAMPLES = 16


@dataclass(frozen=True)
class Trial:
    """Result of a trial step on a few samples.

    Attributes
    ----------
    changed_buffers : names of buffers of whole numbers or booleans that the forward changes and reads
    has_accuracy : whether the outputs say which class is meant
    unused : names of parameters that the loss does not depend on
    """

    changed_buffers: tuple[str, ...] = ()
    has_accuracy: bool = True
    unused: tuple[str, ...] = ()


def check_parameters(what: str, module: nn.Module) -> None:
    """Raise for a module without trainable parameters, or with parameters that are not 32-bit floats.

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
                "store the real and the imaginary part as two parameters, and combine them in forward with "
                "torch.complex"
                if values.is_complex()
                else "call its .float()"
            )
            raise ParameterError(
                f"{what}: parameter {name!r} is {kind}, but parameters must be float32; {remedy}"
            )


class TrialOptions(NamedTuple):
    """Options of a trial step.

    Parameters
    ----------
    samples : int
        Of the smallest batch: no more are taken, as some layers need several.
    seed : int
        Of what the forward draws.
    precision : "bf16", "fp16" or None
        See `FlatModel`.
    shrinks : str
        What may give a worker a batch of one sample; empty: nothing does.
    """

    samples: int = SAMPLES
    seed: int = 0
    precision: str | None = None
    shrinks: str = ""


USUAL = TrialOptions()
_NO_METRICS: Mapping[str, Metric] = {}


def trial_rows(samples: int) -> Integers:
    """Return the samples for a trial step: evenly spaced, as data may be sorted."""
    return np.unique(np.linspace(0, samples - 1, min(MOST_SAMPLES, samples)).astype(np.int64))


def try_step(
    what: str,
    module: nn.Module,
    data: Dataset,
    loss: Loss,
    how: TrialOptions = USUAL,
    metrics: Mapping[str, Metric] = _NO_METRICS,
) -> Trial:
    """Compute a step on a few samples, and restore the module.

    Parameters
    ----------
    what : str
        What messages call the model.
    how : TrialOptions
    metrics : mapping of name to Metric

    Raises
    ------
    ParameterError
        If the forward fails or remembers something outside of buffers, the outputs do not fit, or the loss or
        its gradient cannot be computed or is not finite; in one line.
    """
    check_parameters(what, module)
    loss = loss.on(torch.device("cpu"))  # a copy of what may have a state
    kept = _Kept(module.train())
    rows, outputs, value = _first_loss(what, module, data, loss, how)
    targets = data.as_given(data.train_y[rows])
    _check_mean(outputs, targets, loss, value)
    _check_pairs(outputs, targets, loss, metrics)
    unused = _check_gradient(what, module, value)
    changes = _changed(module, kept.buffers)
    _check_memory(what, module, data, loss, how, kept)
    if how.shrinks:
        _check_single(what, module, data, how)
    kept.put_back()
    return Trial(changes, right_answers(outputs, data.train_y[rows]) is not None, unused)


class _Kept:
    """A module's parameters, buffers and attributes, as they are now."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.parameters = {name: values.detach().clone() for name, values in module.named_parameters()}
        self.buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        self._attributes = [(vars(layer), dict(vars(layer))) for layer in module.modules()]

    def put_back_buffers(self) -> None:
        _put_back(self._module, {name: buffer.clone() for name, buffer in self.buffers.items()})

    def put_back(self) -> None:
        """Restore buffers and attributes; the content of containers in attributes is not restored."""
        for now, before in self._attributes:
            now.clear()
            now.update(before)
        self.put_back_buffers()


def _rows(data: Dataset, size: int, shift: int = 0) -> Tensor:
    """Return the rows of a batch of at most `size` samples; `shift` selects others, if possible."""
    rows = torch.from_numpy(trial_rows(len(data.train_y)))
    spaced = torch.linspace(0, len(rows) - 1, min(size, len(rows))).long()
    return rows[(spaced + shift) % len(rows)]


def _first_loss(
    what: str, module: nn.Module, data: Dataset, loss: Loss, how: TrialOptions
) -> tuple[Tensor, Any, Tensor]:
    """Return a batch's rows, the outputs for it and its loss, which is finite.

    The loss may leave out all targets of a few samples: then more are tried.
    """
    for most in (SAMPLES, MOST_SAMPLES):
        rows = _rows(data, min(how.samples, most))
        with drawing_from(how.seed):
            outputs = _forward(what, module, data, rows, how)
        _check_outputs(what, outputs, data, loss)
        value = _loss(what, outputs, data.as_given(data.train_y[rows]), loss)
        if bool(torch.isfinite(value.detach()).all()):
            return rows, outputs, value
    raise ParameterError(
        f"{what}: its loss is {value.item()} before the first step; check its initial values, and the "
        f"data: perhaps all targets of {len(rows)} samples are ignored"
    )


def _check_memory(
    what: str, module: nn.Module, data: Dataset, loss: Loss, how: TrialOptions, kept: _Kept
) -> None:
    """Raise if a forward pass or a loss keeps state outside of buffers, because only buffers are sent.

    What it keeps may be of the last batch, as a cache is, but must not depend on the batches before.
    """
    own = getattr(loss, "object", None)

    def keeps(shift: int, training: bool = True) -> tuple[Values, object]:
        rows = _rows(data, min(how.samples, SAMPLES), shift)
        with drawing_from(how.seed):
            outputs = _forward(what, module.train(training), data, rows, how)
            if training:
                _loss(what, outputs, data.as_given(data.train_y[rows]), loss)
        return attributes(module), comparable(own)

    remedy = "so results would depend on the process that computes them"
    for batch, other in ((0, 1), (1, 0)):
        kept.put_back()
        first, of_loss = keeps(batch)
        kept.put_back()
        keeps(other)
        with torch.no_grad():
            keeps(other, training=False)
        kept.put_back_buffers()
        second, of_loss_again = keeps(batch)
        if name := changed(first, second):
            raise ParameterError(
                f"{what}: its forward changes the attribute {name!r}, which is not sent with the model, "
                f"{remedy}; make it a buffer: self.register_buffer({name.rpartition('.')[2]!r}, "
                "torch.tensor(...))"
            )
        if of_loss != of_loss_again:
            raise ParameterError(
                f"loss {loss.name!r} keeps state from earlier batches, {remedy}; put that state into "
                "buffers of the model"
            )
    if name := changed_parameter(module, kept.parameters):
        raise ParameterError(
            f"{what}: its forward changes parameter {name!r}, which only steps may change, {remedy}; make "
            "it a "
            "buffer (register_buffer): buffers are sent with the model"
        )


def _check_single(what: str, module: nn.Module, data: Dataset, how: TrialOptions) -> None:
    """Raise if a module cannot train on one sample, as with BatchNorm, although batches may shrink to one."""
    try:
        with drawing_from(how.seed):
            computed(module.train(), data.train_x[_rows(data, 1)], how.precision)
    except Exception as error:
        raise ParameterError(
            f"{what} cannot train on one sample ({one_line(error)}), and {how.shrinks} may reduce a batch "
            "to one sample; use layers without batch statistics, such as GroupNorm, or other stragglers"
        ) from error


def _forward(what: str, module: nn.Module, data: Dataset, rows: Tensor, how: TrialOptions) -> Any:
    inputs = data.train_x[rows]
    try:
        return computed(module, inputs, how.precision)
    except ParameterError as error:
        raise ParameterError(f"{what}: {error}") from None
    except Exception as error:
        raise ParameterError(
            f"{what} cannot take a batch of data {data.name!r}, {described(inputs)}: {one_line(error)}"
            f"{_as_floats(inputs)}"
        ) from error


def _as_floats(inputs: Any) -> str:
    """Return advice on passing integers to layers that compute with floats."""
    if not isinstance(inputs, Tensor) or inputs.is_floating_point():
        return ""
    scaled = ", or images scaled to 0..1 as torchvision's ToTensor does: X / 255 as float32"
    return f"; give floats: ps.data(..., inputs='numbers'){scaled if inputs.dtype == torch.uint8 else ''}"


def _check_outputs(what: str, outputs: Any, data: Dataset, loss: Loss) -> None:
    """Raise for fewer logits than classes: the first batches may not contain the missing classes."""
    outputs = logits_of(outputs)
    if loss.name != "cross_entropy" or not isinstance(outputs, Tensor):
        return
    logits = outputs.shape[-1] if data.train_y.dim() + 1 == outputs.dim() else 0
    if data.task == "classification" and data.train_y.dim() == 1 and logits > data.num_outputs:
        warnings.warn(
            f"{what} returns {logits} numbers per sample, but data {data.name!r} has {data.num_outputs} "
            f"classes: the other {logits - data.num_outputs} are never right; set classes={logits} if the "
            "data merely has no sample of them",
            DoubtfulComposition,
            stacklevel=2,
        )
    if data.train_y.dim() <= 2 and logits < data.num_outputs:
        kind = "classes" if data.task == "classification" else "next tokens"
        wanted = (len(outputs), *data.train_y.shape[1:], data.num_outputs)
        raise ParameterError(
            f"{what} returns {described(outputs)}, but data {data.name!r} has {data.num_outputs} "
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
        raise ParameterError(f"loss {loss.name!r} returns {shown}, but must return a tensor of one number")
    return value


def _check_mean(outputs: Any, targets: Tensor, loss: Loss, value: Tensor) -> None:
    """Raise if the loss is a sum over the batch: it doubles if every sample is repeated."""
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
            f"loss {loss.name!r} is a sum over the batch: with every sample twice it is {both:.4g} instead "
            f"of {once:.4g}; give the mean, as reduction='mean' does"
        )


def _check_pairs(outputs: Any, targets: Tensor, loss: Loss, metrics: Mapping[str, Metric]) -> None:
    """Raise for a loss or a metric that broadcasts: it compares every output with every target.

    Then it is the same whichever sample a target is of. A function that brings both to one shape is not.
    """
    found = [each for each in _tensors(outputs) if each.dim() and len(each) == len(targets)]
    tables = [each for each in found if _makes_table(each, targets)]
    if not tables:
        return
    shapes = tuple(tables[0].shape), tuple(targets.shape)
    other = _told_apart(torch.cat([targets, targets]))
    numels = {each.numel() for each in tables}

    def drawn(values: Tensor) -> Tensor:
        if not values.dim() or len(values) != len(targets):
            return values.detach()
        if values.numel() == targets.numel() and numels == {targets.numel()} and len(found) == 1:
            # so that pairs are alike, and no others
            return _told_apart(other.to(values.dtype)).reshape(2 * len(values), *values.shape[1:])
        return _told_apart(torch.cat([values.detach(), values.detach()]))

    functions = [(f"loss {loss.name!r}", loss.mean)]
    scored = {name: metric for name, metric in metrics.items() if not metric.of_gradient}
    functions += [(f"metric {name!r}", metric.value) for name, metric in scored.items()]
    outputs = _mapped(outputs, drawn)
    for called, function in functions:
        if _ignores_order(function, outputs, other):
            raise ParameterError(
                f"{called} compares every output with every target: outputs of shape {shapes[0]} and targets "
                f"of shape {shapes[1]} broadcast; bring both to one shape"
            )


def _makes_table(outputs: Tensor, targets: Tensor) -> bool:
    """Return whether outputs and targets of twice as many samples broadcast to a larger shape."""
    shapes = [(2 * len(each), *each.shape[1:]) for each in (outputs, targets)]
    try:
        table = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        return False
    return math.prod(table) > max(map(math.prod, shapes))


def _tensors(outputs: Any) -> Iterator[Tensor]:
    """Yield the tensors in a model's outputs: one, or those in tuples, lists and mappings."""
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, (tuple, list, MutableMapping)):
        for each in outputs.values() if isinstance(outputs, MutableMapping) else outputs:
            yield from _tensors(each)


def _mapped(outputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the outputs with each tensor changed; other content is kept."""
    if isinstance(outputs, Tensor):
        return change(outputs)
    if isinstance(outputs, MutableMapping):
        changed = copy.copy(outputs)
        for name, each in outputs.items():
            changed[name] = _mapped(each, change)
        return changed
    if isinstance(outputs, (tuple, list)):
        parts = [_mapped(each, change) for each in outputs]
        return type(outputs)(*parts) if hasattr(outputs, "_fields") else type(outputs)(parts)
    return outputs


def _told_apart(values: Tensor) -> Tensor:
    """Return modified values, distinct between samples and still between 0 and 1 if they were."""
    if not values.is_floating_point():
        return torch.cat([1 - values[:1].clamp(0, 1), values[1:]])
    draw = torch.Generator().manual_seed(0)
    less, more = (torch.empty(values.shape).uniform_(0, 0.1, generator=draw) for _ in range(2))
    return values * (0.9 - less) + more


def _ignores_order(function: Callable[[Any, Tensor], Any], outputs: Tensor, targets: Tensor) -> bool:
    """Return whether a function uses the targets, but not which sample each belongs to."""
    rolled = [targets.roll(shift, 0) for shift in range(min(3, len(targets)))]
    try:
        with torch.no_grad():
            alike = float(function(outputs, targets[:1].expand_as(targets)))
            found = [float(function(outputs, each)) for each in rolled]
    except Exception:  # it may need more samples than these
        return False
    same = [math.isclose(value, found[0], rel_tol=1e-5) for value in (*found, alike)]
    return all(same[:-1]) and not same[-1]


def _check_gradient(what: str, module: nn.Module, value: Tensor) -> tuple[str, ...]:
    """Raise for a loss without a finite gradient; return the parameters that do not affect the loss."""
    named = {name: values for name, values in module.named_parameters() if values.requires_grad}
    trained = list(named.values())
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
    return tuple(name for name, each in zip(named, found, strict=True) if each is None)


def _changed(module: nn.Module, before: dict[str, Tensor]) -> tuple[str, ...]:
    """Return the integer buffers that have changed, except unused counters."""
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
        owner, own = owner_of(module, name)
        now = getattr(owner, own)
        if now.shape != values.shape:
            raise ParameterError(
                f"buffer {name!r} changes its shape in the forward, from {tuple(values.shape)} to "
                f"{tuple(now.shape)}; its values are sent, so it must keep it"
            )
        owner._buffers[own] = values
