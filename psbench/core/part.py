"""Parts: the pure pieces that a strategy is composed of, and the registry of their names.

A part is a frozen pydantic model: its fields are its hyper-parameters, declared once with range, unit,
description and source, and everything else (YAML, command line, panel, tables) is made from them. What a
part concludes while it runs is kept in private attributes (`PrivateAttr`) holding plain data.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
)
from pydantic_core import PydanticCustomError

from psbench.core.actions import Action, Apply, Hold, Orders, Release, SwitchTo
from psbench.core.events import Evaluated, Push, Report, SwitchRequested, Vote
from psbench.core.view import ClusterView
from psbench.errors import ParameterError, UnknownName

#: every part by domain and name, filled as the classes are made
REGISTRY: dict[str, dict[str, type[Part]]] = {}


def parameter(default: Any, description: str, *, unit: str = "", source: str = "", **limits: Any) -> Any:
    """Declare a hyper-parameter: default, meaning, unit, where it comes from, and its limits.

    `limits` are pydantic's (`ge`, `gt`, `le`, `lt`). `unit` and `source` show up in tooltips and tables.
    """
    extra: dict[str, Any] = {"unit": unit, "source": source}
    return Field(default, description=description, json_schema_extra=extra, **limits)


class Specification(BaseModel):
    """Base of everything that a person writes down: never changed, no unknown key, no number that is none."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse texts and truth values where a number is expected; pydantic would turn them into one."""
        wanted = cls.model_fields[info.field_name or ""].annotation
        numeric = set(get_args(wanted) or [wanted]) <= {int, float, type(None)}
        if numeric and isinstance(value, (str, bool)):
            raise PydanticCustomError("number_expected", "Input should be a number")
        return value


class Part(Specification):
    """Base of all parts; a subclass with a `name` is registered under its domain.

    Raises
    ------
    ParameterError, UnknownName
        On a value out of range or a parameter that the part does not have.
    """

    domain: ClassVar[str] = ""
    name: ClassVar[str] = ""
    #: where the rule comes from; shown wherever the part is offered
    source: ClassVar[str] = ""
    #: statistics of a push or report that the part reads; no other is computed
    reads: ClassVar[tuple[str, ...]] = ()
    #: kinds of numbers that the part asks for with `Measure`
    measures: ClassVar[tuple[str, ...]] = ()
    #: a part with a higher number makes other decisions than one with a lower
    results_version: ClassVar[int] = 1

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise explain(error, type(self), f"{self.domain} {self.name!r}") from None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if not cls.__dict__.get("name"):  # an inherited name is the parent's
            return
        known = REGISTRY.setdefault(cls.domain, {})
        other = known.get(cls.name, cls)
        # a cell of a notebook that is run again defines its class again
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ParameterError(
                f"{cls.domain} {cls.name!r} is there already ({other.__module__}.{other.__qualname__}); "
                f"give {cls.__qualname__} another name"
            )
        known[cls.name] = cls

    @model_serializer(mode="wrap")
    def _with_name(self, handler: Any) -> dict[str, Any]:
        return {"name": self.name, **handler(self)}

    def fresh(self) -> Self:
        """Return an equal part that has concluded nothing yet."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields})

    def check(self, num_workers: int, global_batch: int) -> None:
        """Raise ParameterError if the part cannot work on a cluster of that size."""

    def start(self, view: ClusterView) -> list[Action]:
        """Begin: called once before anything else, also after a switch."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return what the part has concluded, as plain data."""
        return copy.deepcopy(dict(self.__pydantic_private__ or {}))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state written by `state_dict`."""
        for name, value in state.items():
            setattr(self, name, copy.deepcopy(value))


class Consistency(Part):
    """When is a push committed, and who may go on.

    Properties that decide what fits (`core.strategy`): `barrier`: every commit takes one push of every
    active worker and all go on together; `waits_for`: whom a waiting worker waits for; `singly`: one push
    a commit; `cancels`: may void work under way.
    """

    domain: ClassVar[str] = "consistency"
    barrier: ClassVar[bool] = False
    waits_for: ClassVar[Literal["none", "some", "all"]] = "some"
    singly: ClassVar[bool] = False

    @property
    def cancels(self) -> bool:
        """Whether work under way may be voided."""
        return False

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Answer a push: commit or not, and release or hold its worker."""
        raise NotImplementedError(f"{type(self).__name__} must define on_push")

    def on_start(self, view: ClusterView) -> list[Action]:
        """Let the workers begin; by default all of them, in id order."""
        return [Release(worker) for worker in view.waiting]

    def on_join(self, worker: int, view: ClusterView) -> list[Action]:
        """Answer a newcomer; by default it begins at once."""
        return [Release(worker)]

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """React to a worker that has gone: ask again who may go on."""
        return []

    def on_timer(self, key: str, view: ClusterView) -> list[Action]:
        """React to a `SetTimer` that is due."""
        return []

    def on_drained(self, view: ClusterView) -> list[Action]:
        """Empty the buffer before a switch; by default its pushes are committed together."""
        from psbench.core.actions import Commit

        return [Commit(view.buffered())] if view.pending else []


