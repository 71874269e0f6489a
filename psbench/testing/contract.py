"""Checks the contract of strategies, on which every backend relies.

The checks need an engine and scripted clusters only. A message says what was seen, and its likely cause.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from psbench.core import Apply, Communication, Consistency, Engine, Kind, Part, Release, Strategy, Switching
from psbench.core.events import Join, Leave
from psbench.core.switching_strategy import AnyStrategy, SwitchingStrategy
from psbench.errors import Deadlock, ParameterError, ProtocolError, PsbenchError, UnansweredWorker
from psbench.strategies import CATALOGUE, make_strategy
from psbench.testing.commits import check_finite, probed_commits
from psbench.testing.invariants import BrokenContract, Invariants, MisfitOrBroken
from psbench.testing.random_cluster import fitting_sizes, random_cluster
from psbench.testing.scripted_cluster import ScriptedCluster, Undeclared
from psbench.testing.variants import variants

#: random clusters for each end of a hyper-parameter's range
_CLUSTERS_AT_ENDS = 4
#: likely causes of errors that Python raises, by a piece of their message
_LIKELY = {
    "object is not iterable": "a hook returns None or a single action; return a list of actions, or []",
    "Instance is frozen": "a hook sets an attribute of the part; keep what changes in a PrivateAttr",
    "unhashable type: 'Push'": "an action names a push instead of its worker, as Release(push.worker)",
    "object of type 'Push' has no len()": "Commit is given a push instead of a list, as Commit([push])",
}
#: pushes without a commit after which a strategy is taken never to commit; a k-variant with a larger k would
#: be refused wrongly
_PATIENCE = 2000


def check_strategy(strategy: Any, *, clusters: int = 30, events: int = 80, seed: int = 0) -> None:
    """Check that a strategy, or a part, keeps the contract.

    It answers each worker that pushes, votes or joins once, with a release or a hold and its reason; never
    stalls, whichever workers fail, rejoin or join late; gives the same log for the same seed; decides
    identically from a state written as JSON at any event; pickles; reads only the statistics it declares;
    runs with its parameters at both ends of their ranges; and does what its class says: `barrier`, `singly`,
    `waits_for`, `cancels`, `staleness_bound`. At every event pushes = committed + discarded + pending, no
    push counts twice, versions rise by one and no staleness is negative.

    The user's own arithmetic is tried on vectors. It gives the same bits again, the same on one server and
    on three, after its state was saved and loaded, and, if it is `linear`, of the sum of the pushes; changes
    nothing but its slice; and makes no NaN of zeros. Every push counts, by its weight; under a barrier in any
    order; k equal ones as one; and a model that all push as it is stays. Workers take over what they are
    sent. The loss falls on a quadratic, where no part measures vectors.

    The user's own selection chooses mini-batches of toy shards of several sizes: positions in the shard, as
    many as asked for, with weights that are finite. It chooses the same again for the same seed, and after
    what the worker remembers was saved and loaded; changes nothing in its memory but `state`; and reports
    numbers.

    Parameters
    ----------
    strategy : strategy, name of the catalogue, mapping, part, or class of a part
        A part is composed with default parts, and a barrier if it needs one; a worker's half with models and
        with differences, of which it has to suit one. Give the whole strategy to try both halves together.
    clusters : int, >= 1
        Random clusters to run on.
    events : int, >= 10
        Events on each.
    seed : int
        Of the first cluster; the others have the following seeds.

    Raises
    ------
    BrokenContract
        Says what was seen and the likely cause.

    Examples
    --------
    >>> check_strategy("asp", clusters=2)
    """
    made, *others = _as_strategies(strategy)
    _check_plain_data(made)
    for number in range(seed, seed + clusters):
        _check_run(made, number, events)
    _check_losses(made)
    for number in range(seed, seed + min(3, clusters)):
        _check_repeats(made, number, events)
        _check_resumes(made, number, events)
    _check_commits(made, seed)
    _check_singly(made, seed, events)
    _check_selection(made)
    is_half = isinstance(strategy, (Part, type))
    _check_arithmetics([made, *others], seed, events, is_half)
    for variant in variants(made):
        for number in range(seed, seed + min(_CLUSTERS_AT_ENDS, clusters)):
            _check_run(variant, number, events)


# -------------------------------------------------------------------- what is checked


#: of pushes that a worker's half is tried with: models and differences, where workers are sent the model
_KINDS = 2
_GOSSIP = {
    "consistency": "neighbours",
    "aggregation": "neighbour_average",
    "communication": "step_then_mix",
    "placement": "gossip",
}
#: parts that a part may need beside it: no barrier, workers with steps of their own, a ring, no server
_OTHERS: tuple[dict[str, str], ...] = (
    *({}, {"consistency": "asp"}, {"communication": "local_sgd"}),
    *({"consistency": "asp", "communication": "local_sgd"}, {"aggregation": "model_average"}),
    {"consistency": "asp", "communication": "answered_sgd"},
    {"consistency": "asp", "aggregation": "heloco"},
    {"aggregation": "accumulated"},
    {"communication": "local_sgd", "aggregation": "outer"},
    {"communication": "local_sgd", "aggregation": "eager_outer"},
    {"placement": "all_reduce"},
    _GOSSIP,
    _GOSSIP | {"aggregation": "pair_average", "consistency": "asp"},
)


def _as_strategies(value: Any) -> list[AnyStrategy]:
    """Return the strategy; for a part, the default strategies that it fits."""
    if isinstance(value, type) and issubclass(value, Part):
        value = value()
    if not isinstance(value, Part):
        return [make_strategy(value)]
    if not value.name:
        raise BrokenContract(f"{type(value).__name__} has no name: give it `name = ...`")
    if isinstance(value, Switching):
        first, second = make_strategy("bsp"), make_strategy("asp")
        return [SwitchingStrategy(name=value.name, first=first, second=second, rule=value)]
    found, refusals = dict[Any, AnyStrategy](), list[ParameterError]()
    for group in (({}, _GOSSIP) if isinstance(value, Consistency) else _OTHERS, _published()):
        for others in group:
            try:
                made = Strategy(**{"consistency": "bsp"} | others | {"name": value.name, value.domain: value})
            except ParameterError as error:
                refusals.append(error)
                continue
            found.setdefault((made.aggregation.payload, made.aggregation.reply), made)
            if not isinstance(value, Communication) or len(found) == _KINDS:
                break
        if found:
            return [*found.values()]
    raise ParameterError(
        f"{value.domain} {value.name!r} cannot be checked alone, as it fits none of the tested parts "
        f"({refusals[0]}); check a whole strategy: "
        f"check_strategy({{{value.domain!r}: {value.name!r}, ...}})"
    )


def _published() -> Iterator[dict[str, Any]]:
    """Yield the parts of the published strategies, for parts that fit no default."""
    for name in CATALOGUE:
        for composition in make_strategy(name).compositions:
            yield {part.domain: part for part in composition.parts}


def _check_plain_data(strategy: AnyStrategy) -> None:
    name = strategy.name
    try:
        again = pickle.loads(pickle.dumps(strategy))
        for composition in strategy.compositions:
            pickle.dumps(composition.communication.worker_policy())
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise BrokenContract(
            f"{name}: does not pickle ({error}). Most likely a part keeps a function, a lock or a file, or "
            "its class is defined inside a function; keep plain data, and define classes in a module"
        ) from error
    if again != strategy:
        raise BrokenContract(f"{name}: differs after pickling. Most likely a part changes its own fields")
    if make_strategy(strategy.spec()) != strategy:
        raise BrokenContract(
            f"{name}: its specification gives a different strategy. Most likely a hyper-parameter is not a "
            "field declared with `parameter`, or a validator changes its input"
        )


def _check_run(strategy: AnyStrategy, seed: int, events: int) -> None:
    where = f"{_title(strategy)} on random cluster {seed}"
    cluster = _guard(where, lambda: random_cluster(strategy, seed))
    invariants = Invariants(where, cluster.engine)
    for _ in range(events):
        if cluster.done:
            break
        answer = _guard(f"{where} after {cluster.now:g} s", cluster.step)
        check_finite(where, answer)
        invariants.look()


def _check_losses(strategy: AnyStrategy) -> None:
    """Let each worker in turn leave, or join late: once as the slowest, once as the fastest."""
    size = _largest(strategy)
    for worker in range(size) if size > 1 else ():
        for slowest in (True, False):
            speeds = [(10.0 if w == worker else 1.0 + w / 8) if slowest else 2.0 + w for w in range(size)]
            for what in (Leave(worker), Join(worker)):
                where = f"{_title(strategy)}, worker {worker} {type(what).__name__.lower()}s at 8.5 s"
                cluster = ScriptedCluster(strategy, speeds, changes=[(8.5, what)], epochs=20)
                invariants = Invariants(where, cluster.engine)
                while cluster.now < 30:
                    _guard(where, cluster.step)
                    invariants.look()


def _check_repeats(strategy: AnyStrategy, seed: int, events: int) -> None:
    first, again, other = (_played(strategy, seed, events, **o) for o in ({}, {}, {"disguise": 0.125}))
    where = f"{_title(strategy)} on random cluster {seed}"
    if first.log.digest() != again.log.digest():
        raise BrokenContract(
            f"{where}: two runs with the same seed differ. Most likely a part draws from a global random "
            "state instead of view.rng, reads a clock instead of view.now, iterates over a set, or keeps "
            "state on its class instead of in a PrivateAttr"
        )
    if _decisions(first) != _decisions(other):
        raise BrokenContract(
            f"{where}: decisions change with the loss or the times that pushes carry for the log. Most "
            "likely a part reads push.loss, push.compute_s or push.send_s; declare the statistic in `reads` "
            "and take it from push.stats"
        )


def _check_resumes(strategy: AnyStrategy, seed: int, events: int) -> None:
    cluster = _played(strategy, seed, events)
    where = f"{_title(strategy)} on random cluster {seed}"
    for at in sorted({1, len(cluster.history) // 3, 2 * len(cluster.history) // 3}):
        _check_resumes_at(where, cluster, at)


def _check_resumes_at(where: str, cluster: ScriptedCluster, at: int) -> None:
    engine = cluster.new_engine()
    engine.begin(cluster.starters)
    for now, event, _ in cluster.history[1:at]:
        if event is not None:
            engine.handle(event, now)
    while engine.measuring and at < len(cluster.history):
        now, event, _ = cluster.history[at]
        if event is not None:
            engine.handle(event, now)
        at += 1
    if engine.measuring:
        return
    resumed = _from_state(where, engine, cluster.new_engine())
    for now, event, expected in cluster.history[at:]:
        if event is not None and resumed.handle(event, now) != expected:
            raise BrokenContract(
                f"{where}: resumed from its state at event {at}, it decides differently at {now:g} s. Most "
                "likely a part keeps state outside of its PrivateAttrs"
            )


def _from_state(where: str, engine: Engine, fresh: Engine) -> Engine:
    try:
        written = json.dumps(engine.state_dict())
    except TypeError as error:
        raise BrokenContract(
            f"{where}: the state cannot be written as JSON ({error}). A part's PrivateAttrs must hold plain "
            "data: numbers, strings, lists, and dicts with strings as keys"
        ) from error
    fresh.load_state_dict(json.loads(written))
    # comparing JSON would not notice that the number 1 has become the string "1"
    if repr(fresh.state_dict()) != repr(engine.state_dict()):
        raise BrokenContract(
            f"{where}: the state differs after a round trip through JSON. Most likely a PrivateAttr holds a "
            "dict whose keys are numbers, or a tuple or set; use strings as keys, and lists"
        )
    return fresh


def _check_commits(strategy: AnyStrategy, seed: int) -> None:
    size = _largest(strategy)
    cluster = ScriptedCluster(
        strategy, lambda worker, number: 1.0 + 0.1 * worker, num_workers=size, epochs=20, seed=seed
    )
    view = cluster.engine.view
    while not view.version and view.pushes < _PATIENCE:
        _guard(_title(strategy), cluster.step)
    if not view.version:
        raise BrokenContract(
            f"{_title(strategy)}: {view.pushes} pushes but no commit. Most likely on_push never returns "
            "a Commit"
        )


def _check_singly(strategy: AnyStrategy, seed: int, events: int) -> None:
    """Detect a part that commits every push separately without declaring it; the rate depends on that."""
    part = strategy.compositions[0].consistency
    if isinstance(strategy, SwitchingStrategy) or part.singly or part.barrier:
        return
    for each in (strategy, *variants(strategy)):
        size = _largest(each)
        if size < 3:  # such as the second of two, when there are but two
            continue
        cluster = ScriptedCluster(
            each, lambda worker, _: 1.0 + 0.1 * worker, num_workers=size, epochs=20, seed=seed
        )
        _guard(_title(each), partial(cluster.run, events=events))
        versions = cluster.log.of_kind(Kind.APPLY)["version"]
        if len(versions) > len(set(versions.tolist())):
            return
    raise BrokenContract(
        f"{_title(strategy)}: every version has one push, but {part.name} does not declare it. Add `singly "
        "= True` to its class: a push then has the learning rate lr/n, unless the strategy sets lr_scaling"
    )


def _check_arithmetics(strategies: Sequence[AnyStrategy], seed: int, events: int, is_half: bool) -> None:
    """Test the arithmetic with each kind of push; a worker's half may support only one kind."""
    misfits = []
    for strategy in strategies:
        try:
            _check_arithmetic(strategy, seed, events, is_half)
        except MisfitOrBroken as error:
            misfits.append(error)
    if len(misfits) == len(strategies):
        raise misfits[-1]


