"""Common features of image data sets: a limit for quick runs, normalisation, augmentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from psbench.arrays import Integers
from psbench.core.specification import parameter
from psbench.data.base import Dataset, DataSource
from psbench.data.split import stratified_split
from psbench.seeds import Streams

if TYPE_CHECKING:
    from torch import Tensor

#: bytes 0..255, (N, channels, height, width)
Pixels = NDArray[np.uint8]


class ImageSource(DataSource):
    """Base of image data sets; bytes become float32 as `normalise` defines.

    Parameters
    ----------
    limit, val_limit : int or None
        Use only so many training or validation images, chosen by chance with every class in proportion, in
        the order they have. None uses all.
    normalise : "channel", "mean_image" or "none"
        After scaling to 0..1: subtract the mean and divide by the standard deviation of each channel
        (published constants, whatever the limit); subtract the mean training image; or nothing.
    """

    #: mean and standard deviation per channel of the whole training set; empty: computed from what is loaded
    channel_mean: ClassVar[tuple[float, ...]] = ()
    channel_std: ClassVar[tuple[float, ...]] = ()

    limit: int | None = parameter(None, "maximum number of training images", unit="samples", ge=1)
    val_limit: int | None = parameter(None, "maximum number of validation images", unit="samples", ge=1)
    normalise: Literal["channel", "mean_image", "none"] = parameter(
        "channel", "normalisation of pixels after scaling them to 0..1"
    )
    augment: bool = parameter(
        False, "randomly crop and mirror training images", source="He et al. 2016, sec. 4.2"
    )

    def chosen(self, train_y: Integers, val_y: Integers, streams: Streams) -> tuple[Integers, Integers]:
        """Return the indices of the training and of the validation images to use."""
        return (
            choose(train_y, self.limit, streams.generator("limit", 0)),
            choose(val_y, self.val_limit, streams.generator("limit", 1)),
        )

    def finish(
        self, train_x: Pixels, train_y: Integers, val_x: Pixels, val_y: Integers, classes: tuple[str, ...]
    ) -> Dataset:
        """Return the data set with these images."""
        import torch

        # bytes as float32 in 0..1
        train, val = (torch.from_numpy(x.astype(np.float32)).div_(255.0) for x in (train_x, val_x))
        if self.normalise == "mean_image":
            mean_image = train.mean(dim=0)
            train, val = train.sub_(mean_image), val.sub_(mean_image)
        elif self.normalise == "channel":
            mean, std = self._channel_statistics(train)
            train, val = (x.sub_(mean).div_(std) for x in (train, val))
        return Dataset(
            self.name,
            train,
            torch.from_numpy(np.asarray(train_y, dtype=np.int64)),
            val,
            torch.from_numpy(np.asarray(val_y, dtype=np.int64)),
            classes,
            CropAndFlip() if self.augment else None,
        )

    def _channel_statistics(self, train: Tensor) -> tuple[Tensor, Tensor]:
        import torch

        if self.channel_mean:
            mean, std = torch.tensor(self.channel_mean), torch.tensor(self.channel_std)
        else:
            std, mean = torch.std_mean(train, dim=(0, 2, 3), correction=0)
            # a channel that is constant stays at zero
            std = torch.where(std > 0, std, torch.ones_like(std))
        return mean.view(-1, 1, 1), std.view(-1, 1, 1)


def choose(labels: Integers, limit: int | None, rng: np.random.Generator) -> Integers:
    """Return at most `limit` indices, ascending, with every class in proportion.

    >>> choose(np.array([0, 1, 0, 1, 0, 1]), 2, np.random.default_rng(0)).size
    2
    """
    if limit is None or limit >= len(labels):
        return np.arange(len(labels))
    return stratified_split(labels, limit / len(labels), rng)[1]


@dataclass(frozen=True)
class CropAndFlip:
    """Pad, crop back to size at a random position per image, and mirror half of the images.

    Parameters
    ----------
    padding : int, pixels, >= 0
        Border of zeros on each side; on normalised images zero is the mean colour.

    Source
    ------
    He et al. (2016), "Deep Residual Learning for Image Recognition", sec. 4.2 (CIFAR-10: 4 pixels).
    """

    padding: int = 4

    def __call__(self, batch: Tensor, rng: np.random.Generator) -> Tensor:
        """Return a new batch of the same shape, (B, channels, height, width)."""
        import torch
        from torchvision.transforms.v2 import functional

        count, _, height, width = batch.shape
        top, left = torch.from_numpy(rng.integers(0, 2 * self.padding + 1, size=(2, count)))
        mirrored = torch.from_numpy(rng.random(count) < 0.5)
        padded = functional.pad(batch, [self.padding])
        # all crops of all images: a view (B, channels, tops, lefts, height, width); indexing copies one each
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)
        cropped = windows[torch.arange(count), :, top, left]
        return torch.where(mirrored.view(-1, 1, 1, 1), functional.horizontal_flip(cropped), cropped)
