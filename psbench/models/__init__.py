"""Networks by name; they answer with logits."""

from psbench.models.base import Model
from psbench.models.dense import MLP

__all__ = ["MLP", "Model"]
