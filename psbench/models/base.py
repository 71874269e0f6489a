"""The contract of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from psbench.core.part import Part
from psbench.errors import ParameterError
from psbench.seeds import Streams

if TYPE_CHECKING:
    from torch import Generator, nn


class Model(Part):
    """Names a network and builds it; a subclass defines `network`."""

    domain: ClassVar[str] = "model"
    #: smallest height and width of an image that passes through all layers; 0 takes samples of any shape
    min_side: ClassVar[int] = 0
    #: what it can learn: classes, or numbers too
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression")

    def build(self, input_shape: tuple[int, ...], num_outputs: int, streams: Streams) -> nn.Module:
        """Return the network on the CPU, initialised from the stream "model".

        Its outputs are a logit for each class, or the number to be predicted.

        Same seed, same parameters; torch's global random state is neither read nor changed.

        Parameters
        ----------
        input_shape : tuple of int
            Shape of one sample: (features,) or (channels, height, width).
        num_outputs : int, >= 1
            Classes, or 1 where the target is a number.
        streams : Streams

        Raises
        ------
        ParameterError
            If samples of that shape do not fit, naming model and shape.
        """
        import torch

        network = self._without_values(input_shape, num_outputs)
        network.to_empty(device="cpu")
        self.initialise(network, torch.Generator().manual_seed(streams.integer("model")))
        return network

    def size(self, input_shape: tuple[int, ...], num_outputs: int) -> int:
        """Return how many numbers the network's parameters and buffers have; no memory is needed for it.

        Raises
        ------
        ParameterError
            As `build`.
        """
        network = self._without_values(input_shape, num_outputs)
        return sum(tensor.numel() for tensor in (*network.parameters(), *network.buffers()))

    def _without_values(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return the network on the meta device, where constructors allocate, initialise and draw nothing."""
        import torch

        self.check_input(input_shape)
        try:
            with torch.device("meta"):
                return self.network(tuple(input_shape), num_outputs)
        except (RuntimeError, TypeError) as error:
            if "overflow" not in str(error).lower():
                raise
            raise ParameterError(
                f"model {self.name!r}: a layer has more parameters than 64 bits count; make it smaller"
            ) from None

    def initialise(self, network: nn.Module, generator: Generator) -> None:
        """Set every parameter and buffer; see `psbench.models.initialise` for the values."""
        from psbench.models.initialise import initialise

        initialise(network, generator)

    def check_input(self, input_shape: tuple[int, ...]) -> None:
        """Raise ParameterError if the model cannot take samples of that shape."""
        if self.min_side == 0:
            return
        if len(input_shape) != 3:
            raise ParameterError(
                f"model {self.name!r} needs images (channels, height, width), got samples of shape "
                f"{tuple(input_shape)}; use 'mlp' or 'linear'"
            )
        if min(input_shape[1:]) < self.min_side:
            raise ParameterError(
                f"model {self.name!r} needs images of at least {self.min_side} x {self.min_side} pixels, "
                f"got {input_shape[1]} x {input_shape[2]}; use larger images, or 'cnn' or 'mlp'"
            )

    def check_task(self, task: str) -> None:
        """Raise ParameterError if the model cannot learn such targets: "classification" or "regression"."""
        if task not in self.tasks:
            raise ParameterError(
                f"model {self.name!r} is for {' or '.join(self.tasks)}, and this data is for {task}: its "
                "targets are numbers; use 'linear' or 'mlp'"
            )

    def network(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return the layers; they are initialised by `build`."""
        raise NotImplementedError(f"{type(self).__name__} must define network")
