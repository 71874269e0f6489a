"""The layers of a small decoder-only transformer."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

#: deviation of initial weights; GPT-2's, whose layers are normalised before and so tolerate small weights
_DEVIATION = 0.02


class CausalAttention(nn.Module):
    """Self-attention in which a token attends to itself and earlier tokens.

    Shapes
    ------
    (B, T, width) -> (B, T, width)
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return for each token the mean of values, weighted by the similarity of keys to its query."""
        batch, length, width = x.shape
        each = self.project(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = each.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed: Tensor = self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return mixed


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them, applied to each token separately."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, hidden)
        self.out = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, T, width) from (B, T, width)."""
        found: Tensor = self.out(functional.gelu(self.inner(x)))
        return found


class TransformerBlock(nn.Module):
    """Attention and feed-forward, each with pre-normalisation and a residual connection."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = CausalAttention(width, heads)
        self.feed_forward = FeedForward(width, hidden)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, T, width) from (B, T, width)."""
        x = x + self.drop(self.attention(self.norms[0](x)))
        added: Tensor = x + self.drop(self.feed_forward(self.norms[1](x)))
        return added


class Decoder(nn.Module):
    """Embeddings of tokens and positions, blocks, and logits of the next token at every place.

    Shapes
    ------
    int64, (B, T) -> float32, (B, T, vocabulary)
    """

    def __init__(
        self,
        vocabulary: int,
        context: int,
        width: int,
        blocks: list[TransformerBlock],
        *,
        dropout: float,
        tied: bool,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.head = None if tied else nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.tokens(tokens) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), (self.head or self.tokens).weight)


@torch.no_grad()
def initialise(network: Decoder, generator: Generator) -> None:
    """Initialise weights as GPT-2 does: normal, with smaller deviation in layers before a residual sum."""
    into_sum = _DEVIATION / math.sqrt(2 * len(network.blocks))
    for name, layer in network.named_modules():
        if isinstance(layer, (nn.Linear, nn.Embedding)):
            deviation = into_sum if name.endswith(".out") else _DEVIATION
            layer.weight.normal_(0.0, deviation, generator=generator)
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            layer.bias.zero_()
        elif isinstance(layer, nn.LayerNorm):
            layer.reset_parameters()
