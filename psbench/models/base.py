"""The contract of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from psbench.core.part import Part
from psbench.errors import ParameterError
from psbench.seeds import Streams

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from psbench.data.several import Several

#: what targets of a task are, and which models learn them
_TARGETS = {
    "classification": ("classes", "'linear' or 'mlp'"),
    "regression": ("numbers", "'linear' or 'mlp'"),
    "sequence": ("the next tokens", "'transformer'"),
}


def _any_size(numbers: int) -> None:
    """Accept any number of parameters and buffers."""


class Model(Part):
    """Names a network and builds it; a subclass defines `network`."""

    domain: ClassVar[str] = "model"
    #: smallest height and width of an image that passes through all layers; 0 takes samples of any shape
    min_side: ClassVar[int] = 0
    #: whether the network is not psbench's own, so that it has to be tried
    foreign: ClassVar[bool] = False
    #: what it can learn; empty where only a trial shows whether its answers fit
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression")

    def build(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        streams: Streams,
        example: Tensor | Several | None = None,
        check_size: Callable[[int], None] = _any_size,
    ) -> nn.Module:
        """Return the network on the CPU, initialised from the stream "model".

        Its outputs are a logit for each class, or the number to be predicted. Where all its layers are known
        to `psbench.models.initialise` their values are set there; else the constructors' values are kept.

        Same seed, same parameters; torch's global random state is neither read nor changed.

        Parameters
        ----------
        input_shape : tuple of int
            Shape of one sample: (features,), (channels, height, width), or (tokens,).
        num_outputs : int, >= 1
            Classes, numbers to be predicted, or words of the vocabulary.
        streams : Streams
        example : Tensor or None, (B, ...)
            A batch, from which lazy layers take their shapes.
        check_size : callable
            Called with how many numbers the parameters and buffers have, before there is memory for them
            where that is known, and raises what it has against them.

        Raises
        ------
        ParameterError
            If samples of that shape do not fit, naming model and shape.
        """
        import torch

        from psbench.models.construction import built, count
        from psbench.models.initialise import knows

        network = self._without_values(input_shape, num_outputs)
        check_size(count(network))
        sets_values = type(self).initialise is not Model.initialise
        if not sets_values and not knows(network):
            what = f"model {self.name!r}"
            return built(what, lambda: self.network(tuple(input_shape), num_outputs), streams, example)
        # not `to_empty`: of a meta tensor it loads half a second's worth of torch's compiler
        network._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"))
        self.initialise(network, torch.Generator().manual_seed(streams.integer("model")))
        return network

    def _without_values(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return the network on the meta device, without allocating or drawing values."""
        import torch

        self.check_input(input_shape)
        try:
            with torch.device("meta"):
                return self.network(tuple(input_shape), num_outputs)
        except (RuntimeError, TypeError) as error:
            if "overflow" not in str(error).lower():
                raise
            raise ParameterError(
                f"model {self.name!r}: a layer has more parameters than 64 bits can count; make it smaller"
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
        if input_shape[-1] in (1, 3, 4) and input_shape[0] >= self.min_side > input_shape[-1]:
            raise ParameterError(
                f"model {self.name!r} needs images (channels, height, width), but samples of shape "
                f"{tuple(input_shape)} look like (height, width, channels); give X.transpose(0, 3, 1, 2)"
            )
        if min(input_shape[1:]) < self.min_side:
            raise ParameterError(
                f"model {self.name!r} needs images of at least {self.min_side} x {self.min_side} pixels, "
                f"got {input_shape[1]} x {input_shape[2]}; use larger images, or 'cnn' or 'mlp'"
            )

    def check_task(self, task: str) -> None:
        """Raise ParameterError if the model cannot learn such targets.

        Tasks are "classification", "regression", "sequence", and "own" for a loss that is the user's, where
        anything may do.
        """
        if self.tasks and task not in (*self.tasks, "own"):
            targets, instead = _TARGETS.get(task, (f"a task {task!r}", "a model of your own"))
            raise ParameterError(
                f"model {self.name!r} is for {' or '.join(self.tasks)}, but this data is for {task}: its "
                f"targets are {targets}; use {instead}"
            )

    def network(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return the layers; they are initialised by `build`."""
        raise NotImplementedError(f"{type(self).__name__} must define network")


class ForeignModel(Model):
    """A network that is not psbench's own; its constructors draw the initial values.

    They draw from the run's stream "model". A subclass defines `maker`.
    """

    foreign: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = ()

    def maker(self, num_outputs: int) -> tuple[str, Callable[[], Any]]:
        """Return the network's name in messages, and the function that creates it."""
        raise NotImplementedError(f"{type(self).__name__} must define maker")

    def build(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        streams: Streams,
        example: Tensor | Several | None = None,
        check_size: Callable[[int], None] = _any_size,
    ) -> nn.Module:
        """Return the created network; see `Model.build`."""
        from psbench.models.construction import built, count

        check_size(self.known_size)
        network = built(*self.maker(num_outputs), streams, example)
        check_size(count(network))
        return network

    @property
    def known_size(self) -> int:
        """Number of parameters known before the network is built: 0."""
        return 0
