"""Arguments of a part's arithmetic: the pushes of a commit, the part's named state, and the step.

Vectors are tensors that a backend owns, one entry for each parameter that this process holds: all of them in
virtual time and in a member of a ring, a slice on a parameter server. A part calls their methods and imports
nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    Vector: TypeAlias = Tensor
else:
    Vector: TypeAlias = Any


#: sizes of the model's tensors, in the order of its vector
Shapes: TypeAlias = Sequence[Sequence[int]]


class ToAll(NamedTuple):
    """A message from each member of an exchange to all others, with its number of bytes."""

    num_bytes: int


@dataclass(slots=True)
class Pushed:
    """A push, as an aggregation's `update` is given it.

    Where a ring or a job adds up the pushes on their way, an update finds one: their weighted sum, with
    weight 1 and the samples of all; of differences, which are of many steps, with those of one step of all.

    Attributes
    ----------
    vector : float32 tensor, (entries,)
        What it carries, of the kind that the part declares as its `payload`; not to be changed.
    buffers : float32 tensor, (num_buffers,)
        The pusher's running statistics; empty on all servers but the first.
    worker, samples, steps : int
        The samples of a sum of differences need not be whole.
    base : float32 tensor, (entries,), or None
        The version that the worker started from, where the part declares `needs_base`.
    weight : float
        As in `Apply`.
    more : mapping of name to float32 tensor, (entries,)
        The vectors beside `vector` that the part declares as `carries`, or that its `exchange` has come to;
        not to be changed.
    """

    vector: Vector
    buffers: Vector = None  # pyrefly: ignore[bad-assignment]
    worker: int = 0
    samples: float = 1
    steps: int = 1
    base: Vector | None = None
    weight: float = 1.0
    more: Mapping[str, Vector] = field(default_factory=dict)

    def split(self, names: Sequence[str]) -> None:
        """Split a concatenated vector into the push's own vector and the named ones."""
        self.vector, *others = self.vector.view(1 + len(names), -1).unbind()
        self.more = dict(zip(names, others, strict=True))


@dataclass(slots=True)
class Step:
    """The current update: its learning rate, and operations that a part may call.

    Attributes
    ----------
    lr : float
        The optimizer's rate at this epoch, scaled as the strategy's `lr_scaling` says.
    epoch : float, epochs
    numbers : mapping of name to float
        Those of the `Apply`: what the part has decided beside the weights.
    answer : tensor or None
        What workers are sent in the place of the model, if the part's `reply` is "aggregate".
    tensors : sequence of (int, int)
        Number of a tensor of the model, and how many entries of the vectors are of it, one tensor after
        another; for parts that are `per_tensor`.
    """

    lr: float
    epoch: float
    numbers: Mapping[str, float]
    global_batch: int
    _optimizer_step: Callable[[Any, float], None]
    answer: Vector | None = field(default=None)
    tensors: Sequence[tuple[int, int]] = ()
    #: how the backend takes a step with a momentum; as `momentum_step`, bit by bit
    _momentum_step: Callable[..., None] | None = None

    def move(self, direction: Vector) -> None:
        """Take a step of the experiment's optimizer along a descent direction, such as a gradient."""
        self._optimizer_step(direction, self.lr)

    def momentum(
        self, x: Vector, mean: Vector, velocity: Vector, lr: float, beta: float, *, nesterov: bool
    ) -> None:
        (self._momentum_step or momentum_step)(x, mean, velocity, lr, beta, nesterov)

    def sum(self, pushes: Sequence[Pushed]) -> Vector:
        """Return sum_i weight_i vector_i, added up in that order; do not change it in place."""
        if len(pushes) == 1 and pushes[0].weight == 1.0:
            return pushes[0].vector
        return weighted_sum([push.vector for push in pushes], [push.weight for push in pushes])

    def stack(self, pushes: Sequence[Pushed]) -> Vector:
        """Return the vectors as the rows of a new matrix, (pushes, entries)."""
        first = pushes[0].vector
        rows = first.new_empty((len(pushes), len(first)))
        for row, push in zip(rows, pushes, strict=True):
            row.copy_(push.vector)
        return rows

    def reply(self, answer: Vector) -> None:
        """Send `answer` to the workers in place of the model; for parts whose `reply` is "aggregate"."""
        self.answer = answer


