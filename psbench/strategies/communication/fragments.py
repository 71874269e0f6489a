"""Streaming DiLoCo: the model is exchanged fragment by fragment, while its worker computes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import PrivateAttr, model_validator

from psbench.core import Action, ClusterView, Directive, Orders, OwnSteps, Push, WorkerPolicy, parameter
from psbench.core.arithmetic import State, Vector, WorkerStep
from psbench.core.parts import FragmentRanges, Layout
from psbench.errors import ParameterError

SOURCE = "Douillard et al. 2025 (Streaming DiLoCo)"


class Streaming(WorkerPolicy):
    """A worker that pushes when its steps are made, and takes the answer `overlap` steps later."""

    overlap: int = 0
    local_steps: int = 1
    made: int = 0  # since the last push
    exchanging: bool = False

    def on_orders(self, orders: Orders) -> None:
        """Set the steps until the next push; unless a push is in transit, earlier steps may be cancelled."""
        self.local_steps = orders.get("local_steps", self.local_steps)
        if not self.exchanging:
            self.made = 0

    def takes_answer(self, stepped: bool) -> bool:
        """Take the answer after a fixed number of steps, so that results do not depend on speed."""
        return self.made + stepped >= self.overlap

    def after_step(self, stats: Mapping[str, float]) -> Directive:
        """Push after the last step; with a push in transit, wait for its answer when it is due."""
        self.made += 1
        if self.exchanging:
            return "wait" if self.made >= self.overlap else "continue"
        if self.made < self.local_steps:
            return "continue"
        self.made, self.exchanging = 0, self.overlap > 0
        return "push_and_continue" if self.exchanging else "push"

    def on_answer(self, waited: bool) -> Directive:
        """Continue with steps."""
        self.exchanging = False
        return "continue"


class Fragments(OwnSteps):
    """Push one of P fragments of the model after every H/P steps, and take its new value tau steps later.

    A worker keeps g, the value of each fragment that all have agreed on last. At step t = p H/P (mod H) it
    pushes the difference g_p - w_p. With the answer, tau steps later, g_p is the new value, and w_p <- alpha
    w_p + (1 - alpha) g_p. An aggregation such as `outer` makes the new value of the mean difference; its
    momentum is of each fragment by itself.

    Parameters
    ----------
    local_steps : int, steps, >= 1
        H, steps between two pushes of the same fragment; a multiple of `num_fragments`.
    num_fragments : int, >= 1
        P.
    fragment_pattern : "strided", "contiguous" or "random"
        The model's tensors l, l + P, l + 2P and so on are a fragment, or consecutive ones of about as many
        entries. Random deals out single entries, as evenly as possible.
    pattern_seed : int
        Of the random pattern. All workers deal alike, so that no indices are sent.
    overlap : int, steps, 0 <= tau < H/P
        tau: steps that a worker takes while its push is under way. It waits if the answer takes longer; one
        that is there earlier is kept until then.
    mixing : float, 0 <= alpha <= 1
        alpha: the share of its local value that a worker keeps. 0 forgets what the tau steps did there.
    takes : "mixture" or "change"
        The mixture above, or w_p <- w_p + g_p - (w_p as it was pushed), the delta rule of hivemind: what the
        tau steps did there is kept, and alpha is not used.
    first_push : "after_all" or "after_share"
        Whether the first push is after H steps, as in the paper's example, or after H/P, as in torchft.

    Notes
    -----
    Reduces to: `local_sgd` with momentum that is kept (DiLoCo, with `outer`), with one fragment, no overlap
    and alpha = 0; independent workers with alpha = 1. Bytes in H steps are DiLoCo's; the
    peak is one P-th. The change is alpha = 0 without overlap. With one fragment and a plain outer step of 1
    it is hivemind's averaging of states while peers step on, without its matchmaking.
    LOSCAR-SGD and SPARTA are random fragments, the change, and a plain outer step of 1: with y_j the pushed
    value and z_j that after the overlap, x_j = mean_j + (z_j - y_j) for the entries of the fragment, which
    keeps the mean of the workers' models.
    With no overlap and P > 1 the other fragments keep what they have done. Without a barrier (`asp` or `ssp`,
    with `fedbuff`) every worker goes through the fragments by itself, and is answered at once.
    Our reading: a fragment is of whole tensors, where the paper takes groups of transformer layers;
    BatchNorm's statistics travel with every fragment. Where a strategy switches, the last push is of one
    fragment, and what the others have done since theirs is lost. The paper sends 4 bits a value: codec e3m0.
    Random fragments are dealt once and take turns, as in one of the selections of SPARTA's code; LOSCAR-SGD
    draws the entries of each push anew. The evaluated model has the last mean of every entry.

    Source
    ------
    Douillard et al. (2025), "Streaming DiLoCo with overlapping communication: Towards a Distributed Free
    Lunch", Alg. 2; the change: the state averager of hivemind's source (`delta_rule_averaging`). Random
    fragments: Maziane et al. (2026), as an implementation of others restates its rule, and
    `ShuffledSequentialIndexSelector` of exo-explore/gym 9fa323c, exogym/strategy/sparta.py.
    The paper: H of 30 and 100, P of 3 layers each, tau of 1 to 10, alpha of .5 and 0.

    Examples
    --------
    >>> Fragments(num_fragments=2).fragments([("a", 3), ("b", 2), ("c", 1)])
    [[(0, 3), (5, 6)], [(3, 5)]]
    """

    name = "fragments"
    source = SOURCE
    forgets_momentum = False

    # the paper: 100; a laptop's runs have 500 to 2,000 steps
    local_steps: int = parameter(
        20, "steps between two pushes of a fragment", unit="steps", source=SOURCE, ge=1
    )
    num_fragments: int = parameter(2, "parts of the model that are pushed in turn", source=SOURCE, ge=1)
    fragment_pattern: Literal["strided", "contiguous", "random"] = parameter(
        "strided", "a fragment: every P-th tensor, consecutive tensors, or random entries", source=SOURCE
    )
    pattern_seed: int = parameter(0, "seed of the random pattern", source="our reading", ge=0)
    overlap: int = parameter(1, "steps while a push is in transit", unit="steps", source=SOURCE, ge=0)
    mixing: float = parameter(0.5, "share of its local value that a worker keeps", source=SOURCE, ge=0, le=1)
    takes: Literal["mixture", "change"] = parameter(
        "mixture", "how a worker applies a new value: mix it with the local value, or add its change"
    )
    first_push: Literal["after_all", "after_share"] = parameter(
        "after_all",
        "time of the first push: after H steps, or after one fragment's share of H",
        source=SOURCE,
    )

    #: versions that took a push of each worker; who comes later begins where the furthest is
    _turns: dict[str, int] = PrivateAttr(default_factory=dict)
    _furthest: int = PrivateAttr(default=0)
    _pushed: list[int] = PrivateAttr(default_factory=list)  # since the last version

    @model_validator(mode="after")
    def _divides(self) -> Fragments:
        share, rest = divmod(self.local_steps, self.num_fragments)
        if rest:
            near = max(1, round(self.local_steps / self.num_fragments)) * self.num_fragments
            raise ParameterError(
                f"local_steps: {self.local_steps} is not a multiple of num_fragments, {self.num_fragments}; "
                f"the nearest is {near}"
            )
        if self.overlap >= share:
            raise ParameterError(
                f"overlap: {self.overlap} steps, but the next fragment is pushed after {share} "
                f"(local_steps / num_fragments); use at most {share - 1}"
            )
        if self.takes == "change" and self.mixing != type(self).model_fields["mixing"].default:
            raise ParameterError(
                f"mixing: {self.mixing} has no effect with takes: 'change'; remove one of them"
            )
        return self

    @property
    def overlaps(self) -> bool:  # pyrefly: ignore[bad-override]
        return self.overlap > 0

    def fragments(self, layout: Layout) -> list[FragmentRanges]:
        """Return the entries of each fragment."""
        if not layout:
            return []
        if self.fragment_pattern == "random":
            return self._random(sum(size for _, size in layout))
        if self.num_fragments > len(layout):
            raise ParameterError(
                f"num_fragments: {self.num_fragments}, but the model has {len(layout)} tensors to divide"
            )
        of_tensors = self._strided(len(layout)) if self.fragment_pattern == "strided" else self._even(layout)
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.num_fragments)]
        start = 0
        for (_, size), fragment in zip(layout, of_tensors, strict=True):
            own, stop = found[fragment], start + size
            if own and own[-1][1] == start:
                own[-1] = own[-1][0], stop
            else:
                own.append((start, stop))
            start = stop
        return [*found]

    def _random(self, entries: int) -> list[FragmentRanges]:
        if self.num_fragments > entries:
            raise ParameterError(
                f"num_fragments: {self.num_fragments}, but the model has {entries} entries to divide"
            )
        dealt = np.random.Generator(np.random.PCG64(self.pattern_seed)).permutation(entries)
        hands = [np.sort(dealt[fragment :: self.num_fragments]) for fragment in range(self.num_fragments)]
        return [[(at, at + 1) for at in hand.tolist()] for hand in hands]

    def _strided(self, count: int) -> list[int]:
        return [tensor % self.num_fragments for tensor in range(count)]

    def _even(self, layout: Layout) -> list[int]:
        """Return the fragment of each tensor: consecutive tensors, with about equal shares of the entries."""
        total, before, found = sum(size for _, size in layout), 0, [0]
        for left, (_, size) in zip(range(len(layout) - 1, 0, -1), layout, strict=False):
            before += size
            full = before * self.num_fragments >= (found[-1] + 1) * total
            needed = self.num_fragments - 1 - found[-1]  # each of the others must get a tensor
            found.append(found[-1] + int(needed > 0 and (full or left <= needed)))
        return found

    def worker_policy(self) -> WorkerPolicy:
        return Streaming(overlap=self.overlap)

    def on_push(self, push: Push, view: ClusterView) -> list[Action]:
        """Record the pushing worker."""
        self._pushed.append(push.worker)
        return []

    def on_applied(self, view: ClusterView) -> list[Action]:
        """Advance workers that have pushed to their next fragment: under a barrier all to the same one."""
        for worker in self._pushed:
            self._turns[str(worker)] += 1
            self._furthest = max(self._furthest, self._turns[str(worker)])
        self._pushed.clear()
        return []

    def on_leave(self, worker: int, view: ClusterView) -> list[Action]:
        self._turns.pop(str(worker), None)
        self._pushed = [other for other in self._pushed if other != worker]
        return []

    def on_release(self, worker: int, view: ClusterView) -> Orders:
        """Order the worker's next fragment, and the steps until its push."""
        if worker in self._pushed:  # and no version took it: it goes on where the others are
            self.on_leave(worker, view)
        turn = self._turns.setdefault(str(worker), self._furthest)
        late = self.first_push == "after_all"
        steps = self.local_steps if late and not turn else self.local_steps // self.num_fragments
        return {"local_steps": steps, "fragment": (turn + (not late)) % self.num_fragments}

    def begin(self, w: Vector, model: Vector, state: State, own: WorkerStep) -> None:
        """Mix the received value with the worker's own; a worker without a value takes it over."""
        if self.takes == "change" and state.number("sent"):
            w.add_(model - state["pushed"])
        elif "agreed" not in state or not self.mixing or self.takes == "change":
            w.copy_(model)
        else:
            w.mul_(self.mixing).add_(model, alpha=1.0 - self.mixing)
        state.vector("agreed").copy_(model)
        if self.takes == "change":
            state["sent"] = 0

    def payload(self, w: Vector, state: State, own: WorkerStep) -> Vector:
        """Return the displacement of the fragment from its last agreed value."""
        if self.takes == "change":
            state.vector("pushed").copy_(w)
            state["sent"] = 1
        difference: Vector = state["agreed"] - w
        return difference
