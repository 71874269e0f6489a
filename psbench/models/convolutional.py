"""Plain convolutional networks, without dropout, which would draw from torch's global random state."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from psbench.core.specification import parameter
from psbench.models.base import Model

if TYPE_CHECKING:
    from torch import nn


class CNN(Model):
    """Two convolutions of 3 x 3 with 32 channels, each pooled, and a hidden layer of 64 neurons.

    110,634 parameters on MNIST (the paper says 110 K and no more), 141,930 on CIFAR-10.
    """

    name: ClassVar[str] = "cnn"
    source: ClassVar[str] = "Hermes, sec. V: 110 K parameters; the layers are ours"
    min_side: ClassVar[int] = 4

    def network(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return the layers."""
        from torch import nn

        channels, height, width = input_shape
        return nn.Sequential(
            *convolution(channels, 32, pooled=True),
            *convolution(32, 32, pooled=True),
            nn.Flatten(),
            nn.Linear(32 * (height // 4) * (width // 4), 64),
            nn.ReLU(),
            nn.Linear(64, num_outputs),
        )


class LeNet(Model):
    """LeNet-5 with rectifiers and max pooling: 61,706 parameters on MNIST, 62,006 on CIFAR-10.

    Images smaller than 32 pixels get a border of 2, as LeCun et al. put 28 x 28 digits into 32 x 32.

    Notes
    -----
    Our reading: the second convolution is connected to all maps of the first, and the output is linear, as
    everywhere today.
    """

    name: ClassVar[str] = "lenet"
    source: ClassVar[str] = "LeCun et al. 1998, sec. II-B"
    min_side: ClassVar[int] = 12

    def network(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return the layers."""
        from torch import nn

        channels, height, width = input_shape
        border = 2 if min(height, width) < 32 else 0
        rows, columns = (((side + 2 * border - 4) // 2 - 4) // 2 for side in (height, width))
        return nn.Sequential(
            *convolution(channels, 6, size=5, padding=border, pooled=True),
            *convolution(6, 16, size=5, padding=0, pooled=True),
            nn.Flatten(),
            nn.Linear(16 * rows * columns, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, num_outputs),
        )


class AlexNet(Model):
    """AlexNet made small for 32 x 32 pixels: 989,410 parameters on CIFAR-10.

    Five convolutions of 3 x 3 with about a quarter of the published channels (24, 64, 96, 88, 64 for 96, 256,
    384, 384, 256), pooled after the first, second and fifth, then two hidden layers of 512 for 4,096.

    Notes
    -----
    Our reading: Hermes says only "downsized", about 990 K; the fourth convolution has 88 channels, not 96, to
    come to that. No response normalisation and no dropout.
    """

    name: ClassVar[str] = "alexnet"
    source: ClassVar[str] = "Krizhevsky et al. 2012; Hermes, sec. V: 990 K parameters"
    min_side: ClassVar[int] = 8

    def network(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return the layers."""
        from torch import nn

        channels, height, width = input_shape
        return nn.Sequential(
            *convolution(channels, 24, pooled=True),
            *convolution(24, 64, pooled=True),
            *convolution(64, 96),
            *convolution(96, 88),
            *convolution(88, 64, pooled=True),
            nn.Flatten(),
            nn.Linear(64 * (height // 8) * (width // 8), 512),
            nn.ReLU(),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Linear(512, num_outputs),
        )


class VGG16(Model):
    """VGG-16 for CIFAR: 13 convolutions of 3 x 3 in five pooled stages, and one linear layer.

    14,719,818 parameters on CIFAR-10, 14,714,688 of them in the published convolutions.

    Notes
    -----
    Our reading: for 32 x 32 pixels three large linear layers, made for ImageNet, become one, as is usual;
    no batch normalisation unless asked for, as published. Normalised convolutions keep their biases.
    """

    name: ClassVar[str] = "vgg16"
    source: ClassVar[str] = "Simonyan and Zisserman 2015, configuration D; AdaComm, sec. 5"
    min_side: ClassVar[int] = 32
    #: channels and convolutions of each stage
    stages: ClassVar[tuple[tuple[int, int], ...]] = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))

    batch_norm: bool = parameter(
        False, "whether each convolution has batch normalisation", source="Ioffe and Szegedy 2015"
    )

    def network(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return the layers."""
        from torch import nn

        width, height, columns = input_shape
        layers: list[nn.Module] = []
        for channels, count in self.stages:
            for index in range(count):
                last = index == count - 1
                layers += convolution(width, channels, normalised=self.batch_norm, pooled=last)
                width = channels
        features = width * (height // 32) * (columns // 32)
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, num_outputs))


def convolution(
    channels_in: int,
    channels_out: int,
    *,
    size: int = 3,
    padding: int = 1,
    normalised: bool = False,
    pooled: bool = False,
) -> list[nn.Module]:
    """Return a convolution, `normalised` or not, its rectifier and, if `pooled`, a maximum over 2 x 2."""
    from torch import nn

    layers: list[nn.Module] = [nn.Conv2d(channels_in, channels_out, size, padding=padding)]
    layers += [nn.BatchNorm2d(channels_out)] if normalised else []
    return [*layers, nn.ReLU(), nn.MaxPool2d(2)] if pooled else [*layers, nn.ReLU()]
