"""The domains of parts: one base class for each question that a strategy answers.

A hook that a part does not define does nothing. Class attributes declare the properties from which
`core.compatibility` decides what fits together.
"""

# no `from __future__ import annotations`: pydantic would compile these texts again for each subclass

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, SerializeAsAny, field_validator

from psbench.core.actions import Action, Commit, Hold, Orders, Release, SwitchTo
from psbench.core.aggregation import Aggregation as Aggregation
from psbench.core.aggregation import GradientSums
from psbench.core.arithmetic import State, Vector, WorkerStep
from psbench.core.events import Evaluated, Push, Report, SwitchRequested, Vote
from psbench.core.needs import FLOAT_CODECS, Need
from psbench.core.part import Part, make_part, overrides
from psbench.core.placement import Layout as Layout
from psbench.core.placement import Placement as Placement
from psbench.core.selection import Selection as Selection
from psbench.core.view import ClusterView
from psbench.core.worker_policy import WorkerPolicy

#: entries of a vector: start included, stop excluded
FragmentRanges: TypeAlias = Sequence[tuple[int, int]]


class Consistency(Part):
    """Decides when pushes are committed and which workers are released.

    Properties that decide what fits: `barrier`: every commit takes one push of every active worker, and all
    are released together; `waits_for`: whom a waiting worker waits for; `singly`: one push a commit;
    `cancels`: may make work under way void.
    """

    domain = "consistency"
    #: whether work under way may be made void
    cancels: ClassVar[bool] = False
    barrier: ClassVar[bool] = False
    waits_for: ClassVar[Literal["none", "some", "all"]] = "some"
    singly: ClassVar[bool] = False
    #: whether a commit takes pushes from the current version alone, without a barrier, and drops later ones
    current_only: ClassVar[bool] = False

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Answer a push: commit or not, and release or hold its worker."""
        raise NotImplementedError(f"{type(self).__name__} must define on_push")

    def on_start(self, view: ClusterView) -> list[Action]:
        """Release workers at the start; by default all of them, in id order."""
        return [Release(worker) for worker in view.waiting]

    def on_join(self, worker: int, view: ClusterView) -> list[Action]:
        """React to a joining worker; by default it is released at once."""
        return [Release(worker)]

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """React to a worker that has left: decide again which workers are released."""
        return []

    def on_timer(self, key: str, view: ClusterView) -> list[Action]:
        """React to a `SetTimer` that is due."""
        return []

    def on_drained(self, view: ClusterView) -> list[Action]:
        """Empty the buffer before a switch; by default its pushes are committed together."""
        return [Commit(view.buffered())] if view.pending else []


class CodecPart(Part):
    """Encoding of a vector of floats; implementations are in `psbench.strategies.codecs`.

    `entrywise`: every entry is encoded by itself, so that models are sent as they are, and not as differences
    from what a worker holds. A ring adds up floats alone: those of codecs 'none' and 'fp16'.
    """

    domain = "codec"
    #: whether the sender adds what one message lost to the next (error feedback)
    has_memory: ClassVar[bool] = False
    #: the share of what one message lost that the sender adds to the next
    memory: ClassVar[float] = 1.0
    entrywise: ClassVar[bool] = False

    def num_bytes(self, size: int) -> int:
        """Return the length of an encoded vector of `size` entries; it does not depend on their values."""
        raise NotImplementedError(f"{type(self).__name__} must define num_bytes")

    def at(self, setting: int, size: int) -> "CodecPart":
        """Return the codec of a push of `size` entries with that setting; the part itself if it has one.

        The setting is in the order `codec` of the worker's last release, and -1 without one.
        """
        return self

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """React to a push before it is committed."""
        return []

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Return orders that go with a release, such as `codec`, the setting of the next push."""
        return {}

    def shift_rate(self, size: int) -> float:
        """Return the rate at which a receiver adds decoded differences to the vector that it holds.

        The update held <- held + rate Q(x - held) must bring held nearer to x. A codec whose squared error is
        below ||x||^2 allows rate 1. One that is only unbiased, with E ||Q(x) - x||^2 <= omega ||x||^2, needs
        1/(1 + omega), which reduces E ||x - held||^2 by that share.

        Source
        ------
        Mishchenko et al. (2019), "Distributed Learning with Compressed Gradient Differences" (DIANA), where
        alpha <= 1/(1 + omega); Beznosikov et al. (2020), "On Biased Compression for Distributed Learning".
        """
        return 1.0


