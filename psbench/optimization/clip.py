"""Clipping of a worker's gradient, before it is pushed or a local step is taken with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from psbench.core import Specification, parameter
from psbench.errors import ParameterError, in_short

if TYPE_CHECKING:
    from torch import Tensor

#: what torch adds to a norm that it divides by
_EPS = 1e-6


class Clip(Specification):
    """Limits of a gradient: of its norm over the whole model, or of each entry; a number limits the norm.

    Source
    ------
    torch.nn.utils.clip_grad_norm_ and clip_grad_value_.
    """

    called_in_errors = "optimizer: clip"

    norm: float | None = parameter(None, "largest L2 norm of a worker's gradient", gt=0)
    value: float | None = parameter(None, "largest absolute value of an entry", gt=0)

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return {"norm": value}
        if not isinstance(value, (Clip, Mapping)):
            raise ParameterError(
                f"{cls.error_name()}: give a number, the largest norm, or {{norm: 1}} or {{value: 1}}, not "
                f"{in_short(value)}"
            )
        return value

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.norm is None) == (self.value is None):
            raise ParameterError(f"{self.error_name()}: give either norm or value")
        return self

    def apply(self, gradient: Tensor) -> None:
        """Clip a flat gradient in place."""
        if self.value is not None:
            gradient.clamp_(-self.value, self.value)
        elif self.norm is not None:
            gradient.mul_((self.norm / (gradient.norm() + _EPS)).clamp_(max=1.0))
