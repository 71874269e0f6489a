"""Data that a function of the user's own package makes, by name: for files and the command line."""

from __future__ import annotations

from typing import ClassVar

from psbench.core.imports import ImportedCall
from psbench.data.base import Dataset, DataSource
from psbench.data.own.entry import as_data
from psbench.errors import DataError, PsbenchError
from psbench.seeds import Streams


class ImportedData(ImportedCall, DataSource):
    """Data from an importable function or torch Dataset class; see `ImportedCall`.

    What it returns may be all that an experiment takes as its data, such as (X, y). Every process of a live
    run calls it: with files of its own each, data stays where it is.

    Raises
    ------
    DataError, ParameterError
        On loading, if it cannot be imported or called, or does not return data.
    """

    name: ClassVar[str] = "import"

    def load(self, streams: Streams) -> Dataset:
        """Return the target's return value as a data set."""
        make = self.imported()
        try:
            found = make(**self.arguments)
        except PsbenchError:
            raise
        except Exception as error:
            raise DataError(f"data {self.target!r} failed: {type(error).__name__}: {error}") from error
        return as_data(found).load(streams)
