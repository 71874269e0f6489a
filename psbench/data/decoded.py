"""Decoded images, kept in a file for the next run: decoding takes most of the time of a short one."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from psbench.data.converted import mapped
from psbench.data.images import Pixels
from psbench.errors import SpecError
from psbench.system.files import atomic_write
from psbench.system.limits import check_disk

#: fewer images are decoded in less time than it takes to wonder about a cache
KEPT_FROM = 1000
#: of the files; others are decoded again
_FORMAT = 2
#: begins with a dot, since the folder of data may be one of classes
_FOLDER = ".decoded"


class Decoded:
    """The file of certain images, as they are now.

    Parameters
    ----------
    folder : path
        Of data; the file lies in a folder of its own there.
    paths : sequence of path
        The images, in the order of the array.
    how : list
        What they are decoded to.
    """

    def __init__(self, folder: Path, paths: Sequence[Path], how: list[Any]) -> None:
        key = hashlib.sha256(json.dumps([_FORMAT, how]).encode())
        for path in paths:
            about = path.stat()
            line = f"{os.path.abspath(path)} {about.st_size} {about.st_mtime_ns}\n"
            key.update(line.encode(errors="surrogateescape"))
        self._count = len(paths)
        self._file = folder / _FOLDER / f"{key.hexdigest()[:24]}.npy"

    def pixels(self, shape: tuple[int, ...]) -> Pixels | None:
        """Return the memory-mapped images; None if they are missing or, with a warning, damaged.

        Parameters
        ----------
        shape : tuple of int
            (channels, height, width) of an image.
        """
        if not self._file.is_file():
            return None
        try:
            return mapped(self._file, "|u1", (self._count, *shape))
        except (OSError, ValueError) as error:
            warnings.warn(
                f"{self._file}: is damaged ({error}); images are decoded again", UserWarning, stacklevel=2
            )
            return None

    def keep(self, pixels: Pixels) -> None:
        """Write the images; if that fails, warn that the next run decodes them again."""
        try:
            check_disk(self._file.parent, pixels.nbytes, "decoded images", "set cache to another disk")
            with atomic_write(self._file) as file:
                np.save(file, pixels)
        except (OSError, SpecError) as error:
            warnings.warn(
                f"data 'folder': decoded images cannot be kept ({error}), so the next run decodes them "
                "again; set cache to a folder that can be written",
                UserWarning,
                stacklevel=2,
            )
