"""Synthetic data: one Gaussian cloud per class, or several."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from psbench.arrays import Integers
from psbench.core.rounding import largest_remainder
from psbench.core.specification import parameter
from psbench.data.base import Dataset, DataSource
from psbench.data.split import stratified_split
from psbench.errors import ParameterError
from psbench.seeds import Streams
from psbench.system.limits import check_memory


class Mixture(DataSource):
    """Samples of a Gaussian mixture with unit variance and one or more components per class.

    Parameters
    ----------
    num_samples : int, >= 2
        Training and validation together; classes are equally frequent to within one, unless a cloud is rare.
    separation : float, standard deviations, >= 0
        Root-mean-square distance between the centres of two clouds: centres are normal with variance
        separation^2 / (2 num_features) per feature. 0 makes the classes indistinguishable.
    clouds_per_class : int, >= 1
        Clouds of a class, equally likely. With several no plane separates two classes.
    rare : float, 0 to 1
        Samples of the last cloud, as a share of those of each other: a stratum that is hidden in its class if
        that has several.
    seed : int or None, >= 0
        Of the draw and the split; that of the run, unless given. With it, runs of several seeds have the same
        data, as with a file.
    """

    name: ClassVar[str] = "mixture"
    source: ClassVar[str] = "thesis 5.2.1, definition 1"

    num_samples: int = parameter(2000, "samples, training and validation together", unit="samples", ge=2)
    num_features: int = parameter(20, "features of a sample", ge=1)
    num_classes: int = parameter(5, "classes", ge=2)
    separation: float = parameter(
        6.0, "root-mean-square distance between two class centres", unit="standard deviations", ge=0
    )
    clouds_per_class: int = parameter(1, "clusters per class", ge=1)
    rare: float = parameter(1.0, "size of the last cluster relative to the others", gt=0, le=1)
    val_fraction: float = parameter(0.2, "share of the samples set aside for validation", ge=0, lt=1)
    seed: int | None = parameter(None, "seed of the draw; none: the run's seed", ge=0)

    def load(self, streams: Streams) -> Dataset:
        """Return a new draw, the same for the same seed."""
        import torch

        clouds = self.num_classes * self.clouds_per_class
        if self.num_samples < clouds:
            what = "classes" if self.clouds_per_class == 1 else "clouds"
            raise ParameterError(
                f"data 'mixture': {self.num_samples} samples are too few for {clouds} {what}; raise "
                "num_samples or lower num_classes"
            )
        what = f"data 'mixture': num_samples = {self.num_samples} of num_features = {self.num_features}"
        # in 64-bit floats: the samples' centres, the noise, and their sum
        numbers = 3 * self.num_samples * (self.num_features + 1) + 2 * clouds * self.num_features
        check_memory(8 * numbers, what, "lower one of them")
        streams = streams if self.seed is None else Streams(self.seed)
        rng = streams.generator("data")
        spread = self.separation / np.sqrt(2 * self.num_features)
        centres = spread * rng.standard_normal((clouds, self.num_features))
        drawn = rng.permutation(self._clouds(clouds))
        labels = drawn % self.num_classes
        noise = rng.standard_normal((self.num_samples, self.num_features))
        x = torch.from_numpy((centres[drawn] + noise).astype(np.float32))
        y = torch.from_numpy(labels)
        train, val = map(
            torch.from_numpy, stratified_split(labels, self.val_fraction, streams.generator("split"))
        )
        classes = tuple(f"cloud {number}" for number in range(self.num_classes))
        return Dataset(
            name=self.name,
            train_x=x[train],
            train_y=y[train],
            val_x=x[val],
            val_y=y[val],
            classes=classes,
            columns={"cloud": drawn[train.numpy()]},
            val_columns={"cloud": drawn[val.numpy()]},
        )

    def _clouds(self, clouds: int) -> Integers:
        """Return the cloud of each sample, in any order."""
        if self.rare == 1:
            return np.arange(self.num_samples, dtype=np.int64) % clouds
        sizes = largest_remainder(self.num_samples, [1.0] * (clouds - 1) + [self.rare])
        return np.repeat(np.arange(clouds, dtype=np.int64), sizes)
