"""Put small faults into what decides, and say which the fuzzer finds: python -m tests.mutation.fuzz."""

from __future__ import annotations

import argparse
import math
import random
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from psbench_fuzz.campaign import BLOCK, run_block
from psbench_fuzz.compositions import turn
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.planted import FAULTS, Fault
from tests.mutation.runner import apply, in_fork, module_of

HERE = Path(__file__).parent
#: the engine, and the parts that decide
DECIDES = (
    *(f"psbench/core/{name}.py" for name in ("engine", "action_processor", "membership", "drain")),
    *(f"psbench/core/{name}.py" for name in ("migration", "view", "switch_rules", "worker_loop")),
    *(f"psbench/strategies/{name}" for name in ("consistency", "aggregation", "communication")),
    *(f"psbench/strategies/{name}" for name in ("stragglers", "switching")),
)
#: what says, checks or computes on tensors, and decides nothing about an event
_NOT = {
    *("why_not", "reason", "nearest", "check", "waits", "spec", "pause_for_evaluations", "model_post_init"),
    *("update", "update_buffers", "begin", "step", "payload", "receive", "has_model"),
}
#: domains whose parts' turns come first for a fault in a module of the engine
_CLOSE = {
    "psbench.core.drain": "switching",
    "psbench.core.switch_rules": "switching",
    "psbench.core.migration": "placement",
    "psbench.core.worker_loop": "communication",
}
#: share of the faults, but for those with a reason, that must be found
LEAST = 0.9
#: CPU seconds for a block of schedules that takes one: more is an endless loop, and seconds until the next
#: alarm, as the code with the fault may catch the first
_MOST_S, _AGAIN_S = 30.0, 5.0
#: seconds for all schedules with one fault: what takes longer catches every alarm
_LIMIT_S = 3600.0


class Found(NamedTuple):
    """After how many schedules, and how many seconds of CPU, a fault was seen, and what was said of it."""

    schedules: int
    cpu_s: float
    error: str


def main() -> int:
    """Run the command; it fails if too few faults are found."""
    asked = argparse.ArgumentParser(prog="python -m tests.mutation.fuzz", description=__doc__)
    asked.add_argument("files", nargs="*", default=list(DECIDES), help="files or folders of the package")
    asked.add_argument("--sample", type=int, default=40, help="how many faults")
    asked.add_argument("--seed", type=int, default=1, help="of the sample")
    asked.add_argument("--schedules", type=int, default=20_000, help="to be played with each")
    asked.add_argument("--seconds", type=float, default=3600.0, help="of CPU for each, at most")
    asked.add_argument("--first", type=int, default=0, help="faults of the list to leave out")
    asked.add_argument("--count", type=int, default=10_000, help="faults of the list to try")
    asked.add_argument("--planted", action="store_true", help="the faults of planted.py in their place")
    given = asked.parse_args()
    if error := _play(range(-(-given.schedules // 400 // BLOCK)), _nothing).error:
        print(f"the fuzzer fails without a fault: {error}")
        return 1
    faults = _planted() if given.planted else _sample(given.files, given.sample, given.seed)
    faults = faults[given.first : given.first + given.count]
    reasons = tomllib.loads((HERE / "reasons.toml").read_text()).get("decisions", {})
    found = excused = 0
    began = time.perf_counter()
    for words, key, module, put in faults:
        order = in_order(given.schedules, module)
        one = in_fork(lambda put=put, order=order: tuple(_play(order, put, given.seconds)), _LIMIT_S)
        seen = Found(*one) if isinstance(one, tuple) else Found(BLOCK, 0.0, str(one or "does not end"))
        found += bool(seen.error)
        excused += not seen.error and key in reasons
        outcome = reasons.get(key, "NOT FOUND") if not seen.error else "found"
        outcome += f" after {seen.schedules}"
        print(f"{outcome}, {seen.cpu_s:.1f} s: {words}\n{'':8}{seen.error[:120]}", flush=True)
    total = len(faults) - excused
    print(f"{found} of {total} found, {excused} with a reason; {time.perf_counter() - began:.0f} s in all")
    return int(found < LEAST * total)


def in_order(schedules: int, module: str) -> list[int]:
    """Return the blocks that so many schedules are of, those first whose turn is of a part of the module.

    They are the same ones, so that what is found is; it is found sooner.
    """
    blocks = range(-(-schedules // BLOCK))
    turns = {number: part for number in blocks if (part := turn(number)) is not None}
    first = [
        number
        for number, part in turns.items()
        if part.domain == _CLOSE.get(module) or module in {kind.__module__ for kind in part.__mro__}
    ]
    return first + sorted(set(blocks) - set(first))


def _planted() -> list[tuple[str, str, str, Callable[[], None]]]:
    def put(fault: Fault) -> Callable[[], None]:
        made = fault.made()  # here, as one that does not follow the code is not found
        return lambda: setattr(fault.owner, fault.name, made)

    return [(words, words, fault.module, put(fault)) for words, fault in FAULTS.items()]


def _sample(names: list[str], count: int, seed: int) -> list[tuple[str, str, str, Callable[[], None]]]:
    every: list[Mutant] = []
    for name in names:
        path = Path(name)
        files = sorted(path.glob("*.py")) if path.is_dir() else [path]
        every += [m for file in files for m in mutants_of(file) if m.function.split(".")[-1] not in _NOT]
    chosen = random.Random(seed).sample(every, min(count, len(every)))
    print(f"{len(chosen)} of {len(every)} faults")
    return [(str(m), m.key, module_of(m.path), lambda mutant=m: apply(mutant)) for m in chosen]


def _play(blocks: Sequence[int], put: Callable[[], Any], most_s: float = math.inf) -> Found:
    """Play blocks of schedules with a fault until one fails, or the seconds have passed."""
    put()
    signal.signal(signal.SIGVTALRM, _too_long)
    began = time.process_time()
    for played, number in enumerate(blocks, 1):
        signal.setitimer(signal.ITIMER_VIRTUAL, _MOST_S, _AGAIN_S)
        try:
            error = run_block(1, number, 80, shrinks=False).first_error
        except Exception as failed:  # a strategy cannot even be made
            error = f"{type(failed).__name__}: {failed}"
        if error:
            return Found(played * BLOCK, time.process_time() - began, error)
        if time.process_time() - began > most_s:
            return Found(played * BLOCK, time.process_time() - began, "")
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return Found(len(blocks) * BLOCK, time.process_time() - began, "")


def _too_long(_signal: int, _frame: object) -> None:
    raise TimeoutError("a block of schedules does not end")


def _nothing() -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
