"""Keep Python's garbage collector from searching imported modules, which are no garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: Python 3.12 begins with some hundred objects of its own left alone; a program that asks for it has far more
_OF_PYTHON = 1000
#: who leaves objects alone: a run, or others; asked once, as to count a million takes 24 ms
_holders: set[str] = set()


@contextmanager
def only_new_objects_searched() -> Iterator[None]:
    """Exempt existing objects from garbage collection until the end; new objects are collected as usual.

    Torch and the rest are 230,000 objects. A simulation of a thousand workers and more makes so many that
    Python searches all of them again and again, which a run without gradients spends up to a third of its
    time on. Nothing is done where objects are left alone already: what began that ends it.
    """
    if not _holders and gc.get_freeze_count() > _OF_PYTHON:
        _holders.add("others")
    if _holders:
        yield
        return
    _holders.add("a run")
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        _holders.remove("a run")


@contextmanager
def imports_not_searched() -> Iterator[None]:
    """Pause garbage collection while modules are imported.

    Torch and psbench make 300,000 objects, hardly any of which becomes garbage. Python would search them over
    and over as they come, which takes 0.4 of the 4.3 s until a command has imported them.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # both at once make all objects old: the next search passes over them
            gc.freeze()
            gc.unfreeze()
        gc.enable()
