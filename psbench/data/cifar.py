"""CIFAR-10 and CIFAR-100, read by torchvision.

The published files are pickles. torchvision opens one only if its checksum is the published one, so nothing
else is ever unpickled; the coarse labels of CIFAR-100 come from the table below, not from a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from psbench.arrays import Integers
from psbench.core.specification import parameter
from psbench.data.base import Dataset
from psbench.data.images import ImageSource
from psbench.data.location import data_folder, how_to_get
from psbench.errors import DataError
from psbench.seeds import Streams

#: the 20 superclasses of CIFAR-100 and their classes, both in the order of their numbers
SUPERCLASSES: dict[str, tuple[str, ...]] = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}

#: the 100 classes of CIFAR-100 are numbered in alphabetical order
FINE = tuple(sorted(name for members in SUPERCLASSES.values() for name in members))


def coarse_of_fine() -> Integers:
    """Return the number of the superclass of each of the 100 classes, int64, (100,)."""
    number = {name: index for index, members in enumerate(SUPERCLASSES.values()) for name in members}
    return np.array([number[name] for name in FINE], dtype=np.int64)


class CIFAR10(ImageSource):
    """60,000 colour photographs of 32 x 32 pixels in ten classes, 50,000 of them for training.

    Parameters
    ----------
    root : str or None
        Folder that holds `cifar-10-batches-py`; None takes the folder that PSBENCH_DATA names, or else
        `~/.cache/psbench`.

    Raises
    ------
    DataError
        If a file is missing, or its checksum is not the published one.
    """

    name: ClassVar[str] = "cifar10"
    source: ClassVar[str] = "Krizhevsky 2009"
    #: the class of torchvision.datasets
    reader: ClassVar[str] = "CIFAR10"
    channel_mean: ClassVar[tuple[float, ...]] = (0.4914, 0.4822, 0.4465)
    channel_std: ClassVar[tuple[float, ...]] = (0.2470, 0.2435, 0.2616)

    augment: bool = parameter(
        True, "randomly crop and mirror training images", source="He et al. 2016, sec. 4.2"
    )
    root: str | None = parameter(None, "folder of the files; none: the value of PSBENCH_DATA")
    download: bool = parameter(False, "download missing files with torchvision")

    def load(self, streams: Streams) -> Dataset:
        """Return the images; the published test part is the validation set."""
        raw_train, raw_val = self._read(train=True), self._read(train=False)
        train_y, val_y = self.labels_of(raw_train.targets), self.labels_of(raw_val.targets)
        train, val = self.chosen(train_y, val_y, streams)
        return self.finish(
            raw_train.data[train].transpose(0, 3, 1, 2),
            train_y[train],
            raw_val.data[val].transpose(0, 3, 1, 2),
            val_y[val],
            self.class_names(tuple(raw_train.classes)),
        )

    def labels_of(self, targets: list[int]) -> Integers:
        return np.asarray(targets, dtype=np.int64)

    def class_names(self, stored: tuple[str, ...]) -> tuple[str, ...]:
        return stored

    def _read(self, train: bool) -> Any:
        import torchvision

        reader = getattr(torchvision.datasets, self.reader)
        folder = data_folder(self.root)
        if not self.download:
            check_files(reader, folder, self.name)
        try:
            return reader(str(folder), train=train, download=self.download)
        except (RuntimeError, OSError) as error:
            raise DataError(f"{self.name}: reading or downloading in {folder} failed: {error}") from error


class CIFAR100(CIFAR10):
    """60,000 colour photographs of 32 x 32 pixels in 100 classes or 20 superclasses.

    Parameters
    ----------
    root, download
        As for `CIFAR10`; the files lie in `cifar-100-python`.
    """

    name: ClassVar[str] = "cifar100"
    source: ClassVar[str] = "Krizhevsky 2009; thesis 6.2 (both labels)"
    reader: ClassVar[str] = "CIFAR100"
    channel_mean: ClassVar[tuple[float, ...]] = (0.5071, 0.4865, 0.4409)
    channel_std: ClassVar[tuple[float, ...]] = (0.2673, 0.2564, 0.2762)

    labels: Literal["fine", "coarse"] = parameter(
        "fine", "100 classes, or 20 superclasses", source="thesis 6.2"
    )

    def labels_of(self, targets: list[int]) -> Integers:
        """Return fine or coarse labels."""
        fine = super().labels_of(targets)
        return coarse_of_fine()[fine] if self.labels == "coarse" else fine

    def class_names(self, stored: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the classes or superclasses."""
        return tuple(SUPERCLASSES) if self.labels == "coarse" else FINE


def check_files(reader: Any, folder: Path, name: str) -> None:
    """Raise DataError that names the first file that is missing or not the published one."""
    from torchvision.datasets.utils import check_integrity

    files = [*reader.train_list, *reader.test_list, [reader.meta["filename"], reader.meta["md5"]]]
    for file, checksum in files:
        path = folder / reader.base_folder / file
        if not path.exists():
            raise DataError(f"{name}: {path} is missing; " + how_to_get(folder, f"{reader.base_folder}/"))
        if not check_integrity(str(path), checksum):
            raise DataError(
                f"{name}: {path} is damaged: its checksum is not the published one, so it is not opened; "
                f"remove it and {how_to_get(folder, f'{reader.base_folder}/')}"
            )
