"""A figure: a chart, the table it shows, and a sentence about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd


@dataclass(frozen=True)
class Figure:
    """A chart with its table (for screen readers), a note on how to read it, and its name.

    The name is one of `names.TITLES`; several figures may have the same, as those of several switches.
    """

    chart: alt.Chart | alt.LayerChart | alt.FacetChart
    table: pd.DataFrame
    note: str = ""
    name: str = ""

    @property
    def spec(self) -> dict[str, Any]:
        """The Vega-Lite specification, without a configuration."""
        return spec(self.chart)


def spec(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Return a chart as a Vega-Lite specification without a configuration: the page gives light or dark.

    Examples
    --------
    >>> from psbench.charts import curve
    >>> spec(curve("rows", labels=["asp"]))["data"]
    {'name': 'rows'}
    """
    # altair's check takes half of the time; that all figures follow the schema is tested
    plain: dict[str, Any] = chart.to_dict(validate=False)
    plain.pop("config", None)
    return plain
