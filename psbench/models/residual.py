"""The residual networks for CIFAR."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from psbench.models.base import Model

if TYPE_CHECKING:
    from torch import nn


class ResNet(Model):
    """Base of the residual networks of 6 n + 2 layers: three stages of n blocks with 16, 32, 64 channels.

    The shortcut that changes the shape takes every other pixel and pads with zero channels (option A), so it
    has no parameters. Batch normalisation keeps running means as buffers, which are no parameters either.

    Source
    ------
    He et al. (2016), "Deep Residual Learning for Image Recognition", CVPR, sec. 4.2.
    """

    source: ClassVar[str] = "He et al. 2016, sec. 4.2"
    #: smaller images would be a single pixel in the last stage
    min_side: ClassVar[int] = 8
    blocks_per_stage: ClassVar[int]

    def network(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Return the layers."""
        from psbench.models.residual_layers import residual_network

        return residual_network(input_shape[0], num_classes, self.blocks_per_stage)


class ResNet20(ResNet):
    """The residual network of 20 layers: 269,722 parameters on CIFAR-10 (published: 0.27 M)."""

    name: ClassVar[str] = "resnet20"
    blocks_per_stage: ClassVar[int] = 3


class ResNet32(ResNet):
    """The residual network of 32 layers: 464,154 parameters on CIFAR-10 (published: 0.46 M)."""

    name: ClassVar[str] = "resnet32"
    blocks_per_stage: ClassVar[int] = 5


class ResNet56(ResNet):
    """The residual network of 56 layers: 853,018 parameters on CIFAR-10 (published: 0.85 M)."""

    name: ClassVar[str] = "resnet56"
    blocks_per_stage: ClassVar[int] = 9
