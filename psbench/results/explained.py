"""A report's section on why a run is worse than another: the protocol that an answer keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from psbench.charts import Figure


class Explained(Protocol):
    """An answer, as `psbench.why` gives it.

    Attributes
    ----------
    question, sentence : str
    explains : bool
        Whether there is a figure.
    remarks : list of str
        What could not be asked, and why.
    """

    @property
    def question(self) -> str: ...

    @property
    def sentence(self) -> str: ...

    @property
    def explains(self) -> bool: ...

    @property
    def remarks(self) -> list[str]: ...

    def figure(self) -> Figure:
        """Return the waterfall."""
        ...

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the table of causes."""
        ...

    def joint_cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the table of interactions."""
        ...

    def computed_cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the table of the runs behind the answer."""
        ...
