"""`psbench doctor`: properties of a Dask cluster, and the problems to expect on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from psbench.cli.app import FAILED, app, as_json_text, put, read_live, say
from psbench.cli.options import AsJson, Scheduler, Settings, Spec
from psbench.cli.starting import starting
from psbench.percents import percent

if TYPE_CHECKING:
    from psbench.backends.dask import Diagnosis


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

    It takes up to two minutes: of many workers not all pairs are timed, and the output says how many.
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
        "at_once": at_once,
        "steps": steps,
        "problems": found.problems,
        "cluster": cluster,
    }


def _text(found: Diagnosis) -> str:
    lines = [f"{len(found.workers)} free Dask workers"]
    for worker, each in found.steps.items():
        sample_ms, step_ms = 1e3 * each.seconds_per_sample, 1e3 * each.seconds_per_step
        lines.append(
            f"  {worker}: {sample_ms:.4g} ms a sample, {step_ms:.3g} ms a step, ± {percent(each.sigma, 1)}"
        )
    for (start, end), link in found.links.items():
        what = "unreachable"
        if link is not None:
            both = f"{link.up_mbit_s:.0f} Mbit/s up, {link.down_mbit_s:.0f} down"
            what = f"{1e3 * link.latency_s:.3g} ms, {both}"
        lines.append(f"  {start} to {end}: {what}")
    if found.links:
        lines.append(f"  {found.sampled}")
    if rates := [link.up_mbit_s for link in found.at_once.values() if link is not None]:
        lines.append(
            f"  {len(rates)} at once to {next(iter(found.at_once))[1]}: {sum(rates):.0f} Mbit/s together"
        )
    lines += [f"problem: {problem}" for problem in found.problems] or ["no problems found"]
    return "\n".join(lines)
