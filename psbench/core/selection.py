"""The sixth question: which samples a worker's next mini-batch takes.

A `Selection` has two halves. The worker's half chooses from a `Memory`: plain arrays with an entry for each
sample of the worker's shard. The deciding half is asked by the engine: it reads what workers report with
their pushes and what evaluations find, and sends orders with releases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
from pydantic import Field, SerializeAsAny, field_validator

from psbench.arrays import Array, Doubles, Integers
from psbench.core.actions import Action, Orders
from psbench.core.collective import Jobs
from psbench.core.events import Evaluated, Push
from psbench.core.needs import Need
from psbench.core.part import Part, make_part, overrides
from psbench.core.view import ClusterView

#: numbers of a sample that a step can find, and what they are before the sample has been computed
FINDINGS: Mapping[str, float] = {"loss": np.nan, "predicted": -1, "norm": np.nan}
#: prefix of what a selection reports, among the statistics of a push
REPORTED = "selection."
#: names of what an evaluation finds of a neighbourhood, before its number
GROUP_LOSS, GROUP_ERROR = "neighbourhood_loss:", "neighbourhood_error:"
#: what a push reports of the samples that it was computed from, by neighbourhood: how many; and, where the
#: selection remembers what is needed, their summed loss and how many were predicted wrong
SUMS = ("samples", "loss", "errors")

Rng: TypeAlias = np.random.Generator
#: positions in the shard; with weights, in whose weighted mean the samples' losses enter the step
Choice: TypeAlias = Integers | tuple[Integers, Doubles]

NOTHING: Integers = np.zeros(0, dtype=np.int64)


class SampleGroups(NamedTuple):
    """A partition of the training and the validation set.

    Attributes
    ----------
    train, val : int64 arrays
        The number of each sample's neighbourhood.
    names : tuple of str
        What the neighbourhoods are called, in the order of their numbers.
    """

    train: Integers
    val: Integers
    names: tuple[str, ...]

    @property
    def counts(self) -> Integers:
        """Training samples of each neighbourhood."""
        return np.bincount(self.train, minlength=len(self.names))


class KnownOfData(NamedTuple):
    """A selection's information about the training set.

    Attributes
    ----------
    groups : SampleGroups or None
        For a selection by neighbourhood.
    num_classes : int
        0 for data without classes.
    classes_of : callable
        Returns the classes of samples by their numbers.
    column : callable
        Returns a column of the data by its name.
    """

    groups: SampleGroups | None
    num_classes: int
    classes_of: Callable[[Integers], Integers]
    column: Callable[[str], Array]


class Passes(Protocol):
    """Positions that are reshuffled on every pass; `psbench.training.batches.Batches` has it."""

    shard: Integers

    def take(self, size: int) -> Integers:
        """Return the next positions."""

    def restrict(self, samples: Integers) -> None:
        """Begin a pass over these positions alone."""


class Memory:
    """A worker's memory of its shard; every array has an entry for each sample.

    Attributes
    ----------
    samples : int64 array
        Numbers of the samples in the training set.
    neighbourhood : int64 array
        Numbers of their neighbourhoods; all 0 for a selection without neighbourhoods.
    counts : int64 array
        Samples of each neighbourhood in the whole training set.
    loss, norm : float64 arrays
        The last known loss, and the norm of its gradient with respect to the model's outputs; NaN before the
        first. Kept if the selection `remembers` them.
    predicted : int64 array
        The class that was predicted last; -1 before the first. Kept if the selection `remembers` it.
    num_classes : int
        Of the data; 0 without classes.
    taken_at : int64 array
        The step at which the sample was chosen last; -1 before the first.
    step : int
        Mini-batches chosen so far.
    taken : int
        Samples chosen so far.
    state : dict of str to array or number
        What the selection wants to keep from one call to the next; checkpoints hold it.
    """

    def __init__(self, samples: Integers, known: KnownOfData, passes: Passes) -> None:
        self.samples, self._known, self._passes = samples, known, passes
        groups = known.groups
        self.neighbourhood = np.zeros(len(samples), np.int64) if groups is None else groups.train[samples]
        self.counts = np.array([len(samples)]) if groups is None else groups.counts
        self.num_classes = known.num_classes
        size = len(samples)
        self.loss, self.norm = np.full(size, np.nan), np.full(size, np.nan)
        self.predicted, self.taken_at = np.full(size, -1), np.full(size, -1)
        self.step = self.taken = 0
        self.state: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def right(self) -> Integers:
        """The class of each sample; -1 for data without classes."""
        return self._known.classes_of(self.samples) if self.num_classes else np.full(len(self), -1)

    @cached_property
    def members(self) -> tuple[Integers, ...]:
        """The positions of each neighbourhood's samples, in the order of the neighbourhoods' numbers."""
        return tuple(np.flatnonzero(self.neighbourhood == h) for h in range(len(self.counts)))

    def column(self, name: str) -> Array:
        """Return a column of the data for the samples of the shard.

        Raises
        ------
        UnknownName
        """
        return self._known.column(name)[self.samples]

    @property
    def passes(self) -> float:
        """Number of passes: samples drawn by the worker divided by the size of its shard."""
        return self.taken / len(self.samples)

    def reshuffled(self, size: int, among: Integers | None = None) -> Integers:
        """Return the next `size` positions, in a new random order on every pass.

        `among` has the positions to go through, ascending; all of them by default. With others than before a
        new pass begins.
        """
        passes = self._passes
        if among is not None and not np.array_equal(among, passes.shard):
            passes.restrict(among)
        return passes.take(size)

    def uniform(self, size: int, rng: Rng, among: Integers | None = None) -> Integers:
        """Return `size` positions drawn uniformly, each independently of the others."""
        drawn = rng.integers(len(self) if among is None else len(among), size=size)
        return drawn if among is None else among[drawn]


class Selection(Part):
    """Which samples of its shard a worker's next mini-batch takes; by default all, reshuffled on every pass.

    `remembers` names the numbers of each sample that a step finds and the memory keeps: "loss", "predicted",
    "norm". What a worker computes only in order to choose (`look`) takes time in both kinds of run.
    """

    domain = "selection"
    #: the numbers of samples that it reads from the memory; no others are computed
    remembers: ClassVar[tuple[str, ...]] = ()
    needs = (
        Need(
            "placement",
            lambda p: not isinstance(p, Jobs),
            "{part} uses a worker's memory of its samples, but workers under {other} keep no state",
            "use placement 'parameter_server' or 'all_reduce'",
            lambda s: s.chooses,
        ),
        Need(
            "stragglers",
            lambda s: not s.sizes_chunks,
            "{part} chooses from a worker's shard, but {other} sends workers chunks of data",
            "use stragglers 'fixed'",
            lambda s: s.chooses,
        ),
    )

    @property
    def chooses(self) -> bool:
        """Return True if a rule chooses the samples; else the shard is reshuffled on every pass."""
        return overrides(self, "choose")

    @property
    def reads_evaluations(self) -> bool:
        """Return True if the server's half reads evaluations, which then include values by neighbourhood."""
        return overrides(self, "on_evaluated")

    # ---------------------------------------------------------------- the worker's half

    def look(self, size: int, rng: Rng, memory: Memory, orders: Orders) -> Integers:
        """Return positions of samples to compute before choosing; by default none.

        The worker takes what the selection `remembers` of them from its present model, which costs the time
        of a forward pass.
        """
        return NOTHING

    def choose(self, size: int, rng: Rng, memory: Memory, orders: Orders) -> Choice:
        """Return the positions of the next mini-batch in the shard, and perhaps their weights.

        Parameters
        ----------
        size : int
            How many samples it takes.
        rng : numpy.random.Generator
            The only source of chance; every mini-batch of every worker has a stream of its own.
        memory : Memory
            Of the worker; `memory.state` may be changed.
        orders : dict
            What came with the worker's last release, `on_release`'s orders among them.
        """
        return memory.reshuffled(size)

    def learn(self, positions: Integers, memory: Memory) -> None:
        """Update the memory after a mini-batch, whose per-sample values it already contains."""

    def report(self, memory: Memory) -> dict[str, float]:
        """Return numbers that go with a push to the deciding half; by default none.

        A selection with neighbourhoods reports besides what the push was computed from
        (`reported_of_groups`).
        """
        return {}

    # ---------------------------------------------------------------- the deciding half

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """React to a push before it is committed; `reported(push)` is the report of its worker's half."""
        return []

    def on_evaluated(self, event: Evaluated, view: ClusterView) -> list[Action]:
        """React to an evaluation; its values include those of each neighbourhood (`of_groups`)."""
        return []

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Return orders that go with a release."""
        return {}


class GroupedData(Protocol):
    """Data that neighbourhoods are made from; implemented by `psbench.data.Dataset`."""

    @property
    def name(self) -> str:
        """Name of the data in errors."""

    @property
    def train_x(self) -> Any:
        """Samples, a tensor, (N, ...)."""

    @property
    def val_x(self) -> Any:
        """Validation samples."""

    @property
    def train_y(self) -> Any:
        """Targets, a tensor."""

    @property
    def val_y(self) -> Any:
        """Targets of the validation samples."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty without any."""

    def column(self, name: str) -> Array:
        """Return a column of the training samples, (N,)."""

    def val_column(self, name: str) -> Array:
        """Return a column of the validation samples, (N,)."""


