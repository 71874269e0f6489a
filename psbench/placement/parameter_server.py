"""Parameters on one or more servers."""

from __future__ import annotations

from typing import ClassVar, Literal

from psbench.core.part import Placement, parameter


class ParameterServer(Placement):
    """Servers hold the parameters; a worker pushes to all of them and is answered by all of them.

    Parameters
    ----------
    servers : int, >= 1
        Number of shards that the flat vector is cut into.
    assignment : "contiguous"
        Ranges of equal length, to within one entry.

    Notes
    -----
    One worker sends and receives 32 d bits a step, whatever the number of servers; a server carries 2 n
    times that over their number.

    Source
    ------
    Li et al. 2014; thesis 3.2.4; `protocols` 1.1, 10.1.

    Examples
    --------
    >>> ParameterServer(servers=2).bytes_up(400, num_workers=4)
    400
    """

    name: ClassVar[str] = "parameter_server"
    source: ClassVar[str] = "Li et al. 2014; thesis 3.2.4"

    servers: int = parameter(1, "number of server shards", unit="servers", source="thesis 3.2.4", ge=1, le=64)
    assignment: Literal["contiguous"] = parameter(
        "contiguous", "which parameters each server holds", source="protocols 10.1"
    )

    @property
    def num_servers(self) -> int:
        """Servers that share the parameters."""
        return self.servers
