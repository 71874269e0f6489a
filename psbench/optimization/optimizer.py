"""The optimizer that turns a commit's gradient into the next model, and its schedule."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import PrivateAttr, SerializeAsAny, field_validator, model_validator

from psbench.core import Part, parameter
from psbench.core.arithmetic import Shapes
from psbench.errors import ParameterError
from psbench.optimization.clip import Clip
from psbench.optimization.schedule import RateSchedule, as_schedule

#: what rounding may leave an epoch short of a milestone
_ROUNDING = 1e-9

if TYPE_CHECKING:
    import torch

    from psbench.optimization.update import OptimizerSteps


class Optimizer(Part):
    """An optimizer of torch on the server's flat vector, with a rate that changes by epoch.

    Parameters
    ----------
    lr : float, > 0
        The single-node rate; the strategy's `lr_scaling` says what becomes of it with n workers.
    schedule : RateSchedule, its name, or a function of the epoch; optional
        Multiplies the rate too: "cosine", "linear" or "one_cycle" with their epochs, or "plateau", which goes
        by evaluations.
    """

    domain = "optimizer"
    #: how many tensors as large as the parameters it keeps
    tensors: ClassVar[int] = 0
    #: whether its steps depend on norms of whole tensors, so that a process must hold all of the model
    per_tensor: ClassVar[bool] = False

    lr: float = parameter(0.1, "single-node learning rate", gt=0)
    weight_decay: float = parameter(0.0, "L2 penalty", ge=0)
    decay: Literal["matrices"] | None = parameter(
        None, "tensors with weight decay: all, or those with at least two dimensions"
    )
    milestones: tuple[float, ...] = parameter(
        (), "epochs at which the rate is multiplied by gamma", unit="epochs"
    )
    gamma: float = parameter(0.1, "factor of the rate at each milestone", gt=0)

    schedule: SerializeAsAny[RateSchedule] | None = parameter(
        None, "learning-rate schedule: a factor by epoch"
    )
    clip: Clip | None = parameter(None, "limit of each worker's gradient: its norm, or each value")
    _decays: Any = PrivateAttr(default=None)
    _shapes: Shapes | None = PrivateAttr(default=None)

    @property
    def is_grouped(self) -> bool:
        """Return True if some entries have weight decay and others none."""
        return self.decay == "matrices" and self.weight_decay > 0

    @property
    def moves_without_gradient(self) -> bool:
        """Return True if a step changes an entry or its state even if the gradient is 0."""
        return True

    def beside_the_rate(self, usual: Optimizer) -> str:
        """Return the first set field that a part using only the rate would ignore; empty if none.

        A field that is as in `usual`, the experiment's default, may not have been set by the user.
        """
        if self.name != SGD.name:
            return "name"
        read = {"lr", "milestones", "gamma", "schedule", "clip"}
        for name, field in type(self).model_fields.items():
            if name not in read and getattr(self, name) not in (field.default, getattr(usual, name)):
                return name
        return ""

    def of_entries(self, decays: torch.Tensor | None) -> Self:
        """Return this optimizer for certain entries of a model.

        Parameters
        ----------
        decays : bool tensor, (entries,), or None
            Which of them decay; None: all.
        """
        found = self.model_copy()
        found._decays = decays
        return found

    @property
    def entries(self) -> torch.Tensor:
        """The mask of decaying entries."""
        found: torch.Tensor = self._decays
        return found

    def of_tensors(self, shapes: Shapes) -> Self:
        """Return this optimizer for a model whose tensors have these sizes, in order."""
        found = self.model_copy()
        found._shapes = shapes
        return found

    def of_range(self, parameters: torch.Tensor, start: int, stop: int) -> Self:
        """Return this optimizer for consecutive entries of a vector: whole tensors if `per_tensor`."""
        found = self.of_entries(self.entries[start:stop]) if self.is_grouped else self
        if not self.per_tensor:
            return found
        shapes = self.shapes_of(parameters)
        ends = list(accumulate(map(prod, shapes)))
        return found.of_tensors(
            [shape for shape, end in zip(shapes, ends, strict=True) if start < end <= stop]
        )

    def shapes_of(self, parameters: torch.Tensor) -> Shapes:
        """Return the sizes of a vector's tensors.

        Raises
        ------
        ParameterError
            If they are not known of a vector of this length.
        """
        if self._shapes is None or sum(map(prod, self._shapes)) != len(parameters):
            raise ParameterError(f"optimizer {self.name!r}: needs to know the tensors of a vector")
        return self._shapes

    def decays_of(self, parameters: torch.Tensor) -> torch.Tensor | None:
        """Return a mask of the entries with weight decay; None if all have it.

        Raises
        ------
        ParameterError
            If that is not known of a vector of this length: some tensors decay and others do not.
        """
        if not self.is_grouped:
            return None
        if self._decays is None or len(self._decays) != len(parameters):
            raise ParameterError(
                f"optimizer {self.name!r}: decay: 'matrices' needs to know the tensors of a vector"
            )
        found: torch.Tensor = self._decays
        return found

    @field_validator("schedule", mode="before")
    @classmethod
    def _schedule(cls, value: Any) -> RateSchedule | None:
        return as_schedule(value)

    def rate(self, epoch: float) -> float:
        """Return the rate at that epoch."""
        stepped = self.lr  # mostly there are no milestones, and every update and release asks
        if self.milestones:
            stepped *= self.gamma ** sum(epoch + _ROUNDING >= milestone for milestone in self.milestones)
        return stepped if self.schedule is None else stepped * self.schedule.factor(epoch)

    @property
    def coefficient(self) -> float:
        """The field `momentum`, which a switch may reduce; 0 for an optimizer without one."""
        return float(getattr(self, "momentum", 0.0))

    def build(self, parameters: torch.Tensor) -> torch.optim.Optimizer:
        raise NotImplementedError(f"{type(self).__name__} must define build")

    def update(self, parameters: torch.Tensor) -> OptimizerSteps:
        """Return an object that takes this optimizer's steps on one flat tensor, in place."""
        from psbench.optimization.update import TorchUpdate

        return TorchUpdate(parameters, self.build(parameters), self.decays_of(parameters))


