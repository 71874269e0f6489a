"""MNIST and Fashion-MNIST, from files in torchvision's layout and the IDX format.

The format is a few bytes that say the shape, then the values. torchvision reads it too, but not compressed,
and says of a damaged file only that an assertion failed.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from psbench.arrays import Integers
from psbench.core.specification import parameter
from psbench.data.base import Dataset
from psbench.data.images import ImageSource, Pixels
from psbench.data.location import data_folder, how_to_get
from psbench.errors import DataError
from psbench.seeds import Streams
from psbench.system.limits import check_memory


class MNIST(ImageSource):
    """70,000 handwritten digits of 28 x 28 pixels, 60,000 of them for training.

    Parameters
    ----------
    root : str or None
        Folder that holds `MNIST/raw/train-images-idx3-ubyte` and three more, each as it is or as .gz; None
        takes the folder that PSBENCH_DATA names, or else `~/.cache/psbench`.

    Raises
    ------
    DataError
        If a file is missing, truncated or not what it says.
    """

    name: ClassVar[str] = "mnist"
    source: ClassVar[str] = "LeCun et al. 1998"
    #: the class of torchvision.datasets, and the folder it uses
    folder: ClassVar[str] = "MNIST"
    classes: ClassVar[tuple[str, ...]] = tuple("0123456789")
    channel_mean: ClassVar[tuple[float, ...]] = (0.1307,)
    channel_std: ClassVar[tuple[float, ...]] = (0.3081,)

    root: str | None = parameter(None, "folder of the files; none: the value of PSBENCH_DATA")
    download: bool = parameter(False, "download missing files with torchvision")

    def load(self, streams: Streams) -> Dataset:
        """Return the images; the published test part is the validation set."""
        (train_x, train_y), (val_x, val_y) = self._read("train"), self._read("t10k")
        train, val = self.chosen(train_y, val_y, streams)
        return self.finish(train_x[train], train_y[train], val_x[val], val_y[val], self.classes)

    def _read(self, part: str) -> tuple[Pixels, Integers]:
        image_file = self._find(f"{part}-images-idx3-ubyte")
        label_file = self._find(f"{part}-labels-idx1-ubyte")
        labels = read_idx(label_file, 1)
        return read_idx(image_file, 3, len(labels))[:, None], labels.astype("int64")

    def _find(self, file: str) -> Path:
        folder = data_folder(self.root)
        plain = folder / self.folder / "raw" / file
        packed = plain.with_name(file + ".gz")
        if self.download and not plain.exists() and not packed.exists():
            self._fetch(folder)
        for path in (plain, packed):
            if path.exists():
                return path
        raise DataError(
            f"{self.name}: {plain} is missing (and so is {packed.name}); "
            + how_to_get(folder, f"the four files of {self.folder}/raw")
        )

    def _fetch(self, folder: Path) -> None:
        import torchvision

        try:
            getattr(torchvision.datasets, self.folder)(str(folder), download=True)
        except (RuntimeError, OSError) as error:
            raise DataError(f"{self.name}: download to {folder} failed: {error}") from error


class FashionMNIST(MNIST):
    """70,000 pictures of clothes of 28 x 28 pixels, 60,000 of them for training.

    Parameters as for `MNIST`; the files lie in `FashionMNIST/raw`.
    """

    name: ClassVar[str] = "fashion_mnist"
    source: ClassVar[str] = "Xiao et al. 2017"
    folder: ClassVar[str] = "FashionMNIST"
    classes: ClassVar[tuple[str, ...]] = (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    )
    channel_mean: ClassVar[tuple[float, ...]] = (0.2860,)
    channel_std: ClassVar[tuple[float, ...]] = (0.3530,)


#: two zero bytes, then the code for unsigned bytes; the next byte is the number of dimensions
MAGIC = b"\0\0\x08"
#: deflate makes at most so many bytes of one
_DEFLATED = 1032
#: bytes unpacked at a time
_PIECE = 2**20
#: bytes of memory that a pixel takes: as a byte, perhaps without some images, and as a 32-bit float
_PIXEL = 6


def read_idx(path: Path, dimensions: int, rows: int | None = None) -> NDArray[np.uint8]:
    """Return the array in an IDX file of unsigned bytes, packed (.gz) or not.

    No more is read than the file says it holds, and that only if the file can hold it and memory can.

    Parameters
    ----------
    path : path
    dimensions : int
    rows : int or None
        What its first dimension has to be, as its labels say; None: any.

    Raises
    ------
    DataError
        If the file cannot be read, is of another kind, or is shorter or longer than it says.
    ParameterError
        If it would not fit in memory.

    Source
    ------
    LeCun, Cortes, Burges, "The MNIST database of handwritten digits": file formats.
    """
    packed = path.suffix == ".gz"
    try:
        length = path.stat().st_size
        with gzip.open(path) if packed else path.open("rb") as file:
            head = file.read(4 + 4 * dimensions)
            if head[:3] != MAGIC or len(head) < 4 + 4 * dimensions or head[3] != dimensions:
                raise DataError(
                    f"{path}: not an IDX file of bytes in {dimensions} dimensions (it begins with "
                    f"{head[:4]!r}); get the file again"
                )
            shape = [int(size) for size in np.frombuffer(head, ">u4", dimensions, offset=4)]
            if rows not in (None, shape[0]):
                raise DataError(
                    f"{path}: has {shape[0]} images, but there are {rows} labels; get both files again"
                )
            count = math.prod(shape)
            if count <= (_DEFLATED * length if packed else length):
                check_memory(_PIXEL * count, f"{path}: {_in_words(shape)} values", "use a smaller file")
                values = _read_most(file, count + 1)
            else:
                values = bytearray()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); get the file again") from error
    if len(values) != count or count == 0:
        more = "more than " if len(values) > count else ""
        held = f"{more}{min(len(values), count):,}" if values else "fewer"
        raise DataError(
            f"{path}: holds {held} values, but its header declares {_in_words(shape)}; "
            "it is truncated or damaged, get the file again"
        )
    return np.frombuffer(values, np.uint8).reshape(shape)


def _in_words(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _read_most(file: Any, most: int) -> bytearray:
    """Read the rest of a file in pieces, so that memory is allocated only for existing bytes."""
    values = bytearray()
    while len(values) < most and (piece := file.read(min(_PIECE, most - len(values)))):
        values += piece
    return values
