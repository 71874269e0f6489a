"""Validation of the panel's values: whether they can be run, and if not, which field is wrong."""

from __future__ import annotations

import pprint
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from psbench.clusters import make_cluster
from psbench.core.part import REGISTRY, make_part
from psbench.core.stop import Stop
from psbench.core.strategy import DOMAINS
from psbench.core.user_object import Own
from psbench.errors import SpecError
from psbench.experiment import Experiment
from psbench.strategies import CATALOGUE, make_strategy, named_spec
from psbench_widgets.controls import MOST_SEEDS, SECTIONS, read
from psbench_widgets.own_objects import own_parts, with_objects


@dataclass
class CheckResult:
    """Result of a check of the panel's values.

    `errors` maps a section to its message; `disabled` maps a choice, as "strategy" or
    "strategy.consistency", to the options that cannot be taken now and why.
    """

    experiment: Experiment | None = None
    seeds: int = 1
    errors: dict[str, str] = field(default_factory=dict)
    disabled: dict[str, dict[str, str]] = field(default_factory=dict)
    speeds: list[float] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """Return the check's result as plain data for the page."""
        found = {"errors": self.errors, "disabled": self.disabled, "speeds": self.speeds}
        if self.experiment is not None:
            found |= {"yaml": self.experiment.to_yaml(), "python": as_python(self.experiment, self.seeds)}
            found["repeats"] = what_repeats(self.experiment)
        return found


def check(values: Mapping[str, Any], own: Mapping[str, Own] | None = None) -> CheckResult:
    """Check everything that can be checked without loading data; `own` are the objects that were passed."""
    read_values, errors = read(values)
    if errors:
        return CheckResult(errors=errors)
    result = CheckResult()
    plain = without_none(read_values)
    rest = with_objects(plain.pop("rest", {}), own or {})
    plain = with_objects(plain, own or {})
    result.seeds = _seeds(rest.pop("seeds", 1), result)
    _check_sections(plain, result)
    if not result.errors:
        try:
            result.experiment = Experiment.from_spec({**plain, **rest})
        except SpecError as error:
            result.errors[place_of(str(error))] = str(error)
    _disable(plain, rest, result)
    return result


def _check_sections(plain: Mapping[str, Any], result: CheckResult) -> None:
    for key in SECTIONS:
        if key not in plain:
            continue
        try:
            made = _section(key, plain[key])
        except SpecError as error:
            result.errors[key] = str(error)
        else:
            if key == "cluster":
                result.speeds = [float(speed) for speed in made.profile().speed]


def _section(key: str, value: Any) -> Any:
    makers: dict[str, Callable[[Any], Any]] = {
        "strategy": make_strategy,
        "cluster": make_cluster,
        "stop": lambda given: Stop(**given),
    }
    return makers[key](value) if key in makers else make_part(key, value)


def _seeds(value: Any, result: CheckResult) -> int:
    if isinstance(value, int) and 1 <= value <= MOST_SEEDS:
        return value
    result.errors["rest"] = f"seeds: expected a whole number from 1 to {MOST_SEEDS}, got {value!r}"
    return 1


def place_of(message: str) -> str:
    """Return the section that a message is about, by the word it begins with.

    >>> place_of("k_bsp: k = 50"), place_of("consistency 'ssp': -1"), place_of("batch_size: too small")
    ('strategy', 'strategy', 'rest')
    """
    head = message.replace(":", " ").split()[0].partition(".")[0] if message.strip() else ""
    if head in SECTIONS:
        return head
    inside = (*DOMAINS, "switching")
    named = head in CATALOGUE or any(head in REGISTRY.get(domain, {}) for domain in inside)
    return "strategy" if named or head in inside or head == "switch" else "rest"


def _disable(plain: Mapping[str, Any], rest: Mapping[str, Any], result: CheckResult) -> None:
    """Find the strategies and parts that do not fit the other settings."""
    size = (len(result.speeds), rest.get("batch_size", 128)) if result.speeds else None
    strategy = plain.get("strategy", {})
    result.disabled["strategy"] = {
        name: why for name in CATALOGUE if (why := _refusal({"name": name}, size)) is not None
    }
    if "consistency" not in strategy:
        return
    for domain in DOMAINS:
        found = {}
        for name in REGISTRY.get(domain, {}):
            if name != strategy.get(domain, {}).get("name"):
                why = _refusal({**strategy, domain: {"name": name}}, None)
                if why is not None:
                    found[name] = why
        result.disabled[f"strategy.{domain}"] = found


