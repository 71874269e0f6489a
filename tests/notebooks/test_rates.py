"""A strategy that a notebook composes learns, at the size that a student sees or at a smaller one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from smoke_sizes import small
from toybox import take_out

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "06_write_a_strategy.ipynb"


@pytest.mark.slow
def test_the_rule_that_is_written_in_the_sixth_learns() -> None:
    cells = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, 4).cells}
    space: dict[str, Any] = {}
    sizes = small(cells["06-01"], {"EPOCHS": "6"})
    try:
        for source in (sizes, cells["06-03"], cells["06-09"], cells["06-12"]):
            exec(source, space)
    finally:
        take_out("deadline_bsp")
    accuracies = space["comparison"].table().set_index("strategy")["val_accuracy"]
    assert accuracies.index.tolist() == ["bsp", "asp", "deadline_bsp"]
    assert (accuracies > 0.9).all(), accuracies
    assert not [text for text in space["comparison"].warnings if "learning rate" in text]