class Neighbourhoods(Part):
    """A division of the samples into neighbourhoods, the same for training and validation."""

    domain = "neighbourhoods"

    def groups(self, data: GroupedData, rng: Rng) -> SampleGroups:
        """Return the neighbourhood of each sample; chance comes from `rng` alone."""
        raise NotImplementedError(f"{type(self).__name__} must define groups")


def _classes() -> Any:
    return make_part("neighbourhoods", "classes")


class ByNeighbourhood(Selection):
    """A selection that uses the neighbourhood of each sample.

    Parameters
    ----------
    neighbourhoods : Neighbourhoods, its name, or a mapping
    """

    neighbourhoods: SerializeAsAny[Neighbourhoods] = Field(
        default_factory=_classes,
        description="division of the samples into neighbourhoods",
        json_schema_extra={"unit": "", "source": "thesis 5.2.1"},
    )

    @field_validator("neighbourhoods", mode="before")
    @classmethod
    def _neighbourhoods(cls, value: Any) -> Part:
        return make_part("neighbourhoods", value)


def reported(push: Push) -> dict[str, float]:
    """Return the report of a worker's selection that accompanies a push.

    >>> reported(Push(0, 0, 0, 0, 8, stats={"loss": 2.0, "selection.seen": 3.0}))
    {'seen': 3.0}
    """
    stats = (push.stats or {}).items()
    return {name.removeprefix(REPORTED): value for name, value in stats if name.startswith(REPORTED)}


def reported_of_groups(push: Push, name: str = "samples") -> dict[int, float]:
    """Return the numbers that a push reports for each neighbourhood with samples; `name`: one of `SUMS`.

    >>> push = Push(0, 0, 0, 0, 8, stats={"selection.samples:2": 8.0, "selection.loss:2": 4.0})
    >>> reported_of_groups(push), reported_of_groups(push, "loss")
    ({2: 8.0}, {2: 4.0})
    """
    prefix = f"{name}:"
    values = reported(push).items()
    return {int(key.removeprefix(prefix)): value for key, value in values if key.startswith(prefix)}


def of_groups(event: Evaluated, prefix: str = GROUP_LOSS) -> dict[int, float]:
    """Return the loss of each neighbourhood at an evaluation, or with `GROUP_ERROR` its share of errors.

    >>> of_groups(Evaluated(1, 9, {"val_loss": 1.0, "neighbourhood_loss:2": 0.5}))
    {2: 0.5}
    """
    values = event.values.items()
    return {int(name.removeprefix(prefix)): value for name, value in values if name.startswith(prefix)}


#: computes what a selection remembers, of the samples with these numbers
Evaluate: TypeAlias = Callable[[Integers], Mapping[str, Array]]
