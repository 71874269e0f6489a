"""Codecs whose ratio or number of levels changes in the run, by a rule."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import numpy as np
from pydantic import PrivateAttr, SerializeAsAny, field_validator, model_validator

from psbench.arrays import Floats
from psbench.core import Action, ClusterView, Note, Orders, Part, Push, make_part, parameter
from psbench.core.parts import CodecPart, codec_field
from psbench.errors import CodecError, ParameterError
from psbench.strategies.codecs.base import Codec, Packed

#: the parameter of each codec that sets its bytes, and values of it from few bytes to many
_SIZES: dict[str, tuple[str, tuple[float, ...]]] = {
    "qsgd": ("levels", (1, 3, 7, 15, 127)),
    "top_k": ("ratio", (0.001, 0.01, 0.05, 0.25)),
    "random_k": ("ratio", (0.001, 0.01, 0.05, 0.25)),
}
#: entries of a vector on which the bytes of two settings must differ
_LARGE = 1 << 20


class Adaptive(Codec):
    """Base of rules that choose one of several settings of a codec for each push.

    A worker is ordered its setting with its release, and its residual goes on from one setting to the next.
    The receiver finds the setting by the length of the message; settings with one length count as the finest
    of them.

    Parameters
    ----------
    codec : CodecPart
        One with a ratio or levels.
    values : tuple of float
        Of that ratio or these levels, from few bytes to many; empty: a usual list. Workers begin with the
        last.

    Raises
    ------
    ParameterError
        If the codec has neither a ratio nor levels, or the values are not from few bytes to many.
    """

    codec: SerializeAsAny[CodecPart] = codec_field("codec whose ratio or levels the rule sets", "qsgd")
    values: tuple[float, ...] = parameter(
        (), "ratios or levels to choose from, from few bytes to many; empty: a usual list"
    )

    _chosen: dict[str, int] = PrivateAttr(default_factory=dict)  # settings of workers, by their number

    @field_validator("codec", mode="before")
    @classmethod
    def _codec(cls, value: Any) -> Part:
        return make_part("codec", value)

    @model_validator(mode="after")
    def _can_be_set(self) -> Self:
        if self.codec.name not in _SIZES:
            *others, last = _SIZES
            raise ParameterError(
                f"codec {self.name!r}: codec {self.codec.name!r} has neither a ratio nor levels to set; "
                f"use {', '.join(map(repr, others))} or {last!r}"
            )
        sizes = [each.num_bytes(_LARGE) for each in self.settings]
        if sorted(set(sizes)) != sizes:
            raise ParameterError(
                f"codec {self.name!r}: values: each must take more bytes than the one before, "
                f"got {list(self.values)}, which take {sizes} bytes for {_LARGE:,} entries"
            )
        return self

    @cached_property
    def settings(self) -> tuple[Codec, ...]:
        """The codecs to choose from, from few bytes to many."""
        name, usual = _SIZES[self.codec.name]
        kind = type(self.codec)
        assert issubclass(kind, Codec)
        own = {field: getattr(self.codec, field) for field in kind.model_fields}
        whole = kind.model_fields[name].annotation is int
        return tuple(
            kind(**own | {name: int(value) if whole and value == int(value) else value})
            for value in self.values or usual
        )

    @property
    def unbiased(self) -> bool:  # pyrefly: ignore[bad-override]
        """Return True if the codec is unbiased."""
        return self.settings[-1].unbiased

    @property
    def has_memory(self) -> bool:  # pyrefly: ignore[bad-override]
        """Return True if the codec has error feedback."""
        return self.codec.has_memory

    @property
    def memory(self) -> float:  # pyrefly: ignore[bad-override]
        """The share of a residual that the next message adds."""
        return self.codec.memory

    # ---------------------------------------------------------------- bits

    def at(self, setting: int, size: int) -> Codec:
        """Return the codec of a setting for a vector of that size."""
        wanted = self.settings[setting].num_bytes(size)
        return next(each for each in reversed(self.settings) if each.num_bytes(size) == wanted)

    def num_bits(self, size: int) -> int:
        return self.settings[-1].num_bits(size)

    def takes(self, num_bytes: int, size: int) -> bool:
        """Return whether some setting encodes a vector of that size in so many bytes."""
        return any(each.num_bytes(size) == num_bytes for each in self.settings)

    def _encode(self, vector: Floats, rng: np.random.Generator) -> Packed:
        return self.settings[-1].encode(vector, rng)

    def decode(self, packed: Packed, size: int) -> Floats:
        """Decode packed bits; their length identifies the setting."""
        for each in reversed(self.settings):
            if each.num_bytes(size) == len(packed):
                return each.decode(packed, size)
        lengths = ", ".join(f"{each.num_bytes(size):,}" for each in self.settings)
        raise CodecError(
            f"codec {self.name!r}: {size:,} entries take {lengths} bytes, depending on the setting, got "
            f"{len(packed):,}"
        )

    # ---------------------------------------------------------------- the choice

    def setting_of(self, worker: int) -> int:
        """Return the number of the worker's setting."""
        return self._chosen.get(str(worker), len(self.settings) - 1)

    def choose(self, worker: int, setting: int) -> list[Action]:
        """Set a worker's next pushes to a setting; return a note if that is another one."""
        if setting == self.setting_of(worker):
            return []
        self._chosen[str(worker)] = setting
        return [Note(f"worker {worker} sends with {self.called(setting)} from its next release on")]

    def called(self, setting: int) -> str:
        """Return a setting in words, as "ratio 0.01"."""
        name = _SIZES[self.codec.name][0]
        return f"{name} {getattr(self.settings[setting], name):g}"

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Order the setting of the worker's next push; without an order the last one stays."""
        setting = self.setting_of(worker)
        return {} if setting == len(self.settings) - 1 else {"codec": setting}