class WorkerStep(Protocol):
    """Arguments of a communication part's worker methods besides vectors: rate, orders, optimizer.

    Attributes
    ----------
    lr : float
        The rate of the last step.
    samples : int
        Of the last step.
    kind : "gradient", "parameters" or "difference"
        What the aggregation part says that a push carries.
    orders : mapping
        Those of the last release: what the deciding side tells this one.
    answer : mapping of name to float32 tensor, (entries,)
        The vectors that came with the last model, of the state of an aggregation part that `sends` them; not
        to be changed.
    """

    samples: int
    kind: str
    orders: Mapping[str, Any]
    answer: Mapping[str, Vector]

    @property
    def lr(self) -> float:
        """The rate of the last step."""

    def move(self, direction: Vector) -> None:
        """Take a step of the worker's own optimizer along a descent direction, such as a gradient."""

    def forget(self) -> None:
        """Reset the state of the worker's own optimizer."""


class Entries(Protocol):
    """Some entries of a vector, in order."""

    @property
    def size(self) -> int:
        """Number of entries."""

    def of(self, vector: Vector) -> Vector:
        """Return these entries of a vector: a view for a single range, else a copy."""

    def put(self, vector: Vector, part: Vector) -> None:
        """Write them into a vector."""


def end_to_end(vectors: Sequence[Vector]) -> Vector:
    """Return the entries of all vectors or matrices, one after another, as a new vector."""
    whole = vectors[0].new_empty(sum(vector.numel() for vector in vectors))
    for cut, vector in zip(apart(whole, [vector.numel() for vector in vectors]), vectors, strict=True):
        cut.copy_(vector.reshape(-1))
    return whole


def apart(vector: Vector, sizes: Sequence[int]) -> list[Vector]:
    """Return consecutive pieces of these sizes, as views."""
    found, start = [], 0
    for size in sizes:
        found.append(vector[start : start + size])
        start += size
    return found


#: entries of a block: a few vectors of them stay in a core's cache
_BLOCK = 1 << 18


def in_blocks(*vectors: Vector) -> Iterator[tuple[Vector, ...]]:
    """Yield the same entries of vectors of one length, some at a time, as views.

    What is computed entry by entry in several steps then reads and writes memory once, as what is between
    the steps stays in the cache: a third of the time of an outer step on 25.6 million parameters.

    Examples
    --------
    >>> import torch
    >>> [tuple(map(len, block)) for block in in_blocks(torch.zeros(300_000), torch.zeros(300_000))]
    [(262144, 262144), (37856, 37856)]
    """
    for start in range(0, len(vectors[0]), _BLOCK):
        yield tuple(vector[start : start + _BLOCK] for vector in vectors)


def momentum_step(x: Vector, mean: Vector, velocity: Vector, lr: float, beta: float, nesterov: bool) -> None:
    """Step in place along D: v <- beta v + D; x <- x - lr v, or of nesterov x - lr (D + beta v).

    Examples
    --------
    >>> import torch
    >>> x, v = torch.tensor([10.0]), torch.tensor([1.0])
    >>> momentum_step(x, torch.tensor([2.0]), v, 1.0, 0.5, nesterov=True)
    >>> x.item(), v.item()
    (6.75, 2.5)
    """
    for own, difference, kept in in_blocks(x, mean, velocity):
        kept.mul_(beta).add_(difference)
        own.sub_(difference.add(kept, alpha=beta) if nesterov else kept, alpha=lr)