def _refusal(strategy: Mapping[str, Any], size: tuple[int, Any] | None) -> str | None:
    """Return why a strategy is invalid, by itself or for a number of workers and a global batch."""
    try:
        made = make_strategy(strategy)
        if size is not None and isinstance(size[1], int):
            made.check(*size)
    except SpecError as error:
        return str(error).partition(": ")[2] or str(error)
    return None


def without_none(value: Any) -> Any:
    """Return nested mappings without the entries that were left empty."""
    if isinstance(value, Mapping):
        return {
            name: without_none(below) for name, below in value.items() if below is not None and below != ""
        }
    return value


def as_values(experiment: Experiment) -> dict[str, Any]:
    spec = experiment.spec()
    sections = {key: spec.pop(key) for key in SECTIONS if key in spec}
    return {**sections, "strategy": named_spec(experiment.strategy), "rest": spec | {"seeds": 1}}


def what_repeats(experiment: Experiment) -> str:
    """Return a phrase on the reproducibility of the script, which depends on the backend."""
    if experiment.backend == "simulated":
        return "the same run, the same digest"
    return "the same experiment; a live run's timing and digest differ each time"


def as_python(experiment: Experiment, seeds: int = 1) -> str:
    """Return a script that runs an experiment, once for each seed, without default values.

    Notes
    -----
    Simulated, it gives the same log and so the same digest. Live, timing and digest differ each time; what
    repeats is that `replay` takes the recorded decisions again.
    """
    live = experiment.backend != "simulated"
    after = "print(run.summary()['reason'])" if live else "print(run.log.digest())"
    if seeds == 1:
        work = f"run = ps.run(experiment)\n{after}\n"
    else:
        work = f"runs = [ps.run(experiment.but(seed=experiment.seed + i)) for i in range({seeds})]\n"
        work += f"for run in runs:\n    {after}\n"
    return f"import psbench as ps\n\nexperiment = ps.Experiment(\n{_arguments(experiment)})\n{work}"


def _arguments(experiment: Experiment) -> str:
    spec, plain, own = experiment.spec(), Experiment().spec(), own_parts(experiment)
    spec["strategy"] = _brief(named_spec(experiment.strategy), make_strategy)
    for key in ("data", "model", "cluster", "sharding", "optimizer"):
        if key in own:
            continue
        spec[key] = _brief(spec[key], lambda value, key=key: _section(key, value))
        plain[key] = _brief(plain[key], lambda value, key=key: _section(key, value))
    # always said, so that the script reads by itself
    said = ("data", "model", "cluster", "strategy", "stop", "seed")
    kept = {name: value for name, value in spec.items() if name in said or value != plain.get(name)}
    return "".join(
        f"    {name}=...,  # yours: {own[name].type}\n"
        if name in own
        else f"    {name}={_indented(value, 5 + len(name))},\n"
        for name, value in kept.items()
    )


def _indented(value: Any, columns: int) -> str:
    """Return a value as Python source, with continuation lines indented."""
    text = pprint.pformat(value, width=100 - columns, sort_dicts=False)
    return text.replace("\n", "\n" + " " * columns)


def _brief(value: dict[str, Any], make: Any) -> Any:
    """Return the shortest mapping, or name, with the same meaning."""
    whole = _spec(make(value))
    kept = dict(value)
    for key in [key for key in value if key != "name"]:
        fewer = {name: item for name, item in kept.items() if name != key}
        try:
            if _spec(make(fewer)) == whole:
                kept = fewer
        except SpecError:
            continue
    return kept["name"] if set(kept) == {"name"} else kept


def _spec(made: Any) -> Any:
    return (
        made.spec()
        if hasattr(made, "spec")
        else made.model_dump(mode="json")
        if isinstance(made, BaseModel)
        else made
    )