class Aggregation(Part):
    """How pushes become the next model.

    Properties that decide what fits: `one_at_a_time`: it weighs one push against its own state;
    `needs_barrier`: a commit must take a push of everybody; `takes_sums`: a push is to carry the sum of its
    steps' gradients, as of workers that overlap, rather than their mean.
    """

    domain: ClassVar[str] = "aggregation"
    one_at_a_time: ClassVar[bool] = False
    #: whether a push counts by its samples, so that batches of different sizes make one of the whole
    weighs_samples: ClassVar[bool] = True
    takes_sums: ClassVar[bool] = False
    needs_barrier: ClassVar[bool] = False

    @property
    def payload(self) -> Literal["gradient", "parameters"]:
        """What a push carries."""
        return "gradient"

    @property
    def reply(self) -> Literal["model", "aggregate"]:
        """What a released worker receives: the model, or the commit's aggregate to apply itself."""
        return "model"

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Answer with `Apply`, or with `Measure` if numbers from tensors are needed first."""
        raise NotImplementedError(f"{type(self).__name__} must define on_commit")

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        """Answer a `Measure` of one's own, with `Apply`."""
        return []


#: what a worker does after a step: go on; report and go on; vote and wait; push and wait; push and go on
#: (overlap); or wait for the answer to a push that is under way
Directive: TypeAlias = Literal["continue", "report", "vote", "push", "push_and_continue", "wait"]


class WorkerPolicy(BaseModel):
    """The half of a communication part that runs on the worker: a small picklable state machine.

    Its statistics are those that some part `reads`, and always `loss`; they may be computed when asked for.
    The worker loop (`core.worker_loop`) takes the orders `batch_size` and `push` itself.
    """

    model_config = ConfigDict(extra="forbid")

    def after_step(self, stats: Mapping[str, float]) -> Directive:
        """Say what to do after a step."""
        return "push"

    def on_answer(self, waited: bool) -> Directive:
        """Take the answer to a push under way (overlap); whether the worker had nothing more to compute."""
        return "continue"

    def step_samples(self, batch_size: int) -> int:
        """Return how many samples the next step takes; by default the worker's whole batch."""
        return batch_size

    def vote_value(self) -> float:
        """Return the value of the vote that `after_step` asked for."""
        raise NotImplementedError(f"{type(self).__name__} votes, so it must define vote_value")

    def report(self, stats: dict[str, float]) -> dict[str, float]:
        """Return what the report that `after_step` asked for says; by default the statistics read."""
        return stats

    def on_orders(self, orders: Orders) -> None:
        """Take orders that came with a release or a `Tell`."""


class Codec(Part):
    """How a vector of floats is written on the wire; `psbench.codecs` has them.

    `entrywise`: every entry travels by itself, so that a ring may add vectors up on their way.
    """

    domain: ClassVar[str] = "codec"
    entrywise: ClassVar[bool] = False

    @property
    def has_memory(self) -> bool:
        """Whether the sender adds what was lost to what it sends next."""
        return False

    def num_bytes(self, size: int) -> int:
        """Return the length of an encoded vector of `size` entries; it does not depend on their values."""
        raise NotImplementedError(f"{type(self).__name__} must define num_bytes")


def codec_field(description: str, name: str = "none") -> Any:
    """Declare a codec as a hyper-parameter of a communication part, by the name of its default."""
    return Field(
        default_factory=lambda: make_part("codec", name),
        description=description,
        json_schema_extra={"unit": "", "source": "protocols 9"},
    )


