"""Codec times at workers and servers: subtracted from measurements, and added to predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from psbench.arrays import Doubles
from psbench.core.collective import Collective
from psbench.core.strategy import Strategy
from psbench.errors import ParameterError
from psbench.experiment import Experiment
from psbench.results.run import Run
from psbench.twin.exchanges import SHORTEST_S, Exchanges
from psbench.twin.stamped import Stamps
from psbench.twin.variation import half_width

#: of each process, the messages that are passed over, in which it warms up
_FIRST = 2


class Coding(NamedTuple):
    """Seconds of the codecs of a push and of its answer, summed over servers."""

    worker_encodes: float
    server_decodes: float
    server_encodes: float
    worker_decodes: float


#: of strategies without a codec
NO_CODING = Coding(0.0, 0.0, 0.0, 0.0)
NO_CODEC = "none"


def codec_of(composition: Strategy) -> str:
    """Return the name of a composition's codecs, with their parameters; "none" without any."""
    communication = composition.communication
    up, down = (
        _called(each.model_dump(mode="json")) for each in (communication.codec, communication.codec_down)
    )
    return up if up == down else f"{up} up, {down} down"


def _called(codec: Mapping[str, Any]) -> str:
    own = ", ".join(f"{name}={value}" for name, value in codec.items() if name != "name")
    return codec["name"] if codec["name"] == NO_CODEC or not own else f"{codec['name']}({own})"


def codecs_of(experiment: Experiment) -> str:
    """Return the codecs of all phases of a strategy."""
    return "; then ".join(dict.fromkeys(map(codec_of, experiment.strategy.compositions)))


def coding_of(run: Run, stamps: Stamps | None) -> list[Doubles] | None:
    """Return the seconds of each encoding and decoding, in the order of `Coding`; None if unknown."""
    if stamps is None or len(set(map(codec_of, run.experiment.strategy.compositions))) > 1:
        return None
    workers, servers = stamps.codecs.values(), stamps.servers.values()
    # an exchange is as long as its slowest server, and several have slices that are nearly alike
    found = [
        _later(each["encoding"] for each in workers),
        _later(each["decoding"] for each in servers),
        _later(each["encoding"] for each in servers),
        _later(each["decoding"] for each in workers),
    ]
    return found if all(len(each) for each in found) else None


def _later(parts: Iterable[Doubles]) -> Doubles:
    whole: Doubles = np.concatenate([np.zeros(0), *(part[_FIRST:] for part in parts)])
    return whole


def mean_and_width(values: Doubles) -> tuple[float, float, float]:
    """Return a mean above zero with its 90 % interval."""
    mean, wide = max(float(values.mean()), SHORTEST_S * 1e-3), half_width(values)
    return mean, max(0.0, mean - wide), mean + wide


def without_codec(each: Exchanges, coding: Coding) -> Exchanges:
    """Return exchanges without the workers' codec times."""
    up, down = each.up_s - coding.worker_encodes, each.down_s - coding.worker_decodes
    return replace(each, up_s=np.maximum(up, SHORTEST_S), down_s=np.maximum(down, SHORTEST_S))


def with_codec(cluster: Mapping[str, Any], coding: Coding) -> dict[str, Any]:
    """Return a fitted cluster with the codec's times added to messages and servers."""
    if coding == NO_CODING:
        return dict(cluster)
    links, service = cluster["link_time"], dict(cluster.get("service", {}))
    workers = cluster["workers"]
    more = [coding.worker_encodes] * workers + [coding.worker_decodes] * workers
    seconds = [[each + own for each in end] for end, own in zip(links["seconds"], more, strict=True)]
    # a server has one time for a push and for an answer
    service["message_s"] = service.get("message_s", 0.0) + (coding.server_decodes + coding.server_encodes) / 2
    return {**cluster, "link_time": {**links, "seconds": seconds}, "service": service}


def coding_for(compositions: Sequence[Strategy], known: Mapping[str, Coding]) -> Coding:
    """Return the codec times of a strategy.

    Raises
    ------
    ParameterError
        If that was not measured, or differs between its phases.
    """
    names = dict.fromkeys(map(codec_of, compositions))
    for each, name in zip(compositions, map(codec_of, compositions), strict=True):
        if name == NO_CODEC:
            continue
        if isinstance(each.placement, Collective):
            raise ParameterError(
                f"predict: the time of codec {name} in {each.placement.name} was not measured"
            )
        if name not in known:
            raise ParameterError(
                f"predict: the time of codec {name} was not measured; calibrate with a run that uses it"
            )
    if len(names) > 1:
        raise ParameterError(
            f"predict: phases with codecs of their own ({'; '.join(names)}) were not measured"
        )
    return known.get(next(iter(names)), NO_CODING)
