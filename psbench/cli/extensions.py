"""Commands of other packages: entry points of the group `psbench.commands`.

The name of an entry point is the command's; its object is a function with typer's annotations, or a
`typer.Typer` with commands below it. They are loaded only when one of them, or the help, is asked for.
"""

from __future__ import annotations

import typer

from psbench.cli.app import app
from psbench.system.plugins import installed

GROUP = "psbench.commands"


def add_commands() -> None:
    """Add the commands of installed packages to the application."""
    taken = {str(each.name) for each in app.registered_commands}
    for name, command in installed(GROUP, taken):
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
