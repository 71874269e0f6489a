"""`psbench doctor`: properties of a Dask cluster, and the problems to expect on it."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from psbench.cli.app import FAILED, app, as_json_text, put, read_live, say
from psbench.cli.options import AsJson, Scheduler, Settings, Spec
from psbench.cli.starting import starting
from psbench.percents import percent

if TYPE_CHECKING:
    from psbench.backends.dask import Diagnosis
    from psbench.backends.dask.doctor import Link, MeasuredSteps

#: workers, and problems of one kind, up to which each has a line; and how many of the slowest have one
_MOST, _SLOWEST = 8, 3


@app.command("doctor")
def doctor_command(
    spec: Spec = None,
    settings: Settings = None,
    scheduler: Scheduler = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the cluster as YAML, for --set cluster=..."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Examine a Dask cluster: versions, links between pairs, seconds per sample, expected problems.

    It takes up to two minutes: of many workers not all are timed, and the output says how many. Of more than
    eight workers it shows medians and the slowest ones; --json lists all.
    Exit code 1 if there are problems.

    \b
    Examples:
      psbench doctor
      psbench doctor experiment.yaml --scheduler tcp://10.0.0.1:8786 --out cluster.yaml
    """  # noqa: D301
    experiment = read_live(spec, settings, scheduler)
    with starting("psbench: loading torch and Dask"):
        from psbench.backends.dask import diagnose
        from psbench.specfile import dump_yaml
        from psbench.system.files import check_new_file, write_text
    if out is not None:
        check_new_file(out)
    found = diagnose(experiment, on_step=say)
    cluster = found.cluster() if found.steps else {}
    put(as_json_text(_plain(found, cluster)) if as_json else _text(found))
    if out is not None and cluster:
        write_text(out, dump_yaml({"cluster": cluster}))
        say(f"wrote {out}")
    return FAILED if found.problems else 0


def _plain(found: Diagnosis, cluster: dict[str, Any]) -> dict[str, Any]:
    links, at_once = (
        [
            {"from": start, "to": end} | ({} if link is None else link._asdict())
            for (start, end), link in some.items()
        ]
        for some in (found.links, found.at_once)
    )
    steps = [{"worker": worker} | each._asdict() for worker, each in found.steps.items()]
    return {
        "links": links,
        "sampled": found.sampled,
        "sampled_steps": found.sampled_steps,
        "at_once": at_once,
        "steps": steps,
        "problems": found.problems,
        "cluster": cluster,
    }


def _text(found: Diagnosis) -> str:
    count, machines = len(found.workers), found.num_machines
    where = f"on {machines:,} machines" if machines > 1 else "on one machine"
    lines = [f"{count:,} free Dask workers {where}"]
    if count <= _MOST:
        lines += [_steps_line(*each) for each in found.steps.items()]
        lines += [_link_line(*each) for each in found.links.items()]
    else:
        lines += [*_steps_summary(found), *_links_summary(found)]
    if found.steps and len(found.steps) < count:
        lines.append(f"  {found.sampled_steps}")
    if found.links:
        lines.append(f"  {found.sampled}")
    if rates := [link.up_mbit_s for link in found.at_once.values() if link is not None]:
        to = next(iter(found.at_once))[1]
        lines.append(f"  {len(rates)} at once to {to}: {sum(rates):.0f} Mbit/s together")
    lines += _problem_lines(found.problems) or ["no problems found"]
    return "\n".join(lines)


def _steps_line(worker: str, steps: MeasuredSteps) -> str:
    sample_ms, step_ms = 1e3 * steps.seconds_per_sample, 1e3 * steps.seconds_per_step
    return f"  {worker}: {sample_ms:.4g} ms a sample, {step_ms:.3g} ms a step, ± {percent(steps.sigma, 1)}"


def _link_line(ends: tuple[str, str], link: Link | None) -> str:
    what = "unreachable"
    if link is not None:
        both = f"{link.up_mbit_s:.0f} Mbit/s up, {link.down_mbit_s:.0f} down"
        what = f"{1e3 * link.latency_s:.3g} ms, {both}"
    return f"  {ends[0]} to {ends[1]}: {what}"


def _steps_summary(found: Diagnosis) -> list[str]:
    """Return lines about the steps of many workers: their middle and range, and the slowest workers."""
    if not found.steps:
        return []
    each = [*found.steps.values()]
    a_sample = _spread([1e3 * steps.seconds_per_sample for steps in each], ".3g")
    a_step = _spread([1e3 * steps.seconds_per_step for steps in each], ".3g")
    slowest = sorted(found.steps.items(), key=lambda item: -item[1].seconds_per_sample)[:_SLOWEST]
    return [
        f"steps, median (range): {a_sample} ms a sample, {a_step} ms a step; the slowest:",
        *(_steps_line(*item) for item in slowest),
    ]


def _links_summary(found: Diagnosis) -> list[str]:
    """Return lines about the links of many workers: their middle and range, and the slowest links."""
    there = {ends: link for ends, link in found.links.items() if link is not None}
    if not there:
        return []
    ms = _spread([1e3 * link.latency_s for link in there.values()], ".3g")
    up, down = (
        _spread([getattr(link, way) for link in there.values()], ".0f")
        for way in ("up_mbit_s", "down_mbit_s")
    )
    slowest = sorted(there.items(), key=lambda item: min(item[1].up_mbit_s, item[1].down_mbit_s))[:_SLOWEST]
    return [
        f"links, median (range): {ms} ms, {up} Mbit/s up, {down} down; the slowest:",
        *(_link_line(*item) for item in slowest),
    ]


def _spread(values: list[float], digits: str) -> str:
    return f"{statistics.median(values):{digits}} ({min(values):{digits}} to {max(values):{digits}})"


def _problem_lines(problems: list[str]) -> list[str]:
    """Return a line for each problem, and of many of one kind only the first ones, with their number.

    >>> _problem_lines([f"slow link: a to {number}" for number in range(20)])[-2:]
    ['problem: slow link: a to 7', 'problem: slow link: 12 more; --json lists all']
    """
    kinds = dict[str, list[str]]()
    for problem in problems:
        kinds.setdefault(problem.partition(":")[0], []).append(problem)
    lines = list[str]()
    for kind, some in kinds.items():
        lines += [f"problem: {problem}" for problem in some[:_MOST]]
        if more := some[_MOST:]:
            lines.append(f"problem: {kind}: {len(more):,} more; --json lists all")
    return lines
