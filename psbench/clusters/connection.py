"""Settings of the connection to a running Dask cluster."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from psbench.core import Specification, parameter
from psbench.errors import ParameterError

_PORTS = re.compile(r"(\d{1,5})-(\d{1,5})")


class ConnectionSettings(Specification):
    """Settings of a live run's connection to Dask, except the scheduler's address.

    Parameters
    ----------
    tls_ca_file, tls_cert, tls_key : path or None
        For a scheduler at `tls://...`, all three or none: as files in PEM format. Without them those of
        Dask's own configuration (`distributed.comm.tls`) count.
    ports : str or None
        Where servers and workers of the run may listen, as "40000-40100"; None for any. A run needs one port
        for each server, and under All-Reduce one for each worker.
    hosts : "any", "spread" or "pack"
        Whether neighbouring roles are placed on different machines, as far as possible, or on few.
    answer_within_s : float, seconds
        What a Dask worker may take to answer before it counts as frozen. One that was started a moment ago on
        a busy machine is still importing.
    listen_within_s : float, seconds
        How long a parameter server may take to listen, and the processes of a cluster on this machine to come
        up.
    silence_s : float, seconds
        After how long without a sign of life another process of the run counts as gone: frozen, or cut off.
        One that has nothing to say gives a sign every two seconds.
    restart_within_s : float, seconds
        How long a run that goes on from a checkpoint waits at least for Dask workers, and any run for another
        that is being placed.
    settle_within_s : float, seconds
        What is not waited for longer, and done without: a last step, the scheduler while a run goes on.
    stamps : bool
        Whether it is recorded when each push, vote and report was created, sent, received, dequeued, applied
        and answered, and what CPU its steps took (`psbench calibrate` asks for it).
    """

    called_in_errors = "connection"

    scheduler_file: str | None = parameter(None, "file written by `dask scheduler --scheduler-file`")
    tls_ca_file: str | None = parameter(None, "certificates that are trusted, in PEM format")
    tls_cert: str | None = parameter(None, "this client's certificate, in PEM format")
    tls_key: str | None = parameter(None, "this client's private key, in PEM format")
    ports: str | None = parameter(None, "ports that the run may listen on, as 40000-40100")
    hosts: Literal["any", "spread", "pack"] = parameter("any", "number of machines on which to place roles")
    answer_within_s: float = parameter(60.0, "timeout for an answer of a Dask worker", unit="s", gt=0)

    resources: dict[str, Annotated[float, Field(gt=0)]] = parameter(
        {}, "Dask resources that each training worker uses, such as GPU: 1"
    )

    start_within_s: float = parameter(180.0, "timeout for loading torch and the data", unit="s", gt=0)
    listen_within_s: float = parameter(120.0, "timeout for a server to start listening", unit="s", gt=0)
    connect_within_s: float = parameter(5.0, "timeout for the first answer of the scheduler", unit="s", gt=0)
    silence_s: float = parameter(15.0, "silence after which a process counts as gone", unit="s", ge=5)
    replica_within_s: float = parameter(15.0, "timeout for the state of the replica", unit="s", gt=0)
    restart_within_s: float = parameter(
        30.0, "minimum time that a resumed run waits for Dask workers", unit="s", ge=0
    )
    settle_within_s: float = parameter(5.0, "timeout for optional answers", unit="s", gt=0)
    say_after_s: float = parameter(10.0, "time after which the awaited peers are logged", unit="s", gt=0)

    stamps: bool = parameter(False, "record when each push was created, sent, received and answered")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        given = [name for name in ("tls_ca_file", "tls_cert", "tls_key") if getattr(self, name) is not None]
        if given and len(given) < 3:
            raise ParameterError(f"connection: {given[0]} needs tls_ca_file, tls_cert and tls_key, all three")
        if self.ports is not None and self.port_range is None:
            raise ParameterError(f"connection.ports: {self.ports!r} is not a range such as 40000-40100")
        return self

    @property
    def port_range(self) -> tuple[int, int] | None:
        """The first and the last port; None for any."""
        found = None if self.ports is None else _PORTS.fullmatch(self.ports)
        if found is None or not 0 < int(found[1]) <= int(found[2]) < 1 << 16:
            return None
        return int(found[1]), int(found[2])
