"""`psbench fuzz`: play random schedules on the engine, and print coverage and failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from psbench.cli.app import as_json_text
from psbench.cli.options import AsJson

if TYPE_CHECKING:
    from psbench_fuzz import Campaign


def fuzz_command(
    schedules: Annotated[int, typer.Option(min=1, help="Number of schedules to play.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed plays the same schedules.")] = 0,
    events: Annotated[int, typer.Option(min=1, help="Events per schedule before its faults end.")] = 80,
    strategy: Annotated[
        list[str] | None,
        typer.Option(help="A strategy of the catalogue; may be repeated. Without it, drawn from all parts."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Number of processes; by default one per core.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Fuzz the engine: random schedules of arrivals, deaths, joins, delays, timers, switches and restarts.

    After each event the fuzzer checks the invariants and compares the answer with a second implementation of
    the rules. After the faults end, the strategy must make progress. Half of the schedules are drawn freely,
    the other half test one part each, in turn. A failing schedule is shrunk and printed as a test. The exit
    code is 1 if a schedule failed.

    \b
    Examples:
      psbench fuzz --schedules 1000
      psbench fuzz --strategy ssp --strategy hermes --seed 7
    """
    from psbench.progress_events import tell
    from psbench_fuzz import run_campaign

    def show(campaign: Campaign) -> None:
        tell(f"{campaign.per_second:.0f} schedules a second", campaign.schedules / schedules)

    done = run_campaign(schedules, seed, events, tuple(strategy or ()), processes, show)
    print(as_json_text(done.plain()) if as_json else _text(done))
    return 1 if done.findings else 0


def _text(done: Campaign) -> str:
    from psbench_fuzz.schedule import KINDS

    lines = [
        f"{done.schedules} schedules, {done.events} events in {done.seconds:.1f} s: "
        f"{done.per_second:.1f} schedules a second",
        f"{len(done.pairs)} pairs of parts; choices by kind:",
        *(f"  {done.kinds[kind]:>9}  {what}" for kind, what in KINDS.items()),
        f"{done.failures} failed" + (", of these forms:" if done.findings else ""),
    ]
    for finding in done.findings:
        lines += ["", finding.error, "", finding.test]
    return "\n".join(lines)
