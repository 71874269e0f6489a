"""How much work each worker gets."""

from psbench.stragglers.fixed import Fixed

__all__ = ["Fixed"]
