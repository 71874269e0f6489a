"""CSV layouts of published tables."""

from __future__ import annotations

from dataclasses import dataclass

from psbench.data.base import Task


@dataclass(frozen=True)
class TableLayout:
    """Columns of a file without a header, and the number of its rows for validation.

    Parameters
    ----------
    columns : tuple of str
        What they are called; the first is the target.
    task : "classification" or "regression"
    classes : tuple of str
        What the targets 0, 1, ... are called; empty where they are numbers.
    rows, val_rows : int
        Of the published file; the last `val_rows` are for validation.
    """

    columns: tuple[str, ...]
    task: Task
    classes: tuple[str, ...]
    rows: int
    val_rows: int

    @property
    def val_fraction(self) -> float:
        """The published share of validation rows; a file of the published size gets the published number."""
        return self.val_rows / self.rows


def _higgs() -> tuple[str, ...]:
    jets = [f"jet {n} {what}" for n in range(1, 5) for what in ("pt", "eta", "phi", "b-tag")]
    masses = [f"m_{what}" for what in ("jj", "jjj", "lv", "jlv", "bb", "wbb", "wwbb")]
    first = ("lepton pT", "lepton eta", "lepton phi", "missing energy magnitude", "missing energy phi")
    return ("label", *first, *jets, *masses)


#: by name. HIGGS: Baldi, Sadowski, Whiteson (2014), UCI; 1 is signal. YearPredictionMSD: Bertin-Mahieux
#: (2011), UCI; twelve means and 78 covariances of timbre
LAYOUTS: dict[str, TableLayout] = {
    "higgs": TableLayout(_higgs(), "classification", ("background", "signal"), 11_000_000, 500_000),
    "year_prediction_msd": TableLayout(
        ("year", *(f"timbre mean {n}" for n in range(12)), *(f"timbre covariance {n}" for n in range(78))),
        "regression",
        (),
        515_345,
        51_630,
    ),
}
