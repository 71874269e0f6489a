"""The application, and helpers of its commands: reading settings, printing.

Each command imports what it needs when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from psbench.cli.starting import starting
from psbench.errors import DataError
from psbench.system.files import why_missing
from psbench.terminal import shown

if TYPE_CHECKING:
    from psbench.causes import Answer
    from psbench.experiment import Experiment
    from psbench.optimal import OptimalTime
    from psbench.results.comparison import Comparison
    from psbench.runs.sweeps.search import Search
    from psbench.runs.sweeps.sweep import Sweep

#: exit codes: as usual for a shell, a wrong command is 2, an interrupt 130, SIGTERM 143; 70 is "internal
#: software error"
FAILED, USAGE, INTERNAL, INTERRUPTED, TERMINATED = 1, 2, 70, 130, 143

app = typer.Typer(
    help="Run, compare and inspect data-parallel training under different synchronisation strategies.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        import psbench

        put(psbench.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; allowed after any command.")
    ] = False,
) -> None:
    pass


def table_width() -> int | None:
    """Return None if the terminal has a width, else a width that cuts no table."""
    return None if sys.stdout.isatty() else 200


def read_experiment(spec: Path | None, values: dict[str, Any]) -> Experiment:
    """Return the experiment of a specification, or the default one, with some values changed."""
    with starting("psbench: reading the specification"):
        from psbench.experiment import Experiment

        found = Experiment.from_spec({}, values) if spec is None else Experiment.from_yaml(spec, values)
    if found.backend == "dask":
        from psbench.clusters.scheduler import address_of

        check_scheduler(address_of(found.scheduler, found.connection), found.connection.connect_within_s)
    return found


def check_scheduler(address: str | None, within_s: float | None = None) -> None:
    """Raise at once if nothing listens at an address; loading torch and Dask takes seconds.

    Raises
    ------
    ParameterError
    """
    from psbench.clusters.connection import ConnectionSettings
    from psbench.clusters.scheduler import check_address, check_port

    if address is not None:
        check_address(address)
        check_port(address, ConnectionSettings().connect_within_s if within_s is None else within_s)


def read_live(spec: Path | None, settings: list[str] | None, scheduler: str | None) -> Experiment:
    """Return the experiment of a specification on Dask, with some values changed."""
    values = {"backend": "dask"} | read_settings(settings)
    return read_experiment(spec, values if scheduler is None else values | {"scheduler": scheduler})


def check_there(*paths: Path | None) -> None:
    """Raise if a named file or folder does not exist.

    Raises
    ------
    DataError
    """
    for problem in filter(None, (why_missing(path) for path in paths if path is not None)):
        raise DataError(problem)


def read_settings(texts: list[str] | None) -> dict[str, Any]:
    """Return the values that `--set` gives, by their paths."""
    from psbench.specfile import parse_setting

    return dict(parse_setting(text) for text in texts or ())


def as_json_text(content: Any) -> str:
    """Return plain data as JSON for standard output."""
    return json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)


def show(found: Answer | Comparison | OptimalTime | Search | Sweep, as_json: bool) -> None:
    """Print a comparison, search, sweep or other answer as JSON, or as a table."""
    text = as_json_text(found.to_dict()) + "\n" if as_json else found.text(table_width())
    put(text, end="")


def put(text: object, end: str = "\n") -> None:
    """Print a text on standard output."""
    print(shown(text), end=end)


def say(text: object) -> None:
    """Print a line on standard error."""
    print(shown(text), file=sys.stderr, flush=True)