def _check_arithmetic(strategy: AnyStrategy, seed: int, events: int, is_half: bool) -> None:
    """Test the arithmetic of user-defined parts; psbench's own tests, which need torch, cover its parts."""
    if isinstance(strategy, SwitchingStrategy):
        return
    updates, works = _is_own(strategy.aggregation), _is_own(strategy.communication)
    if not (updates or works):
        return
    from psbench.testing import probes
    from psbench.testing.arithmetic import check_half, check_update

    actions = [action for *_, answer in _played(strategy, seed, events).history for action in answer]
    size = _largest(strategy)
    if updates:
        check_update(strategy, [action for action in actions if isinstance(action, Apply)])
        probes.check_commits(strategy, probed_commits(strategy, size, events))
    if works:
        check_half(strategy, [action for action in actions if isinstance(action, Release)])
        probes.check_adoption(strategy)
    if not (is_half and strategy.aggregation.reply != "model"):  # the other half may take an answer otherwise
        cluster = ScriptedCluster(strategy, [1.0 + 0.1 * worker for worker in range(size)], epochs=20)
        cluster.run(events=events)
        probes.check_descent(strategy, cluster)


def _check_selection(strategy: AnyStrategy) -> None:
    """Check the user's own selections on toy shards; psbench has tests of its own for the others."""
    for selection in (composition.selection for composition in strategy.compositions):
        if selection.chooses and _is_own(selection):
            from psbench.testing.selections import check_selection

            check_selection(selection)