def codec_field(description: str, name: str = "none") -> Any:
    """Declare a codec as a hyper-parameter of a communication part, by the name of its default."""
    return Field(
        default_factory=lambda: make_part("codec", name),
        description=description,
        json_schema_extra={"unit": "", "source": "our reading"},
    )


def _needs_of_fragments() -> tuple[Need, ...]:
    def need(domain: str, is_met: Callable[[Any], bool], why: str, remedy: str = "") -> Need:
        return Need(
            domain, is_met, "{part} pushes fragments of the model, and " + why, remedy, _has_fragments
        )

    return (
        need(
            "consistency",
            lambda c: (c.barrier or c.current_only or c.singly) and not c.cancels,
            "{other} commits pushes of several fragments together",
        ),
        need(
            "aggregation",
            lambda a: a.payload == "difference" and a.reply == "model" and overrides(a, "update"),
            "{other} does not step along the difference of each fragment",
            "use aggregation 'outer'",
        ),
        need(
            "aggregation",
            lambda a: not (a.measures or a.needs_base or a.exchanges),
            "{other} measures whole vectors",
            "use aggregation 'outer'",
        ),
        need(
            "communication",
            lambda m: not m.codec.has_memory and m.codec_down.name in FLOAT_CODECS,
            "its codecs have residuals of whole vectors",
            "use a codec without error feedback, and codec_down 'none' or 'fp16'",
        ),
        need("placement", lambda p: not p.moves, "{other} moves parameters meanwhile", "remove reassignment"),
    )


def _has_fragments(part: "Communication") -> bool:
    return type(part).fragments is not Communication.fragments


