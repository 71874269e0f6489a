"""Networks that are defined elsewhere, by name: of the user's own package, and of torchvision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from psbench.core.imports import ImportedCall
from psbench.core.specification import parameter
from psbench.errors import ParameterError, UnknownName
from psbench.models.base import Model
from psbench.seeds import Streams

if TYPE_CHECKING:
    from torch import Tensor, nn

    from psbench.data.several import Several

#: torchvision warns where their `init_weights` is left out
_SAY_INIT_WEIGHTS = ("googlenet", "inception_v3")


class ImportedModel(ImportedCall, Model):
    """A network by where its class is, or a function that builds it; see `ImportedCall`.

    Notes
    -----
    Its constructors draw the initial values, from the run's stream "model".
    """

    name: ClassVar[str] = "import"
    foreign: ClassVar[bool] = True

    def build(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        streams: Streams,
        example: Tensor | Several | None = None,
    ) -> nn.Module:
        """Return what the target builds; see `Model.build`."""
        from psbench.models.construction import built

        make = self.imported()
        return built(f"model {self.target!r}", lambda: make(**self.arguments), streams, example)

    def size(self, input_shape: tuple[int, ...], num_outputs: int) -> int:
        """Return 0: it has yet to be built."""
        return 0

    def check_task(self, task: str) -> None:
        """Do nothing: whether its answers fit is seen when it is tried."""


class Torchvision(Model):
    """A network of torchvision, by the name that torchvision gives it; weights are never downloaded.

    Parameters
    ----------
    architecture : str
        A classifier, as `resnet18` or `mobilenet_v3_small`.
    arguments : mapping
        Keyword arguments of its constructor, beside `num_classes`, which comes from the data.

    Notes
    -----
    Its constructors draw the initial values, from the run's stream "model". `googlenet` and `inception_v3`
    answer with three outputs in training; give them `arguments: {aux_logits: false}`, or a loss of your own.
    """

    name: ClassVar[str] = "torchvision"
    source: ClassVar[str] = "torchvision.models"
    foreign: ClassVar[bool] = True

    architecture: str = parameter("resnet18", "torchvision's name of the network")
    arguments: dict[str, Any] = Field(
        default_factory=dict,
        description="keyword arguments of the call",
        json_schema_extra={"unit": "", "source": ""},
    )

    @model_validator(mode="after")
    def _downloads_nothing(self) -> Self:
        for name in ("weights", "weights_backbone", "pretrained"):
            if self.arguments.get(name):
                raise ParameterError(
                    f"model {self.name!r}: arguments.{name}: nothing is downloaded; load the weights into a "
                    "module, and pass that"
                )
        return self

    def build(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        streams: Streams,
        example: Tensor | Several | None = None,
    ) -> nn.Module:
        """Return torchvision's network with as many outputs as the data has classes; see `Model.build`."""
        from psbench.models.construction import built

        make = self._constructor()
        arguments = {"num_classes": num_outputs} | self.arguments
        if self.architecture in _SAY_INIT_WEIGHTS:
            arguments = {"init_weights": True} | arguments
        what = f"model {self.architecture!r} of torchvision"
        return built(what, lambda: make(**arguments), streams, example)

    def size(self, input_shape: tuple[int, ...], num_outputs: int) -> int:
        """Return 0: it has yet to be built."""
        return 0

    def _constructor(self) -> Any:
        import torchvision

        known = torchvision.models.list_models(module=torchvision.models)
        if self.architecture not in known:
            raise UnknownName("network of torchvision", self.architecture, known)
        return torchvision.models.get_model_builder(self.architecture)
