"""One panel per notebook cell: running the cell again closes its previous panel."""

from __future__ import annotations

import weakref

from ipywidgets import Widget

#: the panels by the id of the cell that made them
_panels: dict[str, weakref.ref[Widget]] = {}


def replace_panel_of_this_cell(panel: Widget) -> None:
    """Close the panel that the same cell made when it was run before."""
    cell = _current_cell()
    if cell is None:
        return
    reference = _panels.get(cell)
    earlier = reference() if reference is not None else None
    if earlier is not None:
        earlier.close()
    _panels[cell] = weakref.ref(panel)


def _current_cell() -> str | None:
    """Return the id of the cell that is being run; None outside a notebook."""
    from IPython import get_ipython

    shell = get_ipython()
    parent = shell.get_parent() if shell is not None and hasattr(shell, "get_parent") else {}
    cell = parent.get("metadata", {}).get("cellId")
    return str(cell) if cell else None
