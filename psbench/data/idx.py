"""The IDX format of MNIST: a few bytes that say the shape, then the values.

torchvision reads it too, but not compressed, and says of a damaged file only that an assertion failed.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from psbench.errors import DataError

#: two zero bytes, then the code for unsigned bytes; the next byte is the number of dimensions
MAGIC = b"\0\0\x08"


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array in an IDX file of unsigned bytes, packed (.gz) or not.

    Raises
    ------
    DataError
        If the file cannot be read, is of another kind, or is shorter or longer than it says.

    Source
    ------
    LeCun, Cortes, Burges, "The MNIST database of handwritten digits": file formats.
    """
    raw = _content(path)
    dimensions = raw[3] if len(raw) > 3 else 0
    start = 4 + 4 * dimensions
    if raw[:3] != MAGIC or dimensions == 0 or len(raw) < start:
        raise DataError(f"{path}: not an IDX file of bytes (it begins with {raw[:4]!r}); get the file again")
    shape = [int(size) for size in np.frombuffer(raw, ">u4", dimensions, offset=4)]
    if len(raw) - start != math.prod(shape):
        raise DataError(
            f"{path}: holds {len(raw) - start:,} values, but says it has {' x '.join(map(str, shape))}; "
            "it is truncated or damaged, get the file again"
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return file.read()
        return path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); get the file again") from error
