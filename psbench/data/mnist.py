"""MNIST and Fashion-MNIST, from files in torchvision's layout."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from psbench.core.specification import parameter
from psbench.data.base import Dataset
from psbench.data.idx import read_idx
from psbench.data.images import ImageSource, Pixels
from psbench.data.location import data_folder, how_to_get
from psbench.data.split import Indices
from psbench.errors import DataError
from psbench.seeds import Streams


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

    root: str | None = parameter(None, "folder of the files; none: the one PSBENCH_DATA names")
    download: bool = parameter(False, "fetch missing files with torchvision")

    def load(self, streams: Streams) -> Dataset:
        """Return the images; the published test part is the validation set."""
        (train_x, train_y), (val_x, val_y) = self._read("train"), self._read("t10k")
        train, val = self.chosen(train_y, val_y, streams)
        return self.finish(train_x[train], train_y[train], val_x[val], val_y[val], self.classes)

    def _read(self, part: str) -> tuple[Pixels, Indices]:
        image_file = self._find(f"{part}-images-idx3-ubyte")
        label_file = self._find(f"{part}-labels-idx1-ubyte")
        images, labels = read_idx(image_file), read_idx(label_file)
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise DataError(
                f"{image_file}: shape {images.shape} does not go with the labels, shape {labels.shape}, of "
                f"{label_file.name}; get both files again"
            )
        return images[:, None], labels.astype("int64")

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
