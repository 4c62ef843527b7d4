"""Torch modules of an LSTM and a transformer: tokens [n, T] to [n, T, outputs] or [n, outputs]."""

import torch
from torch import Tensor, nn

from fedsim.learning.data.federated import TokenShape


class LSTMModule(nn.Module):
    """Embedding, LSTM, and a dense layer at each token, or only at the last token.

    Args:
        shape: length T, vocabulary, and whether there is one answer (target) for each sample (the
            dense layer is then at the last token) or for each token.
        outputs: count of outputs of the dense layer.
        embedding: width of the embedding.
        hidden: units of each LSTM layer.
        layers: count of LSTM layers.
    """

    def __init__(
        self, shape: TokenShape, outputs: int, embedding: int, hidden: int, layers: int
    ) -> None:
        super().__init__()
        self.has_one_answer = shape.answers == "one"
        self.embedding = nn.Embedding(shape.vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(x))
        if self.has_one_answer:
            hidden = hidden[:, -1]
        outputs: Tensor = self.head(hidden)
        return outputs


class TransformerModule(nn.Module):
    """Transformer: embeddings of tokens and positions, pre-norm blocks, and a dense layer.

    Args:
        shape: length T, vocabulary, and whether there is one answer (target) for each sample (then
            predicted from the mean over all tokens) or for each token. If the answers are next
            tokens, attention is causal.
        outputs: count of outputs of the dense layer.
        width: width of the embedding and the blocks, with four heads of attention.
        layers: count of blocks.
    """

    def __init__(self, shape: TokenShape, outputs: int, width: int, layers: int) -> None:
        super().__init__()
        self.has_one_answer = shape.answers == "one"  # one answer a sequence, not one a token
        self.embedding = nn.Embedding(shape.vocabulary, width)
        # learned positions, [length, width], with GPT-2's standard deviation
        self.places = nn.Parameter(torch.randn(shape[0], width) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                nhead=4,
                dim_feedforward=4 * width,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)
        later_tokens = None  # the mask of attention: True for a token after the attending token
        if shape.answers == "next":
            later_tokens = torch.ones(shape[0], shape[0], dtype=torch.bool).triu(1)
        self.register_buffer("later_tokens", later_tokens, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.embedding(x) + self.places
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.later_tokens)
        hidden = self.norm(hidden)
        if self.has_one_answer:
            hidden = hidden.mean(dim=1)
        outputs: Tensor = self.head(hidden)
        return outputs