class SendShare(Adaptive):
    """Choose the largest message that fits into a share of the worker's time, judged by its last push.

    Each push tells how long the worker computed and how long the push was under way. The next one has the
    finest setting whose time, in proportion to its bytes, is at most that share of both together.

    Notes
    -----
    Reduces to: the codec with its last value, if the share is 1, or if that is the only value.
    Our reading: the thesis lists the compression and not such a rule. The time under way has latency and
    waiting too, which fewer bytes do not shorten; the prediction counts all of it, and is made again with
    each push.
    """

    name = "send_share"
    source = "our reading of thesis 3.2.3"
    reads = ("compute_s", "send_s")

    share: float = parameter(0.3, "largest share of its time that a worker may spend sending", ge=0, le=1)

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Choose the worker's next setting by the times of this push."""
        assert push.stats is not None  # the backend sends what `reads` declares
        compute_s, send_s = push.stats["compute_s"], push.stats["send_s"]
        entries = sum(size for _, size in view.layout)
        if not entries or send_s <= 0:
            return []
        sizes = [each.num_bytes(entries) for each in self.settings]
        now = sizes[self.setting_of(push.worker)]
        times = [send_s * (size / now) for size in sizes]
        fits = [number for number, each in enumerate(times) if each <= self.share * (each + compute_s)]
        return self.choose(push.worker, max(fits, default=0))


class MQGrad(Adaptive):
    """Learn during the run which number of bits lowers the loss most per unit of time.

    Training is divided into windows of so many pushes. A window has one setting, for all workers, and its
    reward is the fall of the mean loss since the window before, a second. Each setting is tried once, from
    the finest; then the one of the greatest mean reward is used, and every `explore`-th window tries the
    next one in turn again.

    Notes
    -----
    Reduces to: the codec, with one value.
    Our reading, as only an account of the paper was read: it learns by reinforcement from the loss which
    number of bits to use. A network that learns a policy is replaced by the mean reward of each action, and
    chance by turns, so that a run can be repeated.
    """

    name = "mq_grad"
    source = "Cui et al. 2018 (MQGrad), as thesis 3.2.3 describes it"
    reads = ("loss",)

    window: int = parameter(20, "pushes by which a setting is judged", unit="pushes", source="ours", ge=1)
    explore: int = parameter(8, "windows after which another setting is tried", source="ours", ge=2)
    forget: float = parameter(0.5, "weight of the last reward in the mean", source="ours", gt=0, le=1)

    _rewards: dict[str, float] = PrivateAttr(default_factory=dict)  # mean of each setting that was tried
    _window: list[float] = PrivateAttr(default_factory=lambda: [0.0, 0.0, 0.0])  # pushes, loss, samples
    _before: list[float] = PrivateAttr(default_factory=list)  # mean loss and end of the window before
    _now: int = PrivateAttr(-1)  # setting of all workers; -1: the finest
    _turn: int = PrivateAttr(0)  # windows judged so far

    def setting_of(self, worker: int) -> int:
        """Return the setting of all workers."""
        return self._now % len(self.settings)

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Add the loss of a push; judge the setting at the end of its window."""
        assert push.stats is not None  # the backend sends what `reads` declares
        pushes, loss, samples = self._window
        self._window = [pushes + 1, loss + push.samples * push.stats["loss"], samples + push.samples]
        return self._judge(view) if self._window[0] >= self.window else []

    def _judge(self, view: ClusterView) -> list[Action]:
        mean, (self._window, before) = self._window[1] / self._window[2], ([0.0, 0.0, 0.0], self._before)
        self._before = [mean, view.now]
        if not before or view.now <= before[1]:
            return []  # the first window has none to compare with
        now = self.setting_of(0)
        reward, known = (before[0] - mean) / (view.now - before[1]), self._rewards.get(str(now))
        self._rewards[str(now)] = reward if known is None else known + self.forget * (reward - known)
        self._turn += 1
        chosen = self._next()
        if chosen == now:
            return []
        self._now = chosen
        return [Note(f"workers send with {self.called(chosen)} from their next releases on")]

    def _next(self) -> int:
        """Return the setting of the next window."""
        count = len(self.settings)
        if self._turn < count:
            return count - 1 - self._turn
        if self._turn % self.explore == 0:
            return self._turn // self.explore % count
        return max(range(count), key=lambda setting: self._rewards[str(setting)])
