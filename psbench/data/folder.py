"""Any folder of images, one subfolder per class."""

from __future__ import annotations

import math
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psbench.arrays import Integers
from psbench.core.specification import parameter
from psbench.data.base import Dataset
from psbench.data.decoded import KEPT_FROM, Decoded
from psbench.data.images import ImageSource, Pixels
from psbench.data.location import VARIABLE, data_folder
from psbench.data.split import stratified_split
from psbench.errors import DataError
from psbench.seeds import Streams
from psbench.system.cores import cores
from psbench.system.limits import check_memory

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

#: what counts as an image; other files, and whatever begins with a dot, are passed over
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp", ".gif")

#: formats that make at most so many pixels of a byte: deflate makes 1,032 bytes, which have eight pixels each
_DEFLATED, _MOST_PIXELS = ("PNG", "GIF", "BMP", "PPM"), 8 * 1032
#: pixels from which memory is looked at before an image is decoded, and bytes that decoding one takes
_LARGE, _DECODING = 10_000_000, 8

#: images a thread reads at a time: many enough that handing out work costs nothing beside 0.1 ms an image
BLOCK = 256


class Listing(NamedTuple):
    """Image files and their labels, in order."""

    paths: list[Path]
    labels: Integers

    def take(self, indices: Integers) -> Listing:
        """Return a subset of the listing."""
        return Listing([self.paths[index] for index in indices], self.labels[indices])


class Folder(ImageSource):
    """Images in `path/train/CLASS/` and `path/val/CLASS/` (or `test`), or in `path/CLASS/`.

    Classes are numbered in alphabetical order. In the second layout, or without a validation folder, a share
    of every class is set aside.

    Parameters
    ----------
    val_fraction : float, 0 <= val_fraction < 1
        Share set aside where there is no folder `val` or `test` (`val` is taken if there are both).
    image_size : int or None, pixels
        Scale every image to that height and width; None wants all images of one size.
    cache : str or None
        Folder where decoded images are kept, for the next run, if there are at least 1,000 of them and no
        `limit`; None takes the one that PSBENCH_DATA names, or else `~/.cache/psbench`. They are decoded
        again when a file's size or time of change is another, and may be removed at any time.

    Raises
    ------
    DataError
        If the folder is missing or has no images, if one cannot be read, or if sizes differ and there
        is no `image_size`.

    Notes
    -----
    With `normalise` "channel" the mean and deviation are those of the training images loaded.
    """

    name: ClassVar[str] = "folder"

    path: str = parameter("", "folder with one subfolder per class; empty: the value of PSBENCH_DATA")
    val_fraction: float = parameter(
        0.2, "share used for validation if there is no folder val or test", ge=0, lt=1
    )
    image_size: int | None = parameter(None, "scale images to this height and width", unit="pixels", ge=1)
    grayscale: bool = parameter(False, "one channel instead of three")

    cache: str | None = parameter(None, "folder of decoded images; none: the value of PSBENCH_DATA")

    def load(self, streams: Streams) -> Dataset:
        """Return the images; only those within `limit` are read."""
        classes, train, val = self._listings(streams)
        chosen_train, chosen_val = self.chosen(train.labels, val.labels, streams)
        train, val = train.take(chosen_train), val.take(chosen_val)
        pixels = self._pixels([*train.paths, *val.paths])
        count = len(train.paths)
        return self.finish(pixels[:count], train.labels, pixels[count:], val.labels, classes)

    def _folder(self) -> Path:
        chosen = self.path or os.environ.get(VARIABLE, "")
        if not chosen:
            raise DataError(f"data 'folder': no path given; set path, or the environment variable {VARIABLE}")
        folder = Path(chosen).expanduser()
        if not folder.is_dir():
            raise DataError(f"data 'folder': {folder} is not a folder; check path")
        return folder

    def _listings(self, streams: Streams) -> tuple[tuple[str, ...], Listing, Listing]:
        folder = self._folder()
        train_folder = folder / "train" if (folder / "train").is_dir() else folder
        classes = class_names(train_folder)
        train = listing(train_folder, classes)
        for other in (folder / "val", folder / "test"):
            if train_folder != folder and other.is_dir():
                check_classes(other, classes)
                return classes, train, listing(other, classes)
        kept, aside = stratified_split(train.labels, self.val_fraction, streams.generator("split"))
        return classes, train.take(kept), train.take(aside)

    def _pixels(self, paths: list[Path]) -> Pixels:
        """Return the images in this order, from the cache if they were decoded before."""
        if len(paths) < KEPT_FROM or self.limit is not None or self.val_limit is not None:
            return self._read(paths)
        order = sorted(paths)  # the same for every split into training and validation
        decoded = Decoded(data_folder(self.cache), order, [self.image_size, self.grayscale])
        pixels = decoded.pixels(self._read_one(order[0]).shape)
        if pixels is None:
            pixels = self._read(order)
            decoded.keep(pixels)
        place = {path: number for number, path in enumerate(order)}
        found: Pixels = pixels[[place[path] for path in paths]]
        return found

    def _read_one(self, path: Path) -> NDArray[np.uint8]:
        return read_image(path, "L" if self.grayscale else "RGB", self.image_size)

    def _read(self, paths: list[Path]) -> Pixels:
        """Return the images, (N, channels, height, width), decoded with one thread per core."""
        read = self._read_one
        if self.image_size is not None:
            self._check_memory(len(paths), self.image_size, self.image_size)
        first = read(paths[0])
        self._check_memory(len(paths), *first.shape[1:])
        pixels = np.empty((len(paths), *first.shape), dtype=np.uint8)

        def fill(start: int) -> None:
            for index in range(start, min(start + BLOCK, len(paths))):
                image = read(paths[index])
                if image.shape != first.shape:
                    raise DataError(
                        f"{paths[index]}: {size_of(image)} pixels, but {paths[0]} has {size_of(first)}; "
                        "set image_size to scale all to one size"
                    )
                pixels[index] = image

        with ThreadPoolExecutor(cores()) as pool:
            deque(pool.map(fill, range(0, len(paths), BLOCK)), maxlen=0)
        return pixels

    def _check_memory(self, count: int, height: int, width: int) -> None:
        what = f"data 'folder': {count} images of {width} x {height} pixels"
        # a byte and a 32-bit float each
        needed = 5 * count * height * width * (1 if self.grayscale else 3)
        check_memory(needed, what, "set limit, or a smaller image_size")


