"""`psbench list`, `psbench generate` and `psbench lab`: catalogue, synthetic data, notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from psbench.cli.app import app, as_json_text, put, say
from psbench.cli.options import AsJson


@app.command("list")
def list_command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="strategies, parts, sharding, rules, datasets, models, clusters, optimizers, losses or "
            "metrics.",
        ),
    ],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="An entry to show in full.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the strategies, parts, data sets, models, ...; with a name, show one in full.

    \b
    Examples:
      psbench list strategies
      psbench list strategies ssp
      psbench list clusters --json
    """  # noqa: D301
    from psbench.cli.catalogue import entries, entry_of
    from psbench.cli.catalogue_text import print_entries, print_entry

    found = entries(kind) if name is None else entry_of(kind, name)
    if as_json:
        put(as_json_text(found))
    elif isinstance(found, dict):
        print_entry(found)
    else:
        print_entries(kind, found)


@app.command("generate")
def generate_command(
    layout: Annotated[
        str, typer.Argument(metavar="LAYOUT", help="The columns: higgs or year_prediction_msd.")
    ],
    rows: Annotated[int, typer.Option(min=1, metavar="N", help="Number of rows, such as 1_000_000.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The CSV file; by default LAYOUT.csv.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Root of every random stream.")] = 0,
    force: Annotated[bool, typer.Option("--overwrite", "--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a table of any size with the columns of HIGGS or YearPredictionMSD and made-up numbers.

    A row takes about 300 bytes (higgs) or 1 kB, whatever the length of the file. A model can
    learn from the numbers, but they contain no physics and no music.

    \b
    Examples:
      psbench generate higgs --rows 1_000_000 --out higgs.csv
      psbench run --set 'data={name: csv, path: higgs.csv, layout: higgs}' --set model=logistic
    """  # noqa: D301
    from psbench.data import generate

    path = generate(layout, out or Path(f"{layout}.csv"), rows, seed=seed, overwrite=force)
    say(f"wrote {rows:,} rows, {path.stat().st_size / 1e6:.4g} MB")
    put(path)


@app.command("lab")
def lab_command(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", help="Folder to open; by default a copy of the tutorials in psbench-tutorials."
        ),
    ] = None,
) -> int:
    """Start JupyterLab on the tutorials, or on a folder.

    Notebooks, and specifications with import, run code: open only those that you trust.
    """
    from psbench.cli.lab import start_lab

    return start_lab(folder)
