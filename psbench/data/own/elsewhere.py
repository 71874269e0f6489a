"""Data that a function of a person's own package makes, by name: for files and the command line."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from psbench.core.imports import check_target, imported
from psbench.core.specification import parameter
from psbench.data.base import Dataset, DataSource
from psbench.data.own.entry import as_data
from psbench.errors import DataError, PsbenchError
from psbench.seeds import Streams


class Imported(DataSource):
    """Data by where the function is that returns it, or the class of a torch Dataset.

    What it returns may be all that an experiment takes as its data, such as (X, y). Every process of a live
    run calls it: with files of its own each, data stays where it is.

    Parameters
    ----------
    target : str
        Module and name, as `my.package:load`; found as Python's `import` finds it, or in the directory that
        psbench was started in.
    arguments : mapping
        Keyword arguments of the call.

    Raises
    ------
    DataError, ParameterError
        On loading, if it cannot be imported or called, or does not return data.
    """

    name: ClassVar[str] = "import"
    source: ClassVar[str] = "your own code"

    target: str = parameter("", "module and name of what returns it, as my.package:load")
    arguments: dict[str, Any] = Field(
        default_factory=dict,
        description="keyword arguments of the call",
        json_schema_extra={"unit": "", "source": ""},
    )

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if self.target:
            check_target(f"data {self.name!r}", self.target)
        return self

    def load(self, streams: Streams) -> Dataset:
        """Return what the target returns, as a data set."""
        make = imported(f"data {self.name!r}", self.target)
        try:
            found = make(**self.arguments)
        except PsbenchError:
            raise
        except Exception as error:
            raise DataError(f"data {self.target!r} failed: {type(error).__name__}: {error}") from error
        return as_data(found).load(streams)