def class_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the subfolders, in alphabetical order."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != ".")
    if not names:
        raise DataError(f"{folder}: has no subfolders; images must be in one subfolder per class")
    return tuple(names)


def listing(folder: Path, classes: tuple[str, ...]) -> Listing:
    """Return the images of each class that has a subfolder there, in alphabetical order."""
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = images_under(folder / name)
        paths += found
        labels += [label] * len(found)
    return Listing(paths, np.array(labels, dtype=np.int64))


def images_under(folder: Path) -> list[Path]:
    """Return the image files of one class; a subfolder without any is an error."""
    if not folder.is_dir():
        return []
    entries = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    found = [folder / name for name in entries if name[0] != "." and name.lower().endswith(SUFFIXES)]
    if not found:
        raise DataError(f"{folder}: holds no images ({', '.join(SUFFIXES)}); add some or remove the folder")
    return found


def check_classes(folder: Path, classes: tuple[str, ...]) -> None:
    """Raise DataError if a folder of validation images has classes that training lacks."""
    unknown = sorted(set(class_names(folder)) - set(classes))
    if unknown:
        raise DataError(
            f"{folder}: class {unknown[0]!r} has no training images (classes: {', '.join(classes)}); "
            "add some to train, or remove the folder"
        )


def read_image(path: Path, mode: str, size: int | None) -> NDArray[np.uint8]:
    """Return one image as bytes, (channels, height, width)."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            _check_size(path, image)
            converted = _of_bytes(image).convert(mode)
            if size is not None:
                converted = converted.resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(converted)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: not a readable image ({error}); replace or remove it") from error
    return pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)


def _check_size(path: Path, image: Picture) -> None:
    """Check an image's size in its header before memory is allocated for its pixels.

    Raises
    ------
    ValueError, ParameterError
        If its file cannot hold as many, or the threads that decode have no memory for as many.
    """
    pixels, length = math.prod(image.size), path.stat().st_size
    width, height = image.size
    if image.format in _DEFLATED and pixels > _MOST_PIXELS * length:
        raise ValueError(
            f"its header declares {width} x {height} pixels, which {length} bytes cannot contain"
        )
    if pixels > _LARGE:
        what = f"{path}: {width} x {height} pixels, decoded by each of {cores()} threads,"
        check_memory(cores() * _DECODING * pixels, what, "scale it down")


def _of_bytes(image: Picture) -> Picture:
    """Return an image with 8-bit values; for 16 bits the upper eight, where Pillow would clip to 255.

    Raises
    ------
    ValueError
        If its numbers have more bits than that, so that what is white is not known.
    """
    from PIL import Image

    if image.mode != "F" and not image.mode.startswith("I"):
        return image
    numbers = np.asarray(image)
    if image.mode == "F" or numbers.min() < 0 or numbers.max() >= 2**16:
        raise ValueError("its pixel values do not have 8 or 16 bits")
    return Image.fromarray((numbers >> 8).astype(np.uint8))


def size_of(image: NDArray[np.uint8]) -> str:
    """Return width and height for a message."""
    return f"{image.shape[2]} x {image.shape[1]}"
