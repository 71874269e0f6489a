"""HALoS: a server in each region takes its workers' differences, and one for all takes the regions'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import PrivateAttr

from psbench.core import Action, Apply, ClusterView, Note, Push, parameter
from psbench.core.answered_models import AnsweredModels
from psbench.core.arithmetic import Pushed, State, Step, Vector
from psbench.core.needs import NEEDS_SINGLE_PUSHES
from psbench.errors import ParameterError

SOURCE = "Kim et al. 2025 (HALoS)"
_BITS, _MEGA = 8, 1e6


class TwoLevels(AnsweredModels):
    """Step a region's model along each worker's difference, and the global model along each region's.

    A push goes to the server of the worker's region, which takes a delayed Nesterov step and answers with the
    region's model x_r. After K pushes since its last merge (`pushes_per_exchange`) it sends what they have
    moved it by, D = x_r then - x_r now; the global server takes a delayed Nesterov step of x along D and
    sends x back; on arrival x_r <- (1 - alpha) x_r + alpha x. Here alpha is `merging`. Pushes go on
    meanwhile. The run's model, which is evaluated, is x. All servers begin with the same model.

    A delayed Nesterov step, of rate lr, momentum beta, and every N: x <- x - lr D; at every N-th also m <-
    beta m + (the mean of N) and x <- x - N lr beta m.

    Parameters
    ----------
    region_size : int, workers, >= 1
        Neighbouring numbers are a region.
    region_lr, region_momentum, region_every
        lr, beta and N of the regions' steps.
    global_lr, global_momentum, global_every
        Of the global model's.
    region_links_mbit_s : list of float, megabits per second
        Of each region to the global server: a model takes as long as its bytes do; empty: no time.

    Notes
    -----
    Reduces to: `delayed_nesterov` with one region that exchanges after every push, alpha = 1 and a plain
    global step of rate 1 (with `outer_lr` = N lr); independent regions with K beyond all
    pushes.
    What is under way between servers is decided with the next push, by its time: the global model that is
    evaluated may be as old as that push. Bytes of the log are those between workers and their regions; each
    exchange between servers has a note. The paper's defaults are of four regions by four workers, with 32
    pushes to an exchange.
    The code of the authors keeps 1 - alpha of the region (ParameterServer.merge_model); the help of its
    option says the reverse. Their scripts have alpha = .25, so that a region keeps .75.
    Our readings: a worker that comes later, or back, begins from the global model, and so does a region
    whose first worker comes later; without links an exchange ends before the worker is answered.

    Source
    ------
    Kim et al. (2025), "HALoS: Hierarchical Asynchronous Local SGD over Slow Networks for Geo-Distributed
    Large Language Model Training", ICML; rates and order of events as in the authors' simulator,
    utnslab/halos 4b5bf73: src/halos/simulation/exec_halos.py (lines 57-106 and 185-240), src/halos/ps.py
    (lines 59-69), src/halos/opt.py (lines 93-112), examples/run_halos.sh.

    Examples
    --------
    >>> part = TwoLevels(region_size=2, pushes_per_exchange=1)
    >>> [part.region(worker) for worker in range(4)]
    [0, 0, 1, 1]
    """

    name = "two_levels"
    source = SOURCE
    payload = "difference"
    needs = (NEEDS_SINGLE_PUSHES,)
    weighs_samples = False

    region_size: int = parameter(2, "workers in a region", unit="workers", source=SOURCE, ge=1)
    region_lr: float = parameter(0.2, "rate of a worker's push in its region", source=SOURCE, gt=0)
    region_momentum: float = parameter(0.9, "momentum of the regions", source=SOURCE, ge=0, lt=1)
    region_every: int = parameter(
        16, "pushes between two updates of a region's momentum", unit="pushes", source=SOURCE, ge=1
    )
    global_lr: float = parameter(0.15, "rate of a region's update", source=SOURCE, gt=0)
    global_momentum: float = parameter(0.5, "momentum of the global model", source=SOURCE, ge=0, lt=1)
    global_every: int = parameter(
        2, "regions' updates between two updates of the momentum", unit="updates", source=SOURCE, ge=1
    )
    # the paper: 32, of long runs
    pushes_per_exchange: int = parameter(
        8, "pushes in a region before it sends its update", unit="pushes", source=SOURCE, ge=1
    )
    merging: float = parameter(
        0.25, "share of the global model that is mixed into a region's model", source=SOURCE, ge=0, le=1
    )
    region_links_mbit_s: tuple[float, ...] = parameter(
        (),
        "rate of each region's link to the global server; empty: no transfer time",
        unit="Mbit/s",
        source=SOURCE,
    )

    #: pushes since the last merge, by region; and what is under way: when it arrives, its kind, its region
    _counts: dict[str, int] = PrivateAttr(default_factory=dict)
    _under_way: list[tuple[float, str, int]] = PrivateAttr(default_factory=list)
    _membership: int = PrivateAttr(-1)  # for which the regions have begun

    def check(self, num_workers: int, global_batch: int) -> None:
        """Raise unless every region has a link, if links are given."""
        regions, links = -(-num_workers // self.region_size), self.region_links_mbit_s
        if links and (len(links) != regions or min(links) <= 0):
            raise ParameterError(
                f"{self.name}: region_links_mbit_s has {len(links)} values, {list(links)}; {num_workers} "
                f"workers in regions of {self.region_size} need {regions}, above 0"
            )

    def region(self, worker: int) -> int:
        return worker // self.region_size

    @property
    def effective_outer_rate(self) -> float:
        """Return the product of the two levels' effective rates: N lr / (1 - beta) of the mean of N."""
        own = self.region_lr * self.region_every / (1.0 - self.region_momentum)
        return own * self.global_lr * self.global_every / (1.0 - self.global_momentum)

    def on_commit(self, pushes: list[Push], view: ClusterView) -> list[Action]:
        """List the inter-region messages that are due before and after this push, in order."""
        (push,) = pushes
        done = self._arrivals(view.now)
        region = self.region(push.worker)
        joined = () if self._membership == view.membership else view.active
        self._membership = view.membership
        present = {self.region(worker) for worker in (*joined, push.worker)}
        new = [each for each in sorted(present) if f"{each}" not in self._counts]
        self._counts |= {f"{each}": 0 for each in new}
        done += [*(("begin", each) for each in new), ("push", region)]
        count = self._counts[f"{region}"] = self._counts[f"{region}"] + 1
        notes: list[Action] = []
        if count == self.pushes_per_exchange:
            takes = self._seconds(region, view)
            self._under_way.append((view.now + takes, "global", region))
            self._under_way.append((view.now + 2 * takes, "merge", region))
            self._under_way.sort(key=lambda each: each[0])
            done.append(("send", region))
            notes.append(Note(f"region {region} sends its update, which takes {takes:.4g} s each way"))
            done += self._arrivals(view.now)
        return [*notes, Apply(pushes, [1.0], {f"{i} {kind}": float(r) for i, (kind, r) in enumerate(done)})]

    def _arrivals(self, now: float) -> list[tuple[str, int]]:
        """Remove and return the inter-region messages that have arrived by `now`, in order."""
        found = [(kind, region) for at, kind, region in self._under_way if at <= now]
        self._under_way = [each for each in self._under_way if each[0] > now]
        self._counts |= {f"{region}": 0 for kind, region in found if kind == "merge"}
        return found

    def _seconds(self, region: int, view: ClusterView) -> float:
        if not self.region_links_mbit_s:
            return 0.0
        num_bytes = 4 * sum(size for _, size in view.layout)
        return num_bytes * _BITS / (self.region_links_mbit_s[region] * _MEGA)

    def state_dict(self) -> dict[str, Any]:
        """Return pushes and transfers under way; a loaded part finds its regions at its first push."""
        state = super().state_dict()
        del state["_membership"]
        return state

    def update(self, x: Vector, pushes: Sequence[Pushed], state: State, step: Step) -> None:
        """Process due inter-region messages and the push, and reply with the region's model."""
        (push,), region = pushes, 0
        for key, value in sorted(step.numbers.items(), key=lambda each: int(each[0].split()[0])):
            kind, at = key.split()[1], int(value)
            if kind == "begin":
                state[f"region {at}"], state[f"merged {at}"] = x.clone(), x.clone()
                continue
            local, base = state.vector(f"region {at}"), state.vector(f"merged {at}")
            if kind == "push":
                region = at
                rates = self.region_lr, self.region_momentum, self.region_every
                delayed_nesterov(local, push.vector, state, f"{at}", *rates)
            elif kind == "send":
                state[f"sent {at}"] = base - local
            elif kind == "global":
                rates = self.global_lr, self.global_momentum, self.global_every
                delayed_nesterov(x, state[f"sent {at}"], state, "global", *rates)
                state.vector(f"sent {at}").copy_(x)  # what travels back
            else:
                local.mul_(1.0 - self.merging).add_(state[f"sent {at}"], alpha=self.merging)
                base.copy_(local)
        step.reply(state.vector(f"region {region}").clone())


def delayed_nesterov(
    x: Vector, difference: Vector, state: State, whose: str, lr: float, beta: float, every: int
) -> None:
    """Step along a difference in place, and along the momentum with every N-th one."""
    total, momentum = state.vector(f"total {whose}"), state.vector(f"momentum {whose}")
    count = state.number(f"count {whose}") + 1
    total.add_(difference)
    x.sub_(difference, alpha=lr)
    if count == every:
        momentum.mul_(beta).add_(total, alpha=1.0 / every)
        x.sub_(momentum, alpha=every * lr * beta)
        total.zero_()
        count = 0
    state[f"count {whose}"] = count
