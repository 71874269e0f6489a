"""A check that the Dask workers have the same software as the client."""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata

from distributed import Client

from psbench.backends.dask.rpc import ask
from psbench.clusters.connection import ConnectionSettings
from psbench.errors import BackendError

#: what must be the same; of Python the first two numbers
_COMPARED = ("psbench", "torch", "numpy", "distributed")


def _versions(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of this process's packages, without importing them."""
    found = {"python": platform.python_version().rpartition(".")[0]}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def versions_here() -> dict[str, str]:
    """Return the versions of the packages that must be the same everywhere."""
    return _versions(_COMPARED)


def check_versions(
    client: Client,
    addresses: Iterable[str],
    limits: ConnectionSettings,
    go_on: Callable[[], None] = lambda: None,
) -> None:
    """Compare the packages of Dask workers with those of this process.

    Raises
    ------
    BackendError
        Naming the first package that differs, and where; or a Dask worker that does not answer.
    """
    own, wanted = versions_here(), sorted(set(addresses))
    try:
        theirs = ask(client, _versions, _COMPARED, of=wanted, limits=limits, go_on=go_on)
    except ModuleNotFoundError as error:
        raise BackendError(f"a Dask worker lacks {error.name}: install the same psbench there") from None
    for name, version in own.items():
        others: dict[str, list[str]] = defaultdict(list)
        for address in wanted:
            if theirs[address][name] != version:
                others[theirs[address][name]].append(address)
        for other, where in others.items():
            raise BackendError(
                f"{name} is {version} here and {other} on {len(where)} of {len(wanted)} Dask workers "
                f"({where[0]}): install the same version there"
            )
