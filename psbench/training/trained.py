"""The trained network of a run as a torch module, and as a file for other tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from psbench.data.several import Several, zeros
from psbench.errors import SpecError
from psbench.experiment import Experiment
from psbench.models import Model
from psbench.seeds import Streams
from psbench.system.files import atomic_write
from psbench.training.dry_run import SAMPLES, check_parameters
from psbench.training.model import FlatModel


def trained_module(
    experiment: Experiment, meta: Mapping[str, Any], parameters: Tensor, buffers: Tensor
) -> nn.Module:
    """Return the experiment's network with these parameters and buffers, in eval mode.

    What does not travel, frozen parameters and constant buffers, is as it was at the start.

    Raises
    ------
    SpecError
        If the network is an object that was not passed, or has other parameters than the run's.
    """
    module = _built(experiment, meta)
    check_parameters(f"model {experiment.model.name!r}", module)
    flat = FlatModel(module, meta.get("changed_buffers", ()))
    _check_layout(flat.layout, meta["layout"])
    if flat.num_buffers != len(buffers):
        raise SpecError(
            f"model: this network has {flat.num_buffers} numbers in its buffers, but the run's had "
            f"{len(buffers)}"
        )
    flat.load(parameters, buffers)
    return with_own_storage(flat.module).eval()


def _built(experiment: Experiment, meta: Mapping[str, Any]) -> nn.Module:
    model: Model = experiment.model
    streams = Streams(experiment.seed)
    if "input" not in meta and "inputs" not in meta:  # a run of before this was written down
        data = experiment.data.load(streams)
        return model.build(data.input_shape, data.num_outputs, streams, data.train_x[:SAMPLES])
    example = zeros(meta.get("inputs") or [meta["input"]], meta.get("input_names", ()), SAMPLES)
    shape = () if isinstance(example, Several) else tuple(example.shape[1:])
    return model.build(shape, meta["num_outputs"], streams, example)


def _check_layout(found: Sequence[tuple[str, int]], wanted: Sequence[Sequence[Any]]) -> None:
    mine, theirs = dict(found), {str(name): int(size) for name, size in wanted}
    for name in [*theirs, *mine]:
        if mine.get(name) != theirs.get(name):
            have, had = (f"{e[name]} entries" if name in e else "none" for e in (mine, theirs))
            raise SpecError(
                f"model: differs from the network of the run: {name!r} has {have}, but the run's had {had}"
            )


@torch.no_grad()
def with_own_storage(module: nn.Module) -> nn.Module:
    """Return the module with tensors that are no longer views of one vector."""
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = tensor.data.clone()
    return module


def write_safetensors(module: nn.Module, path: Path, about: Mapping[str, str]) -> None:
    """Write a module's state_dict as a safetensors file; tied weights appear under each of their names.

    Raises
    ------
    SpecError
        If the file cannot be written, or the state_dict holds something other than tensors.
    """
    from safetensors.torch import save

    if path.suffix != ".safetensors":
        raise SpecError(f"{path}: the name of a model file must end in .safetensors")
    state = module.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise SpecError(
                f"{path}: {name!r} of the state_dict is {type(value).__name__}; such files hold tensors"
            )
    # a file has no two names for one tensor, and plain load_state_dict wants every name
    tensors = {name: value.detach().clone().contiguous() for name, value in state.items()}
    with atomic_write(path) as file:
        file.write(save(tensors, metadata={"format": "pt", **about}))
