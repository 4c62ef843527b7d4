"""An LSTM and a transformer from tokens [n, T] to [n, T, outputs] or [n, outputs]."""

import torch
from torch import Tensor, nn

from fedsim.learning.data.federated import TokenShape


class LSTMModule(nn.Module):
    """An embedding, an LSTM, and a dense layer at each token, or at the last one."""

    def __init__(
        self, shape: TokenShape, outputs: int, embedding: int, hidden: int, layers: int
    ) -> None:
        super().__init__()
        self.one = shape.answers == "one"
        self.embedding = nn.Embedding(shape.vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(x))
        if self.one:
            hidden = hidden[:, -1]
        outputs: Tensor = self.head(hidden)
        return outputs


class TransformerModule(nn.Module):
    """Embeddings of tokens and places, blocks with norms before their layers, and a dense layer."""

    def __init__(self, shape: TokenShape, outputs: int, width: int, layers: int) -> None:
        super().__init__()
        self.one = shape.answers == "one"
        self.embedding = nn.Embedding(shape.vocabulary, width)
        self.places = nn.Parameter(torch.randn(shape[0], width) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)
        later = None
        if shape.answers == "next":
            later = torch.ones(shape[0], shape[0], dtype=torch.bool).triu(1)
        self.register_buffer("later", later, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.embedding(x) + self.places
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.later)
        hidden = self.norm(hidden)
        if self.one:
            hidden = hidden.mean(dim=1)
        outputs: Tensor = self.head(hidden)
        return outputs
