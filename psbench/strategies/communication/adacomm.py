"""AdaComm: local SGD whose communication period falls with the training loss."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import PrivateAttr

from psbench.core import Action, ClusterView, Measure, Push, parameter
from psbench.core.rounding import ceil, floor
from psbench.strategies.communication.local_sgd import Local

SOURCE = "Wang and Joshi 2019 (AdaComm), eq. 6"


class AdaComm(Local):
    """Start with many local steps between two averagings, and reduce their number as the loss falls.

    Time is divided into intervals. With the first averaging of each, the period becomes
    ceil(sqrt(lr_0/lr * F/F_0) * tau_0), where F is the training loss and F_0 that at the beginning. A
    period that this would not shorten is multiplied by `gamma` instead, so that it falls on plateaus too.

    Parameters
    ----------
    initial_steps : int, steps, >= 1
        tau_0; the paper tries several for an epoch or two each (`psbench.runs.sweeps.steps_search`).
    gamma : float, 0 < gamma <= 1
        1 keeps the period where the rule would not shorten it.
    lr_coupling : "defer" or "formula"
        defer: the rate stays as it is until the period is 1, which it then remains, and the schedule is read
        from there on. formula: the rate follows its schedule, and lr_0/lr counts: a rate divided by 10 makes
        the period sqrt(10) times as long.
    loss : "workers" or "measured"
        Where F comes from. workers: with every push a worker sends the loss of its first mini-batch since
        the last averaging, without a wait; F is the mean, by samples, of those sent since the period
        was last chosen, so it is of the interval that ends and not of the model at its end. measured: all
        workers wait while the averaged model is evaluated on one machine; F is of that model.

    Notes
    -----
    Reduces to: `local_sgd` with gamma = 1 and a constant loss; with BSP, if initial_steps = 1.
    Our reading (the points A1 to A7 are numbered here): eq. (5) prints lr^2 where eq. (6) follows from
    lr^3, so eq. (6) is used (A1). gamma tau is rounded up, at least 1, and less than tau unless gamma is 1
    (A2). The paper says that F "can be easily obtained in the training". The first mini-batch after an
    averaging is computed on the averaged model itself, so its loss estimates that model's without bias; the
    losses of later steps are those of models that have drifted apart (A3). F_0 is the mean of the first
    pushes, whose models are the start. F is later the mean over the models from which the rounds of an
    interval began: one round alone would be noise of a few mini-batches, and while the loss falls the mean
    lags behind it, by half an interval. F_0 is known with the first averaging, so the period changes with the
    second one at the earliest. The period changes with
    the first averaging at or after each multiple of the interval, and intervals without an averaging
    are skipped (A4). "First decay the period to 1 and then the learning rate as usual" is `defer` (A5), with
    which the period never grows (A6). A loss above the first shortens the period like a plateau (A7). Time,
    loss and rate count from the moment this strategy begins: after a switch, if it is switched to.

    Examples
    --------
    >>> AdaComm(initial_steps=20).period(before=20, loss_ratio=1 / 4)
    10
    """

    name = "adacomm"
    source = "Wang and Joshi 2019 (AdaComm), sec. 4, eq. 6"
    reads = ("first_loss",)
    measures = ("train_loss",)

    # 20: the first of the fixed periods that the paper compares for its larger network
    initial_steps: int = parameter(
        20, "initial number of steps between two averagings", unit="steps", source=SOURCE, ge=1
    )
    interval_s: float = parameter(
        60.0, "time between two choices of the period", unit="s", source="AdaComm 5: 60 seconds", gt=0
    )
    gamma: float = parameter(
        0.5, "factor that shortens the period if the loss does not", source=SOURCE, gt=0, le=1
    )
    slack: int = parameter(
        0, "largest reduction of the period that counts as no change", unit="steps", source="AdaComm 4", ge=0
    )
    lr_coupling: Literal["defer", "formula"] = parameter(
        "defer",
        "whether the rate schedule waits until the period is 1, or lengthens the period",
        source="AdaComm 4",
    )
    loss: Literal["workers", "measured"] = parameter(
        "workers",
        "source of the training loss: the workers' mini-batches, or a measurement while all workers wait",
        source="AdaComm 4",
    )
    loss_samples: int = parameter(2000, "samples for a measured loss", unit="samples", source="ours", ge=1)

    _steps: int = PrivateAttr(0)
    _loss: float = PrivateAttr(0.0)  # F_0
    _interval: int = PrivateAttr(0)  # the one that `_steps` was chosen for
    _began_s: float = PrivateAttr(0.0)
    _began_epoch: float = PrivateAttr(0.0)
    _rates: list[float] = PrivateAttr(default_factory=list)  # the first, and that of the last interval
    _sent: list[float] = PrivateAttr(default_factory=lambda: [0.0, 0.0])  # sum of loss * samples, samples

    def start(self, view: ClusterView) -> list[Action]:
        """Start with the longest period; a measured initial loss is measured before any step."""
        self._steps = self.initial_steps
        self._began_s, self._began_epoch = view.now, view.epoch
        self._rates = [view.rate(view.epoch)] * 2
        return [] if self._settled or self.loss == "workers" else self._measured_loss()

    def steps(self, view: ClusterView) -> int:
        """Return the period in force."""
        return self._steps

    def rate_epoch(self, view: ClusterView) -> float:
        """Keep the rate until the period is 1."""
        return self._began_epoch if self._keeps_rate else view.epoch

    def rate_epochs_per_step(self, view: ClusterView) -> float:
        """Keep the rate until the period is 1."""
        return 0.0 if self._keeps_rate else view.epochs_per_step

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Add a worker's loss to the losses of the interval."""
        if self.loss == "workers":
            assert push.stats is not None  # the backend sends what `reads` declares
            total, samples = self._sent
            self._sent = [total + push.samples * push.stats["first_loss"], samples + push.samples]
        return []

    def on_applied(self, view: ClusterView) -> list[Action]:
        """Choose the period, or measure the loss for that, with the first averaging of an interval."""
        first = self.loss == "workers" and not self._loss
        if self._settled or (self._interval_of(view) == self._interval and not first):
            return []
        if self.loss == "measured":
            return self._measured_loss()
        total, samples = self._sent
        if samples:  # else all pushes of this version came before the last choice, which has their losses
            self._sent = [0.0, 0.0]
            self._choose(total / samples, view)
        return []

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        """Choose the period by a loss that was measured."""
        self._choose(facts["train_loss"], view)
        return []

    def _choose(self, loss: float, view: ClusterView) -> None:
        """Choose the period; later losses are compared with the first."""
        if not self._loss:
            self._loss = loss
            return
        before = self._rates[1]
        now = view.rate(self.rate_epoch(view)) or before  # at a rate of 0 nothing moves: no ratio to go by
        self._steps = self.period(
            self._steps, loss / self._loss, rate_ratio=self._rates[0] / now, same_rate=now == before
        )
        self._rates = [self._rates[0], now]
        self._interval = self._interval_of(view)

    def period(self, before: int, loss_ratio: float, rate_ratio: float = 1.0, same_rate: bool = True) -> int:
        """Return the next period.

        Parameters
        ----------
        before : int, steps
        loss_ratio : float
            F/F_0; infinity and NaN count as a plateau.
        rate_ratio : float
            lr_0/lr.
        same_rate : bool
            Whether the rate is that of the last interval.
        """
        wanted = math.sqrt(rate_ratio * loss_ratio) * self.initial_steps
        shortens = wanted < math.inf and max(1, ceil(wanted)) + self.slack < before
        if shortens or (wanted < math.inf and not same_rate):
            return max(1, ceil(wanted))
        return before if self.gamma == 1 else max(1, min(ceil(self.gamma * before), before - 1))

    @property
    def _defers(self) -> bool:
        return self.lr_coupling == "defer"

    @property
    def _keeps_rate(self) -> bool:
        return self._defers and self._steps > 1

    @property
    def _settled(self) -> bool:
        return self._defers and self._steps == 1

    def _interval_of(self, view: ClusterView) -> int:
        return floor((view.now - self._began_s) / self.interval_s)

    def _measured_loss(self) -> list[Action]:
        return [Measure("communication", {"train_loss": None}, self.loss_samples)]
