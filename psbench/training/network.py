"""The network of an experiment: built, tried on a few samples, and ready to be trained."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from psbench.core.rounding import largest_remainder
from psbench.data import Dataset
from psbench.data.several import Several
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.models import Model
from psbench.models.initialise import knows
from psbench.optimization.losses import Loss, loss_for
from psbench.seeds import Streams
from psbench.training.device import device_of
from psbench.training.dry_run import SAMPLES, Trial, TrialOptions, check_parameters, trial_rows, try_step
from psbench.training.memory import check_model
from psbench.training.model import FlatModel


class BuiltNetwork(NamedTuple):
    """A model at its start, its loss, and the result of a trial step."""

    model: FlatModel
    loss: Loss
    trial: Trial


def network_of(experiment: Experiment, data: Dataset, streams: Streams, *, whole_run: bool) -> BuiltNetwork:
    """Build the network of an experiment, and try a step with it.

    `whole_run` says whether all of the run is on this machine, which then has to have its device and memory.

    Raises
    ------
    ParameterError
        If it cannot be built, is too large, or cannot learn from this data; nothing has been computed.
    """
    if whole_run:
        device_of(experiment.device)
    model = experiment.model
    model.check_task(data.task)
    loss = loss_for(experiment.loss, data.task)
    _check_inputs(model, data)
    example = data.train_x[torch.from_numpy(trial_rows(len(data.train_y))[:SAMPLES])]
    sizes = data.input_shape, data.num_outputs
    check = partial(check_model, experiment, whole_run=whole_run)
    module = model.build(*sizes, streams, example, lambda numbers: check(4 * numbers))
    what = _called(model)
    trial, shrinks = Trial(has_accuracy=data.task != "regression"), _shrinks(experiment)
    if experiment.timing_only:
        check_parameters(what, module)
    elif experiment.loss is not None or experiment.metrics or not _certain(model, module, data, shrinks):
        smallest = experiment.batch_size // experiment.num_workers
        how = TrialOptions(smallest, streams.integer("dry run"), experiment.precision, shrinks)
        trial = try_step(what, module, data, loss, how, experiment.metrics)
    if (rule := experiment.reads_accuracy) and not trial.has_accuracy:
        raise ParameterError(
            f"{rule}: the outputs of {what} for data {data.name!r} are not classes, so there is "
            "no accuracy; use stop.patience, or stop.tolerance"
        )
    flat = FlatModel(module, trial.changed_buffers, precision=experiment.precision)
    return BuiltNetwork(flat, loss, trial)


def _check_inputs(model: Model, data: Dataset) -> None:
    if isinstance(data.train_x, Several) and not model.foreign:
        raise ParameterError(
            f"model {model.name!r} takes one tensor, but a sample of data {data.name!r} is "
            f"{data.train_x.called}; use a module of your own whose forward takes them, or exclude inputs "
            "with features=[...]"
        )


def _shrinks(experiment: Experiment) -> str:
    """Return the component that may give a worker a step of one sample; empty if there is none."""
    shares = set(largest_remainder(experiment.batch_size, [1.0] * experiment.num_workers))
    for each in experiment.strategy.compositions:
        if each.stragglers.varies_batch and each.stragglers.smallest_batch == 1:
            return f"stragglers {each.stragglers.name!r}"
        if min(map(each.communication.smallest_step, shares)) == 1 < min(shares):
            return f"communication {each.communication.name!r}"
    return ""


def _called(model: Model) -> str:
    return f"model {getattr(model, 'type', '') or model.name!r}"


def _certain(model: Model, module: torch.nn.Module, data: Dataset, shrinks: str) -> bool:
    """Return whether a step is known to work: psbench's layers on numbers, and single samples if needed."""
    plain = not isinstance(data.train_x, Several) and data.train_x.dtype == torch.float32 and knows(module)
    alone = not shrinks or not any(isinstance(layer, _BatchNorm) for layer in module.modules())
    return plain and alone and not model.foreign
