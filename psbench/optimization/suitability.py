"""Compatibility of optimizers and schedules with strategies."""

from __future__ import annotations

from collections.abc import Sequence

from psbench.core import AnyStrategy, Strategy, SwitchingStrategy
from psbench.core.collective import Shares
from psbench.core.peer_to_peer import PeerToPeer
from psbench.errors import ParameterError
from psbench.optimization.optimizer import Optimizer
from psbench.optimization.schedule import Plateau

_PLATEAU = "optimizer.schedule: 'plateau'"


def check_optimizers(
    strategy: AnyStrategy, optimizer: Optimizer, inner: Optimizer | None, usual: Optimizer
) -> None:
    """Reject an optimizer that is never used, or that cannot step on a part of the entries.

    Parameters
    ----------
    strategy : Strategy or SwitchingStrategy
    optimizer, inner : Optimizer
        That of the servers, and that of workers which step by themselves, if it is another.
    usual : Optimizer
        What an experiment has that names none: what differs from it was set.
    """
    compositions = strategy.compositions
    if inner is not None and not any(each.has_local_steps for each in compositions):
        raise ParameterError(
            f"inner_optimizer: workers of strategy {strategy.name!r} take no local steps, so only "
            "`optimizer` is used; remove it, or use a strategy with local steps, such as 'diloco'"
        )
    own = next((each.aggregation for each in compositions if each.aggregation.usual_lr), None)
    if own is not None and (unread := optimizer.beside_the_rate(usual)):
        raise ParameterError(
            f"optimizer.{unread}: aggregation {own.name!r} uses only the optimizer's rate, not this field; "
            f"remove it, or set {own.name!r}'s own fields"
        )
    shared = [each for each in compositions if each.placement.num_servers > 1]
    if optimizer.per_tensor and shared:
        raise ParameterError(
            f"optimizer {optimizer.name!r}: scales the step of whole tensors, but each of the "
            f"{shared[0].placement.num_servers} servers of {shared[0].name!r} holds parts of tensors; use "
            "servers: 1, or 'all_reduce'"
        )
    if optimizer.is_grouped and any(each.placement.moves for each in compositions):
        raise ParameterError(
            f"optimizer {optimizer.name!r}: decay: 'matrices' cannot be sliced over servers whose "
            "entries move; use reassignment 'never', or remove decay"
        )


def blind_to_absence(strategy: AnyStrategy, optimizer: Optimizer) -> str:
    """Return the component that treats a missing gradient as zeros, and so moves the parameter.

    Empty if nothing does: see `psbench.optimization.absent`.
    """
    for each in strategy.compositions:
        aggregation, codecs = each.aggregation, (each.communication.codec, each.communication.codec_down)
        if aggregation.payload != "gradient":
            continue  # workers step by themselves, each along its own gradients
        if aggregation.usual_lr or (aggregation.exchanges and optimizer.moves_without_gradient):
            return f"aggregation {aggregation.name!r}"
        lossy = [codec.name for codec in codecs if codec.name != "none"]
        if lossy and optimizer.moves_without_gradient:
            return f"codec {lossy[0]!r}"
    return ""


def check_shares(strategy: AnyStrategy, optimizer: Optimizer, comes_or_goes: Sequence[str]) -> None:
    """Reject settings that workers with a share of the model do not support, or lack.

    `comes_or_goes` names the settings by which a worker comes, goes or is dropped.
    """
    placement = next(
        (each.placement.name for each in strategy.compositions if isinstance(each.placement, Shares)), None
    )
    if placement is None:
        return
    use = f"under placement {placement!r}; use 'all_reduce'"
    if optimizer.per_tensor:
        raise ParameterError(
            f"optimizer {optimizer.name!r}: scales the step of whole tensors, but each worker holds parts "
            f"of tensors {use}"
        )
    if comes_or_goes:
        raise ParameterError(
            f"{comes_or_goes[0]}: no worker may join, leave or be dropped while each has a share of the "
            f"model, as {use}"
        )


def check_inner_schedule(inner: Optimizer | None) -> None:
    """Reject a plateau schedule for workers with local steps."""
    if inner is not None and isinstance(inner.schedule, Plateau):
        raise ParameterError(
            f"inner_{_PLATEAU}: workers with local steps receive no evaluations; give a schedule by "
            "epoch, such as 'cosine'"
        )


def check_plateau(
    strategy: AnyStrategy, evaluate_every: float, epochs: float | None, timing_only: bool
) -> None:
    """Reject a plateau schedule without evaluations, or one whose events do not reach all workers.

    Both times are in epochs.
    """
    for each in strategy.compositions:
        if each.own_steps or isinstance(each.placement, PeerToPeer):
            raise ParameterError(
                f"{_PLATEAU}: workers of strategy {each.name!r} take local steps at this rate, and "
                "receive no evaluations; give a schedule by epoch, such as 'cosine'"
            )
    if timing_only:
        raise ParameterError(f"timing_only: nothing is evaluated, but {_PLATEAU} needs evaluations")
    if epochs is not None and evaluate_every > epochs:
        raise ParameterError(
            f"{_PLATEAU} needs evaluations, but there is none in {epochs:g} epochs with evaluate_every = "
            f"{evaluate_every:g}; evaluate more often"
        )


def check_reduced_momentum(strategy: AnyStrategy, optimizer: Optimizer) -> None:
    """Reject a switch that reduces the momentum of an optimizer without one."""
    switches = strategy.switches if isinstance(strategy, SwitchingStrategy) else ()
    reduced = [switch.momentum for switch in switches if switch.reduces_momentum]
    if reduced and not optimizer.coefficient:
        what = "whose momentum is 0" if "momentum" in type(optimizer).model_fields else "which has none"
        raise ParameterError(
            f"strategy {strategy.name!r}: momentum {reduced[0]!r} uses a part of the optimizer's "
            f"momentum, but the optimizer is {optimizer.name!r}, {what}; use 'zero' or 'keep'"
        )


def doubt_of_schedule(optimizer: Optimizer | None, epochs: float | None) -> str:
    """Return a warning if a run of that many epochs ends in the middle of its schedule, or ""."""
    schedule = None if optimizer is None else optimizer.schedule
    planned = getattr(schedule, "epochs", None)
    if schedule is None or planned is None or epochs is None or epochs >= planned:
        return ""
    return (
        f"{schedule.name!r} ends at epoch {planned:g}, and the run at {epochs:g}, where the rate is "
        f"{schedule.factor(epochs):.2g} of its value; give it epochs: {epochs:g}"
    )


def doubt_of_optimizer(strategy: Strategy, optimizer: str, lr: float) -> str:
    """Return a warning if optimizer or rate are probably unintended; empty otherwise."""
    if doubt := strategy.aggregation.doubt_of_rates(lr):
        return doubt
    if not strategy.communication.pushes_sums or optimizer == "sgd":
        return ""
    return (
        f"optimizer {optimizer!r} under {strategy.communication.name}: local steps of workers are "
        f"plain SGD at its rate, and only the servers' updates are {optimizer!r}; use 'sgd'"
    )
