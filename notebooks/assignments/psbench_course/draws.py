"""Random parameters of a student: the same on every machine."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import numpy as np

from psbench.errors import ParameterError

#: of a student's name, which is also the name of a folder
_STUDENT = re.compile(r"[\w.@+-]{1,64}")


def draws_of(student: str, *purpose: Any) -> np.random.Generator:
    """Return the generator of a student's own numbers, for a purpose: the same on every machine.

    Raises
    ------
    ParameterError
        If the name cannot be that of a folder.
    """
    if not isinstance(student, str) or not _STUDENT.fullmatch(student) or student == "your-id":
        raise ParameterError(
            f"student: {student!r} is not a valid id; give letters, digits, and any of . @ + - _"
        )
    named = " ".join(map(str, ("psbench assignment", student, *purpose)))
    digest = hashlib.sha256(named.encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8]))
