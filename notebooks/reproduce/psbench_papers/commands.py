"""`psbench reproduce` and `psbench verify`: published results beside ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from psbench.cli.app import FAILED, as_json_text, check_there, put, say
from psbench.cli.options import AsJson, Processes
from psbench.cli.starting import starting
from psbench.cli.stopping import terminable
from psbench.errors import DataError, SpecError
from psbench.system.files import check_writable

if TYPE_CHECKING:
    from psbench.runs.sweeps.execution import Progress
    from psbench_papers.claim import Scale
    from psbench_papers.outcome import Reproduction
    from psbench_papers.records import PaperRecord

_OUT = Path("runs/papers")
_Paper = Annotated[
    str | None,
    typer.Argument(metavar="PAPER", help="strategy_switch, hermes, adacomm, thesis, ..., or your folder."),
]
_Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Folder of data sets; by default PSBENCH_DATA. MNIST is in DIR/MNIST/raw; scale medium "
        "reads the images of CIFAR-10 in DIR/train/CLASS and DIR/test/CLASS.",
    ),
]
_Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for runs and report.html.")]


def reproduce_command(
    paper: _Paper = None,
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help='One table or figure, such as "Table III".')
    ] = None,
    scale: Annotated[
        Literal["smoke", "quick", "medium", "full"],
        typer.Option(
            help="smoke takes seconds, quick minutes on small data, medium hours on a part of CIFAR-10 (the "
            "claims about accuracy that need more than digits), full is the published size."
        ),
    ] = "quick",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds of each row; by default set by the scale.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All papers.")] = False,
    processes: Processes = None,
    stored: Annotated[
        bool, typer.Option("--stored", help="Run nothing: evaluate the stored runs that come with psbench.")
    ] = False,
    data: _Data = None,
    out: _Out = _OUT,
    as_json: AsJson = False,
) -> int:
    """Repeat published experiments, and report for each claim whether it holds here.

    Prints the expected cost first. Runs that are stored in DIR are reused, so a command that was
    stopped can be resumed.

    \b
    Examples:
      psbench reproduce strategy_switch --scale quick
      psbench reproduce hermes "Table III" --seeds 5 --out runs/hermes
      psbench reproduce --all --scale quick --json
      psbench reproduce --all --stored --out runs/stored
      psbench reproduce sync_switch --scale medium --data DIR
    """  # noqa: D301
    from psbench_papers.cells import rows_of
    from psbench_papers.library import load

    _look_for_data(data)
    check_writable(out)
    names: Sequence[str] = _asked(paper, every)
    papers = [load(name) for name in names]
    for each in papers:
        rows_of(each, scale, table)  # a name that cannot be is said before what is large is loaded
    if stored:
        names = _stored_papers(names, table, scale, seeds)
    with starting("psbench: loading torch"):
        from psbench_papers.page import write_page
        from psbench_papers.records import write_records
        from psbench_papers.session import plan, reproduce, stored_reproduction
    from psbench.system.cores import cores
    from psbench_papers.text import how_to_run

    beside = []
    if stored:
        found = [stored_reproduction(name, scale) for name in names]
        if scale == "quick":
            beside = [stored_reproduction(name, "medium") for name in _with_runs(names, "medium")]
    else:
        plans = [plan(each, scale, seeds, table) for each in papers]
        at_once = processes or cores()
        for planned in plans:
            for line in planned.words(at_once):
                say(line)
        with terminable():
            found = [reproduce(planned, out, at_once, _progress(planned.paper.name)) for planned in plans]
        for done in found:
            write_records(out / f"{done.paper.name}-{scale}.parquet", done.records.values())
    report = write_page(out / "report.html", found, beside)
    if as_json:
        put(as_json_text(_plain(found)))
    else:
        for one in found:
            put(_text(one), end="")
    for line in (line for one in found for line in how_to_run(one)):
        say(line)
    say(f"saved in {out}; open {report}")
    return 0


def verify_command(
    paper: _Paper = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of stored runs; by default those that come with psbench."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for choosing the run.")] = 0,
    scale: Annotated[
        Literal["quick", "medium"], typer.Option(help="Scale of the stored runs that come with psbench.")
    ] = ("quick"),
    data: _Data = None,
    as_json: AsJson = False,
) -> int:
    """Repeat a random stored run of a paper, and compare the digests.

    Some runs need MNIST, in DIR (--data) or in PSBENCH_DATA. Without MNIST another
    run is drawn, with a message.

    \b
    Examples:
      psbench verify strategy_switch --seed 3
      psbench verify strategy_switch --seed 3 --data DIR
      psbench verify hermes --out runs/papers
    """  # noqa: D301
    _look_for_data(data)
    check_there(out)
    (name,) = _asked(paper, False)
    stored = _stored(name, out, scale)
    from psbench_papers.session import difference

    record, summary = _drawn_again(stored, seed, data)
    differs = difference(record, summary)
    if as_json:
        put(as_json_text({"experiment": record.experiment, "seed": record.seed, "same": not differs}))
    else:
        word = "DIFFERENT" if differs else "the same"
        put(f"{word}: log {summary['digest'][:16]}, stored {record.digest[:16]}")
    if differs:
        say(differs)
    return FAILED if differs else 0


def _drawn_again(
    stored: list[PaperRecord], seed: int, data: Path | None
) -> tuple[PaperRecord, dict[str, Any]]:
    """Repeat a randomly chosen stored run; skip runs whose data set is missing.

    Raises
    ------
    DataError
        If the data sets of all runs are missing.
    """
    from psbench_papers.session import again, data_of, draw

    without: list[str] = []
    while True:
        record = draw(stored, seed, without)
        role = f"{record.role} {record.label}".strip()
        say(f"runs again: {record.experiment}, seed {record.seed} ({role})")
        try:
            return record, again(record)
        except DataError as error:
            if data is not None:
                raise
            without.append(data_of(record))
            say(f"{error}; --data DIR gives the folder of the data sets. Another run is drawn:")


def _look_for_data(data: Path | None) -> None:
    """Look for data sets in a folder.

    Raises
    ------
    SpecError
        If it is not there.
    """
    if data is None:
        return
    if not data.is_dir():
        raise SpecError(f"--data {data}: there is no such folder")
    os.environ["PSBENCH_DATA"] = str(data)


def _stored_papers(names: Sequence[str], table: str | None, scale: Scale, seeds: int | None) -> Sequence[str]:
    """Return the given papers that have stored runs of a scale; a single paper is returned as is."""
    if table is not None or seeds is not None:
        raise SpecError("--stored judges all stored runs of a paper: leave out the table and --seeds")
    return _with_runs(names, scale) or names[:1]


def _with_runs(names: Sequence[str], scale: Scale) -> list[str]:
    from psbench_papers.library import stored

    return [name for name in names if stored(name, scale).is_file()]


def _asked(paper: str | None, every: bool) -> tuple[str, ...]:
    from psbench_papers.library import NAMES

    if bool(paper) == every:
        raise SpecError(f"name one paper of {', '.join(NAMES)}" + ("; or --all without one" if every else ""))
    return NAMES if every else (str(paper),)


def _stored(name: str, out: Path | None, scale: Scale) -> list[PaperRecord]:
    from psbench_papers.library import load
    from psbench_papers.records import records_in

    called = load(name).name  # before what takes long to load
    if out is None:
        from psbench_papers.session import stored_records

        return stored_records(name, scale)
    return [record for record in records_in(out) if record.paper == called]


def _progress(name: str) -> Callable[[Progress], None]:
    """Return a function that prints a line whenever a run has ended."""
    from psbench.progress import time_left

    ended = -1

    def tell(now: Progress) -> None:
        nonlocal ended
        if now.total and now.done != ended:
            ended = now.done
            left = time_left(now.fraction, now.spent_s)
            say(f"[{now.done}/{now.total}] {name}" + (f", {left}" if left else ""))

    return tell


def _plain(found: list[Reproduction]) -> dict[str, object]:
    return {
        "scale": found[0].scale,
        "claims": [claim.as_dict() for each in found for claim in each.claims],
        "verdicts": {each.paper.name: each.counts() for each in found},
        "rows": [outcome.as_dict() for each in found for outcome in each.outcomes],
        "sensitivity": [vars(s) | {"paper": each.paper.name} for each in found for s in each.sensitivities],
    }


def _text(found: Reproduction) -> str:
    from psbench_papers.text import claim_lines, remarks, summary

    said = [found.paper.title, *claim_lines(found.claims), *remarks(found)]
    return "\n".join([*said, f"{found.paper.name}: {summary(found)}", ""])