class Communication(Part):
    """When a worker pushes, and what goes on the wire.

    Parameters
    ----------
    codec, codec_down : Codec, its name, or a mapping
        How vectors are written on their way to the servers and on their way back. BatchNorm's statistics
        travel beside them as 32-bit floats.

    Notes
    -----
    Sparse and quantised codecs carry differences: of a model, what has changed since the one that the worker
    was sent last (our reading; on the way back this is what DoubleSqueeze's error feedback comes to). The
    first model that a worker is sent travels whole. Of a codec that is right on average only (QSGD, TernGrad,
    random-k without memory) a worker takes the share of a difference that brings it nearer to the server's
    model for certain (`Codec.shift_rate`): with few levels on many entries it follows that slowly.
    """

    domain: ClassVar[str] = "communication"
    #: whether a worker surely pushes (always), may never (alone), or all push when one votes (together)
    pushes: ClassVar[Literal["always", "alone", "together"]] = "always"
    #: whether steps are kept on the worker between pushes, by its own optimizer
    local: ClassVar[bool] = False
    #: whether a push carries the mean gradient of several steps from one model
    accumulates: ClassVar[bool] = False
    #: whether the worker computes on while its push is under way
    overlaps: ClassVar[bool] = False
    #: whether a worker speaks at the end of a chunk of data, whose size the straggler part may order
    chunks: ClassVar[bool] = False
    #: whether a worker reports how far it has come with its batch, and takes orders to do more or less of it
    reports_progress: ClassVar[bool] = False
    codec: SerializeAsAny[Codec] = codec_field("how vectors are written on their way to the servers")
    codec_down: SerializeAsAny[Codec] = codec_field("how vectors are written on their way to the workers")

    @field_validator("codec", "codec_down", mode="before")
    @classmethod
    def _codec(cls, value: Any) -> Part:
        return make_part("codec", value)

    @property
    def forgets_momentum(self) -> bool:
        """Whether a worker that is sent the model begins its own optimizer anew."""
        return True

    def worker_policy(self) -> WorkerPolicy:
        """Return a new worker half."""
        raise NotImplementedError(f"{type(self).__name__} must define worker_policy")

    def rate_epoch(self, view: ClusterView) -> float:
        """Return the epoch at which the rate's schedule is read."""
        return view.epoch

    def on_vote(self, vote: Vote, view: ClusterView) -> list[Action]:
        """Answer a vote: release to `step` or `push`, or hold until all have voted."""
        return [Hold(vote.worker, "vote")]

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Look at a push before it is committed."""
        return []

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """React to a worker that has gone."""
        return []

    def on_applied(self, view: ClusterView) -> list[Action]:
        """React to a new version."""
        return []

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        """Answer a `Measure` of one's own."""
        return []

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Return orders that go with a release."""
        return {}


class Stragglers(Part):
    """How much work each worker gets."""

    domain: ClassVar[str] = "stragglers"
    needs_barrier: ClassVar[bool] = False
    varies_batch: ClassVar[bool] = False
    needs_chunks: ClassVar[bool] = False
    needs_progress: ClassVar[bool] = False

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Look at a push before it is committed."""
        return []

    def on_report(self, report: Report, view: ClusterView) -> list[Action]:
        """Look at a report."""
        return []

    def on_timer(self, key: str, view: ClusterView) -> list[Action]:
        """React to a `SetTimer` that is due."""
        return []

    def on_applied(self, view: ClusterView) -> list[Action]:
        """React to a new version."""
        return []

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Return orders that go with a release, such as `batch_size`."""
        return {}


#: a model's tensors in the order of its vector: name, entries
Layout: TypeAlias = Sequence[tuple[str, int]]


class Network(Protocol):
    """What a collective operation may ask of the network: how long things take, in seconds."""

    def ring(self, num_bytes: float, workers: Sequence[int]) -> float:
        """Return the time of a ring All-Reduce among workers."""

    def hop(self, num_bytes: float, workers: Sequence[int]) -> float:
        """Return the time of one message over the slowest link among workers."""


class Placement(Part):
    """Where parameters live, and so what a message costs; never which decision is taken.

    `collective`: a commit is a collective operation of its pushers; `stateless_workers`: a worker keeps
    nothing between steps.
    """

    domain: ClassVar[str] = "placement"
    collective: ClassVar[bool] = False
    stateless_workers: ClassVar[bool] = False

    @property
    def num_servers(self) -> int:
        """Servers that share the parameters."""
        return 1

    @property
    def moves(self) -> bool:
        """Whether parameters may move between servers while a run goes on; only then it hears of versions."""
        return False

    def on_applied(self, view: ClusterView) -> list[Action]:
        """React to a new version."""
        return []

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        """Answer a `Measure` of one's own."""
        return []

    def ranges(self, layout: Layout) -> list[list[tuple[int, int]]]:
        """Return the entries that each server begins with: stretches, from (included) to (excluded)."""
        return [[(0, sum(size for _, size in layout))]]

    def balance(self, layout: Layout) -> dict[str, Any]:
        """Return by server what it has to do, and the `imbalance` of each: the most over the mean.

        Keys are lists of counts by server, such as `entries`, and `imbalance` with a number for each.
        """
        entries = [sum(stop - start for start, stop in own) for own in self.ranges(layout)]
        return {"entries": entries, "imbalance": {"entries": max(entries) * len(entries) / sum(entries)}}

    def start_s(self, partition: int) -> float:
        """Return the seconds before a step that begins on a partition of so many samples."""
        return 0.0

    def scan_s(self, partition: int) -> float:
        """Return how much of `start_s` goes into reading the partition."""
        return 0.0

    def broadcast_s(self, network: Network, num_bytes: int, workers: list[int]) -> float:
        """Return the seconds in which a collective lets all workers have the model before a step."""
        return 0.0

    def reduce_s(self, network: Network, num_bytes: int, workers: list[int]) -> float:
        """Return the seconds in which a collective adds up what workers have computed."""
        return 0.0

    def bytes_up(self, payload: int, num_workers: int) -> int:
        """Return what one worker sends for a payload of that many bytes."""
        return payload

    def bytes_down(self, payload: int, num_workers: int) -> int:
        """Return what one worker receives to load a model of that many bytes."""
        return payload


