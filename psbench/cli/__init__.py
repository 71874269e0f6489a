"""The command line: its commands, the errors they print, and the exit codes."""

from __future__ import annotations

import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import typer

# commands register themselves, and the help lists them in this order
# isort: off
from psbench.cli.app import FAILED, INTERNAL, INTERRUPTED, TERMINATED, USAGE, app, say
from psbench.cli.commands import runs, detached, comparisons, sweeps, saved, exports, tools, doctor, twin  # noqa: F401

# isort: on
from psbench.cli.extensions import add_commands
from psbench.cli.file_progress import shown_progress
from psbench.cli.stopping import Terminated
from psbench.errors import (
    Cancelled,
    DamagedFile,
    DataError,
    DoubtfulComposition,
    ExtensionWarning,
    PsbenchError,
    SpecError,
)
from psbench.system.private_apis import wrong_usage

#: the commands that need no other module than those imported above
OWN = {each.name for each in app.registered_commands}
#: what Rich takes for the beginning of its markup
_MARKUP = re.compile(r"\[(?=[a-z#/@])")
#: characters of a name that a message repeats
_SHOWN = 200

_Usage: Any = wrong_usage()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        Without the program's name; by default those of the process.

    Returns
    -------
    int
        0 if all went well; 1 if a run failed or diverged; 2 for a command, specification or file that
        cannot be, before anything is computed; 70 for an error in psbench; 130 after
        Ctrl-C, 143 after SIGTERM.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        with _warnings_in_a_line(), shown_progress():
            # any command takes it, at any place
            words = [word for word in argv if word != "--debug"]
            code = _command(has_others=_asked(words) not in OWN).main(
                words, prog_name="psbench", standalone_mode=False
            )
    except _Usage as error:
        if not error.format_message():  # there was no command, and the help has been shown
            return USAGE
        context = error.ctx.command_path if error.ctx else "psbench"
        return _fail(f"{error.format_message().rstrip('.')}; see {context} --help", USAGE)
    except Terminated:
        return _fail("ended by SIGTERM", TERMINATED)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        sys.stderr.close()
        return 0
    except Cancelled as error:
        return _fail(str(error), INTERRUPTED)
    except MemoryError:
        _trace(argv)
        return _fail("memory is full; use less data, a smaller model or fewer workers", FAILED)
    except OSError as error:  # a name that no file can have, a disk that failed
        _trace(argv)
        place = f"{_shortened(str(error.filename))}: " if error.filename is not None else ""
        return _fail(f"{place}{error.strerror or error}", FAILED if error.filename is None else USAGE)
    except PsbenchError as error:
        _trace(argv)
        return _fail(str(error), USAGE if isinstance(error, (SpecError, DataError)) else FAILED)
    except Exception as error:
        _trace(argv)
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return _fail(f"internal: {what} (use --debug for the traceback)", INTERNAL)
    return code if isinstance(code, int) else 0


def _asked(words: Sequence[str]) -> str:
    """Return the requested command; empty if there is none."""
    return next((word for word in words if not word.startswith("-")), "")


@cache  # to make it of twenty functions and their annotations takes 50 ms
def _command(has_others: bool) -> Any:
    """Return the command with unformatted help: Rich would treat [a, b] as markup."""
    if has_others:
        add_commands()
    command: Any = typer.main.get_command(app)
    for each in (command, *command.commands.values()):
        for part in (each, *each.params):
            if text := getattr(part, "help", None):
                part.help = _MARKUP.sub(r"\\[", text)
    return command


def _shortened(name: str) -> str:
    return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}... ({len(name)} characters)"


def _fail(message: str, code: int) -> int:
    """Print an error as one line."""
    say(f"error: {' '.join(message.split())}")
    return code


@contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """Print a warning of psbench in one line, without the line of code that raised it."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, (DamagedFile, DoubtfulComposition, ExtensionWarning)):
                say(f"warning: {message}")
            else:
                usual(message, category, *where, **more)

        warnings.showwarning = show
        yield


def _trace(argv: Sequence[str]) -> None:
    if "--debug" in argv:
        traceback.print_exc()