class Communication(Part):
    """Decides when a worker pushes, and how messages are encoded.

    Parameters
    ----------
    codec, codec_down : CodecPart, its name, or a mapping
        How vectors to the servers, and back to the workers, are encoded. BatchNorm's statistics are sent
        beside them as 32-bit floats.

    Notes
    -----
    Sparse and quantised codecs carry differences: of a model, what has changed since the one that the worker
    was sent last (our reading; for answers this is equivalent to DoubleSqueeze's error feedback). The first
    model that a worker is sent is whole. With a codec that is only unbiased (QSGD, TernGrad, random-k without
    error feedback) a worker takes the share of a difference that brings it nearer to the server's
    model for certain (`CodecPart.shift_rate`): with few levels on many entries it follows that slowly.
    """

    domain = "communication"
    #: whether workers train on samples of others too, so that each must have the data of all
    shares_samples: ClassVar[bool] = False
    #: samples that a worker takes the statistic `test_loss` over; 0 leaves it to the backend
    evaluated_samples: ClassVar[int] = 0
    #: whether a worker certainly pushes (always), may never push (alone), or all push by vote (together)
    pushes: ClassVar[Literal["always", "alone", "together"]] = "always"
    #: whether a push carries the mean gradient of several steps from one model
    accumulates: ClassVar[bool] = False
    #: whether the worker computes while its push is under way
    overlaps: ClassVar[bool] = False
    #: whether a worker works on chunks of data, whose size the straggler part may order
    chunks: ClassVar[bool] = False
    #: whether a worker reports its progress within a batch, and takes orders to do more or less of it
    reports_progress: ClassVar[bool] = False
    codec: SerializeAsAny[CodecPart] = codec_field("codec of vectors sent to the servers")
    codec_down: SerializeAsAny[CodecPart] = codec_field("codec of vectors sent to the workers")
    needs = (
        Need(
            "consistency",
            lambda c: c.waits_for == "none",
            "workers under {part} may never push, which would block workers that wait under {other}",
            when=lambda m: m.pushes == "alone",
        ),
        Need(
            "consistency",
            lambda c: c.barrier,
            "all workers push together under {part}, but {other} has no barrier",
            when=lambda m: m.pushes == "together",
        ),
        Need(
            "consistency",
            lambda c: not c.cancels,
            "workers under {part} compute while their push is in transit, but {other} would cancel that work",
            when=lambda m: m.overlaps,
        ),
        *_needs_of_fragments(),
        Need(
            "aggregation",
            lambda a: a.payload == "gradient",
            "workers under {part} have no models of their own, but {other} needs them",
            "use a communication with local steps, such as 'local_sgd'",
            when=lambda m: not m.steps_by_itself,
        ),
        Need(
            "aggregation",
            lambda a: a.reply == "model",
            "workers under {part} have no models of their own to apply an aggregate of {other} to",
            "use a communication with local steps, such as 'selsync'",
            when=lambda m: not m.steps_by_itself,
        ),
        Need(
            "aggregation",
            lambda a: isinstance(a, GradientSums),
            "{part} pushes sums over several steps, but {other} would count each as one step",
            when=lambda m: m.pushes_sums,
        ),
    )

    @property
    def is_encoded(self) -> bool:
        """Return True if messages are encoded in either direction."""
        return {self.codec.name, self.codec_down.name} != {"none"}

    @property
    def steps_by_itself(self) -> bool:
        """Return True if a worker steps a model by an optimizer of its own, as under `OwnSteps`."""
        return False

    @property
    def pushes_sums(self) -> bool:
        """Return True if a push carries the sum of several steps' gradients instead of their mean."""
        return self.overlaps and not self.steps_by_itself

    def smallest_step(self, batch: int) -> int:
        """Return the samples of the smallest step that a worker computes its batch in."""
        return batch

    @field_validator("codec", "codec_down", mode="before")
    @classmethod
    def _codec(cls, value: Any) -> Part:
        return make_part("codec", value)

    def fresh(self) -> Self:
        """Return an equal part whose codec is in its initial state too."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**fields | {"codec": self.codec.fresh()})

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the part and its codec as plain data."""
        codec = self.codec.state_dict()
        return super().state_dict() | ({"codec": codec} if codec else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of `state_dict`."""
        own = {**state}
        self.codec.load_state_dict(own.pop("codec", {}))
        super().load_state_dict(own)

    def fragments(self, layout: Layout) -> list[FragmentRanges]:
        """Return the entries of each fragment if a push carries one of several; empty if it carries all.

        Which one a worker's next push carries is in the order `fragment` of its release. That push, its
        commit and its answer are of these entries alone: `payload` and `begin` are called with them, and
        so is the aggregation's `update`. FragmentRanges are in the order of the vector, start included, stop
        excluded, and each entry is in one fragment.

        Raises
        ------
        ParameterError
            If a model with these tensors cannot be divided so.
        """
        return []

    def worker_policy(self) -> WorkerPolicy:
        """Return a new worker policy."""
        raise NotImplementedError(f"{type(self).__name__} must define worker_policy")

    # the worker's half: what it makes of models and gradients; `own_steps` has that of workers with a model

    def begin(self, w: Vector, model: Vector, state: State, own: WorkerStep) -> None:
        """Start from a model that was received, in place; `w` is the worker's own if it has one, else that.

        A part that derives from `OwnSteps` or `overlaps` has the worker keep a vector of its own, with the
        entries of the whole model, and in `state` whatever it names; `own` has the rate and steps of the
        worker's optimizer.
        """
        state.clear()

    def step(self, w: Vector, gradient: Vector, state: State, own: WorkerStep) -> None:
        """Handle the gradient of a step; by default add it to the mean of unpushed gradients."""
        before = state.number("samples")
        if before:
            gradient = (state["gradient"] * before + gradient * own.samples) / (before + own.samples)
        state["gradient"], state["samples"] = gradient, before + own.samples

    def keep(self, w: Vector, state: State, own: WorkerStep) -> None:
        """Keep the last step, which is neither pushed nor replaced by an answer."""

    def payload(self, w: Vector, state: State, own: WorkerStep) -> Vector:
        """Return the payload of a push, which must not be changed later; by default the mean gradient."""
        state["samples"] = 0
        gradient: Vector = state["gradient"]
        return gradient

    def sent(self, w: Vector, vector: Vector, state: State, own: WorkerStep) -> None:
        """Observe the last push as its receivers decode it; `vector` must not be changed."""

    def receive(self, w: Vector, answer: Vector, state: State, own: WorkerStep) -> None:
        """Apply an answer other than a model; see `Aggregation.reply`."""
        raise NotImplementedError(f"{type(self).__name__} receives only models; override 'receive'")

    def rate_epoch(self, view: ClusterView) -> float:
        """Return the epoch at which the rate's schedule is read."""
        return view.epoch

    def rate_epochs_per_step(self, view: ClusterView) -> float:
        """Return by how much the rate's epoch advances with each local step."""
        return view.epochs_per_step

    def on_vote(self, vote: Vote, view: ClusterView) -> list[Action]:
        """Answer a vote: release to `step` or `push`, or hold until all have voted."""
        return [Hold(vote.worker, "vote")]

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """React to a push before it is committed."""
        return []

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        """React to a worker that has left; if no worker is left, the actions are ignored."""
        return []

    def on_applied(self, view: ClusterView) -> list[Action]:
        """React to a new version."""
        return []

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        """Answer the part's own `Measure`."""
        return []

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Return orders that go with a release."""
        return {}


class Stragglers(Part):
    """Decides the amount of work of each worker."""

    domain = "stragglers"
    varies_batch: ClassVar[bool] = False
    #: whether it orders the sizes of chunks of data, which workers must have memory for
    sizes_chunks: ClassVar[bool] = False
    #: the fewest samples that a batch may be cut down to
    smallest_batch: ClassVar[int] = 1
    #: whether it may have a run go on without a worker
    drops: ClassVar[bool] = False

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """React to a push before it is committed."""
        return []

    def on_report(self, report: Report, view: ClusterView) -> list[Action]:
        """React to a report."""
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


class Switching(Part):
    """Decides when to switch from one composition to the next; every rule also switches on request.

    A rule knows two compositions, whichever the run has beside them: 0, before its switch, and 1, after it;
    `SwitchTo`, `SwitchRequested` and `view.composition` name them so.

    `needs_epochs`: uses the run's number of epochs; `needs_validation`: reads the validation loss.
    """

    domain = "switching"
    #: whether it may have a run go on without a worker
    drops: ClassVar[bool] = False
    #: the time of the run, in seconds, at which backends request the switch; None without one
    moment_s: ClassVar[float | None] = None
    #: whether the next evaluation may lead to a switch
    awaits_evaluation: ClassVar[bool] = False
    needs_epochs: ClassVar[bool] = False
    needs_validation: ClassVar[bool] = False

    def on_applied(self, view: ClusterView) -> list[Action]:
        """React to a new version."""
        return []

    def on_evaluated(self, event: Evaluated, view: ClusterView) -> list[Action]:
        """React to an evaluation."""
        return []

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """React to a push."""
        return []

    def on_timer(self, key: str, view: ClusterView) -> list[Action]:
        """React to a `SetTimer` that is due."""
        return []

    def on_switch_requested(self, event: SwitchRequested, view: ClusterView) -> list[Action]:
        """Switch now, at the user's request."""
        return [SwitchTo(1 - view.composition if event.to is None else event.to, "asked by hand")]

    def why_not(self, evaluations: Sequence[Evaluated], trained: float, planned: float | None) -> str:
        """Return why a finished run never switched; empty if it was not supposed to.

        Parameters
        ----------
        evaluations : sequence of Evaluated
            What the rule was shown, in order.
        trained, planned : float, epochs
            How far the run went, and the stop rule's number of epochs, if it has one.
        """
        return ""
