"""Changes of training images by chance, a whole batch at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CropAndFlip:
    """Pad, crop back to size at a place drawn per image, and mirror every other image on average.

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
