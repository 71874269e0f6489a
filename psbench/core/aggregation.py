"""The domain of the parts that make the next model: a decision, and its arithmetic."""

# no `from __future__ import annotations`: pydantic would compile these texts again for each subclass

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from psbench.core.actions import Action
from psbench.core.arithmetic import Pushed, Shapes, State, Step, ToAll, Vector
from psbench.core.collective import Replicas
from psbench.core.events import Push
from psbench.core.needs import FLOAT_CODECS, Need
from psbench.core.part import Part, overrides
from psbench.core.view import ClusterView

PayloadKind: TypeAlias = Literal["gradient", "parameters", "difference"]
ReplyKind: TypeAlias = Literal["model", "aggregate", "answer"]
#: what a member of an exchange does: yields what is to be added up and is sent the sum, or yields a message
#: and is sent those of all with their weights; returns what it comes to
Exchanging: TypeAlias = Generator[Any, Any, Mapping[str, Vector]]


def _needs_of_several_vectors() -> tuple[Need, ...]:
    def need(domain: str, is_met: Callable[[Any], bool], why: str, remedy: str = "") -> Need:
        return Need(
            domain, is_met, "{part} expects pushes with several vectors, " + why, remedy, _has_several
        )

    return (
        need(
            "communication",
            lambda m: overrides(m, "payload"),
            "but {other} pushes one",
            "override 'payload' in {other}",
        ),
        need(
            "communication",
            lambda m: not overrides(m, "fragments"),
            "but the fragments of {other} have one",
        ),
        need("aggregation", lambda a: not a.measures, "but measurements support only one"),
        need("aggregation", lambda a: not a.exchanges, "but an exchange supports only one"),
        Need(
            "communication",
            lambda m: m.codec.entrywise,
            "{part} expects pushes with several models, but the codec of {other} sends the difference of one",
            "set codec to 'none' or 'fp16'",
            lambda a: _has_several(a) and a.payload == "parameters",
        ),
        need(
            "consistency",
            lambda c: c.barrier or c.singly,
            "but under {other} a push that waits for a commit has one",
        ),
        need(
            "placement",
            lambda p: not p.moves,
            "but {other} moves the entries of one only",
            "remove reassignment",
        ),
    )


def _has_several(part: "Aggregation") -> bool:
    return bool(part.carries)


def _needs_of_several_answered() -> tuple[Need, ...]:
    """Return the needs of a part that sends vectors of its state with the model."""

    def need(domain: str, is_met: Callable[[Any], bool], why: str, remedy: str = "") -> Need:
        return Need(
            domain, is_met, "{part} sends vectors of its state with the model, " + why, remedy, _sends_several
        )

    return (
        need("aggregation", lambda a: a.reply == "model", "but {other} replies without the model"),
        need(
            "communication",
            lambda m: not overrides(m, "fragments"),
            "but {other} replies with fragments, which exclude them",
        ),
    )


def _sends_several(part: "Aggregation") -> bool:
    return bool(part.sends)


