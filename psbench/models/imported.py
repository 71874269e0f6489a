"""Networks that are defined elsewhere, by name: of the user's own package, and of torchvision."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from psbench.core.imports import ImportedCall
from psbench.core.specification import parameter
from psbench.errors import ParameterError, UnknownName
from psbench.models.base import ForeignModel

#: torchvision warns where their `init_weights` is left out
_SAY_INIT_WEIGHTS = ("googlenet", "inception_v3")


class ImportedModel(ImportedCall, ForeignModel):
    """A network from an importable class, or a function that builds one; see `ImportedCall`."""

    name: ClassVar[str] = "import"

    def maker(self, num_outputs: int) -> tuple[str, Callable[[], Any]]:
        """Return the target's name and a function that calls it."""
        return f"model {self.target!r}", partial(self.imported(), **self.arguments)


class Torchvision(ForeignModel):
    """A network of torchvision, by the name that torchvision gives it; weights are never downloaded.

    Notes
    -----
    `googlenet` and `inception_v3` answer with three outputs in training; give them
    `arguments: {aux_logits: false}`, or a loss of your own.
    """

    name: ClassVar[str] = "torchvision"
    source: ClassVar[str] = "torchvision.models"
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression")

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

    def maker(self, num_outputs: int) -> tuple[str, Callable[[], Any]]:
        """Return torchvision's constructor, with one output per class of the data."""
        import torchvision

        known = torchvision.models.list_models(module=torchvision.models)
        if self.architecture not in known:
            raise UnknownName("network of torchvision", self.architecture, known)
        said = {"init_weights": True} if self.architecture in _SAY_INIT_WEIGHTS else {}
        arguments = {"num_classes": num_outputs} | said | self.arguments
        make = torchvision.models.get_model_builder(self.architecture)
        return f"model {self.architecture!r} of torchvision", partial(make, **arguments)
