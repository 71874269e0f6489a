"""A small decoder-only transformer, for the prediction of next tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import model_validator

from psbench.core.specification import parameter
from psbench.errors import ParameterError
from psbench.models.base import Model

if TYPE_CHECKING:
    from torch import Generator, nn


class Transformer(Model):
    """A decoder-only transformer with learned positions, normalised before each layer, as GPT-2.

    Parameters
    ----------
    width : int
        Numbers that a token is represented by; a multiple of `heads`.

    Notes
    -----
    Our reading: attention weights themselves are not dropped.
    """

    name: ClassVar[str] = "transformer"
    source: ClassVar[str] = "Radford et al. 2019 (GPT-2), sec. 2.3; Press and Wolf 2017"
    tasks: ClassVar[tuple[str, ...]] = ("sequence",)

    width: int = parameter(64, "size of a token's representation", ge=1)
    layers: int = parameter(2, "blocks of attention and feed-forward", unit="layers", ge=1)
    heads: int = parameter(4, "attention heads", ge=1)
    hidden: int = parameter(0, "neurons of a feed-forward layer; 0: four times the width", ge=0)
    context: int = parameter(0, "maximum number of tokens; 0: length of a sample", unit="tokens", ge=0)
    dropout: float = parameter(0.0, "dropout probability in training", ge=0, lt=1)
    tied: bool = parameter(True, "whether the output layer is the embedding of the tokens")

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.width % self.heads:
            raise ParameterError(
                f"model {self.name!r}: width {self.width} is not a multiple of its {self.heads} heads"
            )
        return self

    def check_input(self, input_shape: tuple[int, ...]) -> None:
        """Raise ParameterError if samples are not sequences of tokens, or are longer than the context."""
        if len(input_shape) != 1:
            raise ParameterError(
                f"model {self.name!r} needs sequences of tokens (tokens,), got samples of shape "
                f"{tuple(input_shape)}; use data of text"
            )
        if self.context and input_shape[0] > self.context:
            raise ParameterError(
                f"model {self.name!r}: samples have {input_shape[0]} tokens, but its context is "
                f"{self.context}"
            )

    def network(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return the layers."""
        from psbench.models.transformer_layers import Decoder, TransformerBlock

        width, dropout, context = self.width, self.dropout, self.context or input_shape[0]
        hidden = self.hidden or 4 * width
        blocks = [TransformerBlock(width, self.heads, hidden, dropout) for _ in range(self.layers)]
        return Decoder(num_outputs, context, width, blocks, dropout=dropout, tied=self.tied)

    def initialise(self, network: nn.Module, generator: Generator) -> None:
        """Draw weights as GPT-2 does; see `psbench.models.transformer_layers`."""
        from psbench.models.transformer_layers import Decoder, initialise

        assert isinstance(network, Decoder)
        initialise(network, generator)


class TransformerSmall(Transformer):
    """`transformer` at the smallest of three sizes: 26,000 parameters without the embedding.

    A step of 32 samples of 32 tokens takes a few milliseconds on one core.
    """

    name: ClassVar[str] = "transformer_small"

    width: int = parameter(32, "size of a token's representation", ge=1)
    heads: int = parameter(2, "attention heads", ge=1)


class TransformerMedium(Transformer):
    """`transformer` at the second of three sizes: 200,000 parameters without the embedding."""

    name: ClassVar[str] = "transformer_medium"

    layers: int = parameter(4, "blocks of attention and feed-forward", unit="layers", ge=1)


class TransformerLarge(Transformer):
    """`transformer` at the largest of three sizes: 1,200,000 parameters without the embedding."""

    name: ClassVar[str] = "transformer_large"

    width: int = parameter(128, "size of a token's representation", ge=1)
    layers: int = parameter(6, "blocks of attention and feed-forward", unit="layers", ge=1)
    heads: int = parameter(8, "attention heads", ge=1)
