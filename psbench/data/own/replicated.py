"""A real data set, repeated until it has a given size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, cast

from pydantic import Field, SerializeAsAny, field_validator

from psbench.core.part import make_part
from psbench.core.specification import parameter
from psbench.data.base import Dataset, DataSource
from psbench.data.own.entry import as_data
from psbench.errors import ParameterError
from psbench.seeds import Streams
from psbench.system.limits import check_memory


class Replicated(DataSource):
    """Repeat the training samples of another data set, in order, up to a given number.

    Raises
    ------
    ParameterError
        If the data set has more training samples than that, or memory does not hold the repeated ones.

    Notes
    -----
    Reduces to: the data set itself, if it has as many samples.
    The validation set is not repeated. The mean loss and its gradient over whole repetitions are those of the
    data set: only what a mini-batch, an epoch and a scan of the data cost differs.
    Our reading: a size is given in samples, where the thesis fills the memory of a cluster.

    Examples
    --------
    >>> Replicated(data="digits", samples=5000).load(Streams(0)).train_x.shape
    torch.Size([5000, 1, 8, 8])
    """

    name: ClassVar[str] = "replicated"
    source: ClassVar[str] = "thesis 2.3"

    data: SerializeAsAny[DataSource] = Field(
        default_factory=lambda: cast(DataSource, make_part("data", "digits")),
        description="the data set that is repeated",
        json_schema_extra={"unit": "", "source": "thesis 2.3"},
    )
    samples: int = parameter(10_000, "training samples after the repetition", unit="samples", ge=1)

    @field_validator("data", mode="before")
    @classmethod
    def _data(cls, value: Any) -> DataSource:
        return as_data(value)

    @property
    def travels(self) -> bool:
        """Return True if the repeated data set has to be sent; see `DataSource.travels`."""
        return self.data.travels

    def bare(self) -> DataSource:
        """Return the data set without Python objects."""
        return Replicated(data=self.data.bare(), samples=self.samples)

    def load(self, streams: Streams) -> Dataset:
        """Return the data set with its training samples repeated."""
        import torch

        found = self.data.load(streams)
        if found.shards is not None:
            raise ParameterError("data 'replicated': the data is already divided among the workers")
        size = len(found.train_y)
        if size > self.samples:
            raise ParameterError(
                f"data 'replicated': {self.data.name!r} already has {size} training samples; "
                f"set samples to {size} or more"
            )
        per_sample = found.train_x[0].nbytes + found.train_y[0].nbytes
        what = f"data 'replicated': samples = {self.samples} of {self.data.name!r}"
        check_memory(per_sample * self.samples, what, "lower samples")
        where = torch.arange(self.samples) % size
        columns = {name: column[where.numpy()] for name, column in found.columns.items()}
        x, y = found.train_x[where], found.train_y[where]
        return replace(found, name=self.name, train_x=x, train_y=y, columns=columns)