class Aggregation(Part):
    """Aggregation of pushes into the next model: which pushes, with which weights, and the arithmetic.

    `on_commit` decides, once, from plain data. `update` computes, in every process that holds parameters, on
    the entries that it holds. It uses the fields of the part and what it is handed; private attributes are of
    the deciding side and not there.

    `linear`: the update depends on the pushes through their weighted sum alone, so that a ring may add them
    up on their way (false for a part that defines `update`, unless it says so).

    Families: an aggregation makes versions of one model that servers or replicas hold. `GradientSums` takes
    sums of gradients; `AnsweredModels` replies with models of its own; `Mixing` (`psbench.core.peer_to_peer`)
    has no server; one with an `exchange` adds up several times for a version.
    """

    domain = "aggregation"
    #: whether its weights share the learning rate out among the pushes, as 1/staleness does
    shares_rate: ClassVar[bool] = False
    #: whether a push is weighted by its samples, so that batches of different sizes add up to a global one
    weighs_samples: ClassVar[bool] = True
    linear: ClassVar[bool] = True
    #: whether `update` is given the version that each push started from (`Pushed.base`)
    needs_base: ClassVar[bool] = False
    #: whether `update` needs the entries of each tensor (`Step.tensors`), for example for norms
    per_tensor: ClassVar[bool] = False
    #: whether the aggregate of an exchange and what it has left out of the pushes add up, weighted, to these
    conserves_sums: ClassVar[bool] = False
    #: whether pushes with NaN or infinity are left to the part; else one of them ends the run as diverged
    withstands_nan: ClassVar[bool] = False
    #: the usual rate of an `update` that takes steps of its own and of the experiment's optimizer reads the
    #: rate alone, and an experiment's default rate; 0 for other parts
    usual_lr: ClassVar[float] = 0.0
    #: what a push carries: a gradient, the worker's parameters, or the difference that its steps made, which
    #: is the model that it received less the one that it has now: like a gradient, a direction of descent
    payload: ClassVar[PayloadKind] = "gradient"
    #: names of the vectors that a push carries beside, each with an entry for each parameter (`Pushed.more`);
    #: the worker's half then returns a mapping from `payload`, with `vector` and these
    carries: ClassVar[tuple[str, ...]] = ()
    #: names of the vectors of its state that go with the model to workers, whose half of the strategy reads
    #: them in `WorkerStep.answer`; zeros until the part has made them
    sends: ClassVar[tuple[str, ...]] = ()
    #: what a released worker receives: the model, or what `update` has given to `Step.reply`: an aggregate,
    #: which every worker must have of every commit, or an answer to those who pushed, as a model is
    reply: ClassVar[ReplyKind] = "model"
    needs = (
        Need(
            "aggregation",
            lambda a: type(a).update is not Aggregation.update,
            "{part} receives models, and a weighted sum of models is not a descent direction",
            "override 'update'",
            when=lambda a: a.payload == "parameters",
        ),
        Need(
            "consistency",
            lambda c: c.barrier,
            "{part} replies with the aggregate of a commit, but under {other} workers outside the "
            "commit "
            "would not receive it",
            when=lambda a: a.reply == "aggregate",
        ),
        Need(
            "consistency",
            lambda c: c.barrier or (c.singly and c.waits_for == "none"),
            "{part} replies only to the workers of a commit, but {other} may release a worker after a "
            "later commit",
            when=lambda a: a.reply == "answer",
        ),
        Need(
            "communication",
            lambda m: m.codec_down.name in FLOAT_CODECS,
            "{part} sends answers that are independent of each other, but the reply codec of {other} "
            "encodes differences",
            "set codec_down to 'none' or 'fp16'",
            when=lambda a: a.reply == "answer",
        ),
        Need(
            "placement",
            lambda p: p.num_servers == 1,
            "{part} uses norms of whole tensors, but each server of {other} holds parts of tensors",
            "use servers: 1",
            when=lambda a: a.per_tensor,
        ),
        Need(
            "placement",
            lambda p: isinstance(p, Replicas),
            "{part} sums several times per version among workers that hold the model, which {other} "
            "does "
            "not support",
            when=lambda a: a.exchanges,
        ),
        Need(
            "communication",
            lambda m: m.codec.name == "none",
            "{part} encodes its sums itself, and {other} would encode them again",
            "set codec to 'none'",
            when=lambda a: a.exchanges,
        ),
        *_needs_of_several_vectors(),
        *_needs_of_several_answered(),
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "update" in cls.__dict__ and "linear" not in cls.__dict__:
            cls.linear = False

    @property
    def exchanges(self) -> bool:
        """Return True if pushes are summed in several exchanges, each depending on the previous one."""
        return type(self).exchange is not Aggregation.exchange

    @property
    def outer_rate_in_words(self) -> str:
        """The effective outer rate as text to follow the workers' rate; empty if it is 1 or undefined."""
        outer = self.effective_outer_rate
        return "" if outer is None or outer == 1 else f", effective outer rate {outer:g}"

    def doubt_of_rates(self, lr: float) -> str:
        """Return a warning if the part's or the optimizer's rate is probably unintended, or ""."""
        if not self.usual_lr or lr <= 3 * self.usual_lr:
            return ""
        return (
            f"the optimizer's rate, {lr:g}, is {lr / self.usual_lr:.0f} times the usual rate for the "
            "steps of "
            f"{self.name}, each of which moves an entry by about the rate; give optimizer.lr = "
            f"{self.usual_lr:g}"
        )

    @property
    def effective_outer_rate(self) -> float | None:
        """Effective outer rate: the long-run displacement per constant difference; None if it varies.

        lr/(1 - beta) of a part with `outer_lr` and perhaps `outer_momentum`: at one outer rate, steps with
        and without a momentum are not equally large, and a comparison of both compares two rates.
        """
        rate, momentum = getattr(self, "outer_lr", None), getattr(self, "outer_momentum", 0.0)
        return None if rate is None else float(rate / (1.0 - momentum))

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """Answer with `Apply`, or with `Measure` if numbers from tensors are needed first."""
        raise NotImplementedError(f"{type(self).__name__} must define on_commit")

    def on_measured(self, facts: dict[str, Any], view: ClusterView) -> list[Action]:
        """Answer the part's own `Measure`, with `Apply`."""
        return []

    def sums(self, shapes: Shapes, version: int) -> Sequence[int | ToAll]:
        """Return the sizes of the sums in `exchange` that make the next version.

        `ToAll` stands for a message. Empty if there is one sum, of the vectors that are pushed.
        """
        return ()

    def exchange(
        self, mine: Vector, state: State, shapes: Shapes, numbers: Mapping[str, float]
    ) -> Exchanging:
        """Compute a member's part of an exchange, if workers sum pushes without a server.

        What is yielded is added up over all members, each by the weight of its push, and the sum, a new
        vector, is what the `yield` gives. A message, which is a uint8 array, goes to all members, and the
        `yield` gives a list of weight and message of each, in the same order at all. What is returned must
        be equal at all members: `update` is then called with it, as the one push. A member that is lost
        makes the others start over.

        Parameters
        ----------
        mine : float32 tensor, (entries,)
            What this member pushes; not to be changed.
        state : State
            The part's, equal at all members; read here, and changed in `update` alone.
        shapes : sequence of sequence of int
            Of the model's tensors, one after another in the vector.
        numbers : mapping of name to float
            Those of `Apply`.

        Returns
        -------
        mapping of name to float32 tensor, (entries,)
            The aggregate as `vector`, and what `update` finds in `Pushed.more`.
        """
        total = yield mine
        return {"vector": total}

    def left_out(
        self, mine: Vector, total: Pushed, state: State, shapes: Shapes, numbers: Mapping[str, float]
    ) -> Vector | None:
        """Return the part of a member's vector to add to its next push after an exchange with sum `total`.

        The arguments are those of `exchange`, with the state as it was then. What is returned is a new
        vector, (entries,): checkpoints and forks have it, and another composition's first push carries it.
        """
        return None

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Make the next version of the parameters held here, in place; by default an optimizer's step.

        Entry by entry: servers with slices, and members of a ring, compute the same.

        Parameters
        ----------
        x : float32 tensor, (entries,)
            The parameters that this process holds.
        pushes : sequence of Pushed
            In the order of the commit.
        state : State
            The part's vectors and numbers, kept from one update to the next.
        step : Step
            The rate, the numbers of `Apply`, and a step of the optimizer.
        """
        direction = step.sum(pushes)
        if self.reply != "model":
            step.reply(direction)
        step.move(direction)

    def update_buffers(self, buffers: Vector, pushes: Sequence[Pushed], step: Step) -> None:
        """Move the running statistics towards the pushers', each by its share of the global batch, in place.

        r <- (1 - sum_i s_i) r + sum_i s_i r_i with s_i = b_i/B, the s_i scaled down should they exceed 1
        together. A full barrier thus takes the mean of its workers' running statistics, and one of n
        asynchronous pushes moves the server by 1/n: after one global batch the statistics have moved about
        as far in either, and they always stay between the values seen. Papers are silent; this is our rule.
        """
        of_one_step = self.payload == "difference"  # of many, whose samples would come to more than all
        samples = [push.samples / push.steps if of_one_step else push.samples for push in pushes]
        shares = [count / step.global_batch for count in samples]
        excess = max(1.0, sum(shares))
        shares = [share / excess for share in shares]
        buffers.mul_(1.0 - sum(shares))
        for share, push in zip(shares, pushes, strict=True):
            buffers.add_(push.buffers, alpha=share)


class GradientSums(Aggregation):
    """A push carries the sum of its steps' gradients; its worker computes on while it is in transit."""

    needs = (
        Need(
            "communication",
            lambda m: m.pushes_sums,
            "{part} interprets each push as a sum over steps, but under {other} it is a mean",
        ),
    )
