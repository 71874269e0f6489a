"""Networks that take several tensors, for tests; in a module, so that other processes can import them."""

from __future__ import annotations

from torch import nn


class Siamese(nn.Module):
    """Says whether two samples are alike: one layer for both, and the distances between them."""

    def __init__(self):
        super().__init__()
        self.each = nn.Linear(4, 5)
        self.answer = nn.Linear(5, 2)

    def forward(self, left, right):
        return self.answer((self.each(left).relu() - self.each(right).relu()).abs())


class MaskedText(nn.Module):
    """The mean of the tokens' vectors that the mask keeps, classified."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(9, 3)
        self.answer = nn.Linear(3, 2)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.to(self.tokens.weight.dtype).unsqueeze(-1)
        return self.answer((self.tokens(input_ids) * mask).sum(1) / mask.sum(1))


class Answers(nn.Module):
    """Answers with a mapping that has logits, as models of Hugging Face do, for samples of four numbers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        found = self.layer(x)
        return {"logits": found, "hidden": (x, [found])}
