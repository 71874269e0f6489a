"""Strategies and experiments made by chance from all that psbench registers, what is added later too."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

import numpy as np
from pydantic.fields import FieldInfo

from psbench.core.part import REGISTRY, Part
from psbench.core.strategy import DOMAINS, Strategy
from psbench.core.switching_strategy import AnyStrategy, SwitchingStrategy
from psbench.errors import SpecError
from psbench.experiment import Experiment
from psbench.testing import toy_experiment
from psbench.testing.toys import toy_cluster
from psbench.training.workload import Workload

#: attempts at something valid with a given part before it is said that nothing goes with it
ATTEMPTS = 5000
MOST_WORKERS = 5


def kinds(*domains: str) -> list[type[Part]]:
    """The registered part classes of these domains, without those that tests define."""
    return [
        kind
        for domain in domains
        for _, kind in sorted(REGISTRY.get(domain, {}).items())
        if kind.__module__.startswith("psbench.")
    ]


def draw_part(kind: type[Part], rng: np.random.Generator, **fixed: Any) -> Part:
    """A part with about half of its parameters at other values than the default, small ones."""
    for _ in range(ATTEMPTS):
        try:
            return kind(**draw_fields(kind.model_fields, rng) | fixed)
        except SpecError:  # a value out of range, or two that do not go together
            continue
    raise AssertionError(f"no parameters found for {kind.__name__}")


def draw_fields(fields: dict[str, FieldInfo], rng: np.random.Generator) -> dict[str, Any]:
    return {name: draw_value(field, rng) for name, field in fields.items() if rng.random() < 0.5}


def draw_value(field: FieldInfo, rng: np.random.Generator) -> Any:
    kind, default = field.annotation, field.get_default(call_default_factory=True)
    if isinstance(default, Part):  # as a codec
        known = kinds(default.domain)
        return draw_part(known[rng.integers(len(known))], rng)
    limits = {
        name: getattr(m, name)
        for m in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if hasattr(m, name)
    }
    low, high = (limits.get(a, limits.get(b)) for a, b in (("ge", "gt"), ("le", "lt")))
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return choices[rng.integers(len(choices))]
    if kind is bool:
        return bool(rng.integers(2))
    if kind is int:
        return int((low or 0) + rng.integers(6))
    if kind is float and low is not None and high is not None and high - low <= 1:
        return float(rng.uniform(low, high))
    return float((default or 1.0) * 10 ** rng.uniform(-3, 1)) if kind is float else default


def draw_composition(rng: np.random.Generator, *given: type[Part]) -> Strategy:
    """A valid composition with parts of the classes given, if any, and a codec on the way up."""
    own = {kind.domain: [kind] for kind in given}
    codec = own.pop("codec", None)
    choices = {domain: kinds(domain) for domain in DOMAINS} | own
    for _ in range(ATTEMPTS):
        drawn = {domain: known[rng.integers(len(known))] for domain, known in choices.items()}
        fixed = {"communication": {"codec": draw_part(codec[0], rng)}} if codec else {}
        try:
            return Strategy(
                **{domain: draw_part(kind, rng, **fixed.get(domain, {})) for domain, kind in drawn.items()},
                lr_scaling=("none", "by_share")[rng.integers(2)],
            )
        except SpecError:  # the parts do not fit together
            continue
    raise AssertionError(f"nothing found that goes with {', '.join(kind.__name__ for kind in given)}")


def draw_strategy(rng: np.random.Generator, *given: type[Part]) -> AnyStrategy:
    """A valid strategy that some small cluster takes; one of three changes to another."""
    parts = [kind for kind in given if kind.domain in (*DOMAINS, "codec")]
    rules = [kind for kind in given if kind.domain == "switching"]
    for _ in range(ATTEMPTS):
        made: AnyStrategy = draw_composition(rng, *parts)
        if rules or rng.random() < 1 / 3:
            both = [made, draw_composition(rng)]
            rng.shuffle(both)
            known = rules or kinds("switching")
            own = {
                n: f
                for n, f in SwitchingStrategy.model_fields.items()
                if n in ("momentum", "ramp_updates", "cost_s")
            }
            rule = draw_part(known[rng.integers(len(known))], rng)
            try:
                made = SwitchingStrategy(first=both[0], second=both[1], rule=rule, **draw_fields(own, rng))
            except SpecError:
                continue
        if fitting_sizes(made):
            return made
    raise AssertionError("no strategy found")


def fitting_sizes(strategy: AnyStrategy) -> list[int]:
    found = []
    for size in range(1, MOST_WORKERS + 1):
        try:
            strategy.check(size, 4 * size)
        except SpecError:
            continue
        found.append(size)
    return found


def draw_experiment(rng: np.random.Generator, *given: type[Part]) -> Experiment:
    """A toy experiment with slow links, failures and late joins; worker 0 always stays."""
    shardings = [kind for kind in given if kind.domain == "sharding"] or kinds("sharding")
    for _ in range(ATTEMPTS):
        strategy = draw_strategy(rng, *given)
        sizes = fitting_sizes(strategy)
        size = sizes[rng.integers(len(sizes))]
        try:
            experiment = toy_experiment(
                strategy,
                cluster=draw_cluster(size, rng),
                sharding=draw_part(shardings[rng.integers(len(shardings))], rng),
                optimizer={"name": "sgd", "lr": 0.02, "momentum": float(rng.choice([0.0, 0.9]))},
                batch_size=4 * size,
                stop={"epochs": 1.5, "seconds": 0.6},
                evaluate_every=0.5,
                seed=int(rng.integers(1000)),
            )
            Workload.build(experiment)
        except SpecError:  # the optimizer has no momentum to reduce, or the data is too small for the shards
            continue
        return experiment
    raise AssertionError("no experiment found")


def draw_cluster(size: int, rng: np.random.Generator) -> dict[str, Any]:
    failures, joins = [], []
    for worker in range(1, size):
        at = 0.0
        if rng.random() < 0.25:
            at = float(rng.uniform(0.001, 0.1))
            joins.append({"worker": worker, "at_s": at})
        if rng.random() < 0.4:
            at += float(rng.uniform(0.001, 0.1))
            back = {"rejoin_s": at + float(rng.uniform(0.001, 0.1))} if rng.random() < 0.6 else {}
            failures.append({"worker": worker, "at_s": at, **back})
    links = [{}, {"latency_s": 0.0005}, {"latency_s": 0.001, "bandwidth_mbit_s": 1.0}]
    return toy_cluster(
        [float(speed) for speed in rng.choice([1.0, 0.5, 0.25], size)],
        step_time=str(rng.choice(["constant", "shifted_exponential", "pareto"])),
        failures=failures,
        joins=joins,
        **links[rng.integers(3)],
    )