def weighted_sum(vectors: Sequence[Vector], weights: Sequence[float]) -> Vector:
    """Return sum_i weight_i v_i as a new vector, or the only vector itself if its weight is 1."""
    if len(vectors) == 1 and weights[0] == 1.0:
        return vectors[0]
    total = vectors[0] * weights[0]
    for vector, weight in zip(vectors[1:], weights[1:], strict=True):
        total.add_(vector, alpha=weight)
    return total


class State(MutableMapping[str, Any]):
    """A part's vectors and numbers by name, which last from one update to the next.

    Every backend has them sliced, moved with their entries, replicated, written in checkpoints and forks,
    and cleared at a hand-over as the momentum is. A vector has an entry for each parameter that this process
    holds; a number must come out alike in every process.

    Parameters
    ----------
    like : float32 tensor, (entries,)

    Raises
    ------
    TypeError, ValueError
        If what is assigned is neither a number nor such a vector.
    """

    def __init__(self, like: Vector) -> None:
        self.like = like
        self._values: dict[str, Any] = {}
        #: pushes of the update under way, whose vectors are not the part's
        self.lent: Sequence[Pushed] = ()

    def vector(self, name: str, start: Vector | None = None) -> Vector:
        """Return a vector, which on first use is a copy of `start`, or zeros; it may be changed in place."""
        if name not in self._values:
            self._values[name] = self.like.new_zeros(self.like.shape) if start is None else start.clone()
        found: Vector = self._values[name]
        return found

    def number(self, name: str, start: float = 0.0) -> float:
        return float(self._values.get(name, start))

    def of(self, entries: Entries, fragment: int) -> State:
        """Return a state restricted to some entries, with its own numbers; `put` writes it back."""
        part = State(entries.of(self.like))
        own = f"[{fragment}]"
        for name, value in self._values.items():
            if not isinstance(value, float):
                part._values[name] = entries.of(value)
            elif name.endswith(own):
                part._values[name.removesuffix(own)] = value
        return part

    def put(self, entries: Entries, fragment: int, part: State) -> None:
        """Store the state of some entries."""
        for name, value in part.items():
            if isinstance(value, float):
                self._values[f"{name}[{fragment}]"] = value
            else:
                put_back(entries, self.vector(name), value)

    def tensors(self) -> dict[str, Vector]:
        """Return all values as tensors, without copying; numbers become 0-dimensional tensors."""
        zero = self.like.new_zeros
        return {
            name: zero(()).double().fill_(value) if isinstance(value, float) else value
            for name, value in self._values.items()
        }

    def load(self, tensors: Mapping[str, Vector]) -> None:
        """Set the values that `tensors` returned, without copying."""
        for name, tensor in tensors.items():
            self[name] = tensor if tensor.dim() else tensor.item()

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(value, (int, float)):
            self._values[name] = float(value)
            return
        like = self.like
        try:
            fits = value.shape == like.shape and value.dtype is like.dtype
        except AttributeError:
            what = type(value).__name__
            raise TypeError(f"state {name!r}: is a {what}, neither a vector nor a number") from None
        if not fits:
            raise ValueError(
                f"state {name!r}: has shape {tuple(value.shape)} and {value.dtype}, expected "
                f"{tuple(like.shape)} and {like.dtype}"
            )
        place = value.data_ptr()
        is_lent = place == like.data_ptr()  # or another's, who changes it too
        if self.lent and not is_lent:
            is_lent = any(place == push.vector.data_ptr() for push in self.lent)
        self._values[name] = value.clone() if is_lent else value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def clear(self) -> None:
        """Remove all values; the inherited method would remove one name after another, in every step."""
        self._values.clear()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def put_back(entries: Entries, vector: Vector, part: Vector) -> None:
    """Write entries into a vector, unless they are a view of it."""
    if part.untyped_storage().data_ptr() != vector.untyped_storage().data_ptr():
        entries.put(vector, part)
