"""``model.kind = "language"``: a causal language model of transformers, with adapters of peft."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from fedsim.common.errors import ScenarioError
from fedsim.learning.data.federated import TokenShape
from fedsim.toolbox.models.tokens import TokenModel

if TYPE_CHECKING:
    from torch import nn

PACKAGES = ("transformers", "peft")
INSTALL = "pip install 'transformers>=5' 'peft>=0.18'"


class LanguageModel(TokenModel):
    """A causal language model of the package ``transformers``, for the objective ``next-token``.

    The model is built from its configuration with random weights; nothing is downloaded.
    ``model.lora`` adds adapters of the package ``peft``, also to GPT-2's layers, which are no
    ``torch.nn.Linear``. Needs both packages: ``pip install 'transformers>=5' 'peft>=0.18'``.

    Attributes:
        family: model type in transformers, such as ``gpt2`` or ``llama``.
        config: keys of this type's configuration in transformers, such as ``n_layer`` and
            ``n_embd`` of ``gpt2``. The vocabulary and the longest sequence follow from the data.
            Dropout rates are 0 unless they are set here.
    """

    is_tried: ClassVar[bool] = True
    kind: Literal["language"] = "language"
    family: str = "gpt2"
    config: dict[str, object] = Field(default_factory=dict)

    def made(self, shape: TokenShape, outputs: int) -> "nn.Module":
        """Build the model, after checking that its packages are installed.

        Raises:
            ScenarioError: a package is missing, or the objective is not ``next-token``.
        """
        missing = [name for name in PACKAGES if find_spec(name) is None]
        if missing:
            raise ScenarioError(
                f"model.kind is 'language', which needs the package {missing[0]!r}; {INSTALL} "
                "installs it, and model.kind = 'transformer' needs nothing"
            )
        from fedsim.toolbox.models.causal import CausalModule

        if shape.answers != "next":
            raise ScenarioError(
                "model.kind is 'language', which predicts next tokens; allowed is objective.kind = "
                "'next-token'"
            )
        return CausalModule(shape, outputs, self.family, self.config)