class SGD(Optimizer):
    """Stochastic gradient descent with momentum.

    Examples
    --------
    >>> SGD(lr=0.1, milestones=(82, 133)).rate(100)
    0.010000000000000002
    """

    name = "sgd"
    source = "torch.optim.SGD"

    momentum: float = parameter(0.0, "momentum", ge=0, lt=1)
    nesterov: bool = parameter(False, "Nesterov's form of the momentum")

    @model_validator(mode="after")
    def _has_momentum(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ParameterError(
                f"optimizer {self.name!r}: nesterov needs a momentum above 0; set momentum, such as "
                "0.9, or remove nesterov"
            )
        return self

    @property
    def tensors(self) -> int:  # pyrefly: ignore[bad-override]
        """One with momentum."""
        return int(self.momentum > 0)

    @property
    def moves_without_gradient(self) -> bool:
        """With momentum, or weight decay."""
        return self.momentum > 0 or self.weight_decay > 0

    def build(self, parameters: torch.Tensor) -> torch.optim.Optimizer:
        """Return torch's SGD."""
        import torch

        return torch.optim.SGD(
            [parameters],
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )

    def update(self, parameters: torch.Tensor) -> OptimizerSteps:
        """Return torch's steps, written out: for a small model they take a tenth of the time."""
        from psbench.optimization.update import SGDUpdate

        if type(self).build is not SGD.build:
            return super().update(parameters)  # a subclass brings an optimizer of its own
        decay = self.weight_decay, self.decays_of(parameters)
        return SGDUpdate(parameters, self.momentum, decay, self.nesterov)


class Adam(Optimizer):
    """Adam; scaling a gradient leaves it unchanged, so the number of workers acts through the rate alone."""

    name = "adam"
    source = "torch.optim.Adam"
    tensors = 2

    lr: float = parameter(0.001, "single-node learning rate", gt=0)
    beta1: float = parameter(0.9, "decay of the mean", ge=0, lt=1)
    beta2: float = parameter(0.999, "decay of the squared mean", ge=0, lt=1)

    def build(self, parameters: torch.Tensor) -> torch.optim.Optimizer:
        """Return torch's Adam."""
        import torch

        return torch.optim.Adam(
            [parameters], lr=self.lr, betas=(self.beta1, self.beta2), weight_decay=self.weight_decay
        )

    def update(self, parameters: torch.Tensor) -> OptimizerSteps:
        """Return torch's steps, written out."""
        from psbench.optimization.update import AdamUpdate

        if type(self).build is not Adam.build:
            return super().update(parameters)  # a subclass brings an optimizer of its own
        decay = self.weight_decay, self.decays_of(parameters)
        return AdamUpdate(parameters, self.beta1, self.beta2, decay)
