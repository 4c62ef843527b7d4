"""Kinds of small models of token sequences: an LSTM and a transformer."""

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from fedsim.common.errors import ScenarioError
from fedsim.learning.architecture import Shape
from fedsim.learning.data.federated import TokenShape
from fedsim.learning.models import TorchModel

if TYPE_CHECKING:
    from torch import nn


class TokenModel(TorchModel):
    """Base of the models of token sequences, which are built for a sequence length and vocabulary.

    A subclass implements ``made``, which builds the torch module.
    """

    is_tried: ClassVar[bool] = False

    def plain_module(self, shape: Shape, classes: int, seed: int = 0) -> "nn.Module":
        from fedsim.learning.modules import make_seeded

        if not isinstance(shape, TokenShape) or len(shape) != 1:
            unit = "tokens" if isinstance(shape, TokenShape) else "numbers"
            raise ScenarioError(
                f"model.kind is {self.kind!r}, which takes sequences of tokens, and samples "
                f"are of shape {tuple(shape)} {unit}"
            )
        return make_seeded(lambda: self.made(shape, classes), seed)

    @abstractmethod
    def made(self, shape: TokenShape, outputs: int) -> "nn.Module":
        """Build the torch module, with weights drawn from torch's global generator.

        Args:
            shape: length and vocabulary of the sequences.
            outputs: count of outputs of the last layer.
        """


class CharLSTM(TokenModel):
    """An LSTM over embedded tokens, and a dense layer at each token.

    If each sample has one label, the dense layer is only at the last token.

    By default the model has 23,397 parameters on 61 characters. With ``hidden = 256`` and ``layers
    = 2`` it is the model of TensorFlow Federated's Shakespeare (820,522 parameters on 90
    characters), except for the second vector of biases of torch's LSTM, 2,048 parameters more.

    Attributes:
        embedding: width of the embedding of a token.
        hidden: units of each LSTM layer.
        layers: number of LSTM layers.
    """

    kind: Literal["char-lstm"] = "char-lstm"
    embedding: int = Field(default=8, ge=1, le=100_000)
    hidden: int = Field(default=64, ge=1, le=100_000)
    layers: int = Field(default=1, ge=1, le=100)

    def made(self, shape: TokenShape, outputs: int) -> "nn.Module":
        from fedsim.toolbox.models.sequences import LSTMModule

        return LSTMModule(shape, outputs, self.embedding, self.hidden, self.layers)


class Transformer(TokenModel):
    """A transformer with learned positions, norms before blocks, and no dropout.

    Attention is causal for the prediction of next tokens (Radford et al. 2019).

    Attributes:
        hidden: width of the representation of a token, divided among four heads of attention. The
            dense layers within a block are four times as wide.
        layers: number of blocks.
    """

    kind: Literal["transformer"] = "transformer"
    hidden: int = Field(default=32, ge=4, le=100_000, multiple_of=4)
    layers: int = Field(default=2, ge=1, le=1_000)

    def made(self, shape: TokenShape, outputs: int) -> "nn.Module":
        from fedsim.toolbox.models.sequences import TransformerModule

        return TransformerModule(shape, outputs, self.hidden, self.layers)