def _is_own(part: Part) -> bool:
    return not type(part).__module__.startswith("psbench.")


# -------------------------------------------------------------------- tools


def _title(strategy: AnyStrategy) -> str:
    parts = [part for composition in strategy.compositions for part in composition.parts]
    shown = [
        f"{n}={getattr(p, n)!r}" for p in parts if isinstance(p, Consistency) for n in type(p).model_fields
    ]
    return f"{strategy.name}({', '.join(shown)})"


def _largest(strategy: AnyStrategy) -> int:
    return max(fitting_sizes(strategy, 6), default=1)


def _guard(where: str, do: Callable[[], Any]) -> Any:
    """Call `do`, and add the likely cause to the message of an error."""
    try:
        return do()
    except BrokenContract:
        raise
    except Undeclared as error:
        raise BrokenContract(
            f"{where}: a part reads the statistic {error.args[0]!r}, which none declares. Add it to "
            f"the class: reads = ({error.args[0]!r},)"
        ) from error
    except Deadlock as error:
        raise BrokenContract(
            f"{where}: {error}. Most likely on_push, or on_leave, does not release workers that waited for "
            "what has just happened; decide in the same way in both"
        ) from error
    except UnansweredWorker as error:
        raise BrokenContract(
            f"{where}: {error}. Most likely on_push or on_join returns too little in some case"
        ) from error
    except ProtocolError as error:
        raise BrokenContract(f"{where}: {error}") from error
    except PsbenchError:
        raise
    except Exception as error:
        words = " ".join(str(error).split())
        likely = next((f". Most likely {why}" for text, why in _LIKELY.items() if text in words), "")
        raise BrokenContract(f"{where}: a part raised {type(error).__name__}: {words}{likely}") from error


def _played(strategy: AnyStrategy, seed: int, events: int, **options: Any) -> ScriptedCluster:
    cluster = random_cluster(strategy, seed, **options)
    cluster.run(events=events)
    return cluster


def _decisions(cluster: ScriptedCluster) -> list[Any]:
    """Return the log without the statistics of pushes that do not affect decisions."""
    rows = cluster.log.rows().copy()
    pushes = rows["kind"] == Kind.PUSH
    for name in ("compute_s", "send_s", "loss"):
        rows[name][pushes] = 0
    return [rows.tobytes(), cluster.log.texts]


__all__ = ["BrokenContract", "check_strategy"]