class Switching(Part):
    """When to change to another composition; asked by hand, every rule switches.

    `needs_epochs`: asks how many epochs the run has; `needs_validation`: reads the validation loss.
    """

    domain: ClassVar[str] = "switching"
    needs_epochs: ClassVar[bool] = False
    needs_validation: ClassVar[bool] = False

    @property
    def awaits_evaluation(self) -> bool:
        """Whether the next evaluation may lead to a switch."""
        return False

    def on_applied(self, view: ClusterView) -> list[Action]:
        """Look at a new version."""
        return []

    def on_evaluated(self, event: Evaluated, view: ClusterView) -> list[Action]:
        """Look at an evaluation."""
        return []

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Look at a push."""
        return []

    def on_timer(self, key: str, view: ClusterView) -> list[Action]:
        """React to a `SetTimer` that is due."""
        return []

    def on_switch_requested(self, event: SwitchRequested, view: ClusterView) -> list[Action]:
        """Do what a person asked for: change now."""
        return [SwitchTo(1 - view.composition if event.to is None else event.to, "asked by hand")]

    def why_not(self, evaluations: Sequence[Evaluated], trained: float, planned: float | None) -> str:
        """Say why a run that has ended never switched; empty if it was not meant to.

        Parameters
        ----------
        evaluations : sequence of Evaluated
            What the rule was shown, in order.
        trained, planned : float, epochs
            How far the run went, and the stop rule's number of epochs, if it has one.
        """
        return ""


def make_part(domain: str, value: Any) -> Part:
    """Return a part from a part, a name, or a mapping with `name` and parameters.

    Raises
    ------
    UnknownName, ParameterError
    """
    if isinstance(value, Part):
        if value.domain != domain:
            raise ParameterError(f"{value.name!r} is a {value.domain} part, not a {domain} part")
        return value
    if isinstance(value, str):
        value = {"name": value}
    known = REGISTRY.get(domain, {})
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        names = ", ".join(sorted(known))
        raise ParameterError(
            f"{domain}: expected a name or a mapping with a name, got {value!r} (known: {names})"
        )
    values = dict(value)
    name = values.pop("name")
    if name not in known:
        raise UnknownName(f"{domain} part", name, known)
    return known[name](**values)


def explain(error: ValidationError, model: type[BaseModel], where: str) -> ParameterError | UnknownName:
    """Turn pydantic's error into one of ours: what, where, and the nearest right thing."""
    errors = error.errors(include_url=False)
    # a name misspelt may also be one that is missed: the former tells more
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    path = ".".join(str(step) for step in first["loc"])
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, (ParameterError, UnknownName)):
        return cause
    if first["type"] == "extra_forbidden":
        return UnknownName(f"parameter of {where}", str(first["loc"][-1]), model.model_fields)
    got = "" if first["type"] == "missing" else f", got {first['input']!r}"
    message = first["msg"][0].lower() + first["msg"][1:].replace("valid tuple", "list")  # as YAML calls it
    return ParameterError(f"{where}: {path}: {message}{got}" if path else f"{where}: {message}{got}")


__all__ = [
    "REGISTRY",
    "Aggregation",
    "Apply",
    "Communication",
    "Consistency",
    "Directive",
    "Part",
    "Placement",
    "Specification",
    "Stragglers",
    "Switching",
    "WorkerPolicy",
    "explain",
    "make_part",
    "parameter",
]
