"""Data frames created on demand, so that pandas is imported only then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def table(values: Any, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Return a `pandas.DataFrame` of columns by name, or of rows.

    The processes of a run read its log too, and importing pandas takes a third as long as importing torch.
    """
    import pandas as pd

    return pd.DataFrame(values, columns=None if columns is None else [*columns])
