"""Torch module of a causal language model: tokens [n, T] to outputs [n, T, vocabulary].

Importing this module imports transformers; peft is imported when adapters are added.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.pytorch_utils import Conv1D

from fedsim.common.errors import ScenarioError, nearest
from fedsim.learning.architecture import LoRA, matching_names
from fedsim.learning.data.federated import TokenShape
from fedsim.learning.modules import Adaptable

# keys of a configuration that set the length of the longest sequence
_LENGTH_KEYS = ("max_position_embeddings", "n_positions")
_DROPOUT_SUFFIXES = ("dropout", "pdrop")  # suffixes of a configuration's keys for dropout rates
# keys of a configuration that are set to None, as data have no special tokens
_SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


class CausalModule(Adaptable):
    """Causal language model of the package ``transformers``, with random weights.

    Args:
        shape: length T and vocabulary of the sequences.
        outputs: count of outputs of each token.
        family: model type in ``transformers``, such as ``gpt2``.
        config: values of the configuration of this type, by key.

    Raises:
        ScenarioError: the type or a key is unknown, or ``transformers`` rejects the configuration.
    """

    adapters: ClassVar[str] = "*.lora_?.default.weight"

    def __init__(
        self, shape: TokenShape, outputs: int, family: str, config: Mapping[str, object]
    ) -> None:
        """Build a model of the family with random weights, for sequences of ``shape[0]`` tokens.

        ``outputs`` is the size of the vocabulary.
        """
        super().__init__()
        settings = _configure(family, config, outputs, shape[0])
        try:
            model = AutoModelForCausalLM.from_config(settings)
        except Exception as error:
            raise _configuration_error(family, config, error) from error
        # the output layer gets no adapter, as its weights are often shared with the embedding
        head = model.get_output_embeddings()
        self._head_name = ""
        for name, part in model.named_modules():
            if part is head:
                self._head_name = name
        self.model: nn.Module = model

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.model(input_ids=x, use_cache=False).logits
        return outputs

    def adapt(self, lora: LoRA) -> nn.Module:
        """Add low-rank adapters to the linear layers that ``lora.where`` names; return this module.

        The output layer gets no adapter.
        """
        from peft import LoraConfig, inject_adapter_in_model

        layers = {}
        for name, part in self.model.named_modules():
            if isinstance(part, nn.Linear | Conv1D) and name != self._head_name:
                layers[name] = part
        adapted = matching_names(list(layers), lora.where, "model.lora.where", "layer")
        settings = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            target_modules=sorted(adapted),
            # a ``Conv1D`` of transformers stores its weights as [inputs, outputs]
            fan_in_fan_out=all(isinstance(layers[name], Conv1D) for name in adapted),
        )
        inject_adapter_in_model(settings, self.model)
        return self


def _configure(
    family: str, config: Mapping[str, object], vocabulary: int, length: int
) -> PreTrainedConfig:
    """Return the configuration of a model type of ``transformers``, by default without dropout.

    Args:
        family: the model type, such as ``gpt2``.
        config: the user's values of the configuration, by key.
        vocabulary: count of different tokens.
        length: length of the longest sequence.

    Raises:
        ScenarioError: the type or a key is unknown, or ``transformers`` rejects the values.
    """
    if family not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        allowed = "a type of causal language model in transformers, such as gpt2 or llama"
        hint = nearest(family, list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
        raise ScenarioError(f"model.family is {family!r}; allowed is {allowed}{hint}")
    keys = AutoConfig.for_model(family).to_dict()
    for key in config:
        if key not in keys:
            raise ScenarioError(
                f"model.config has {key!r}, which the configuration of {family!r} lacks"
                f"{nearest(key, list(keys))}"
            )
    dropout_keys = [key for key in keys if key.endswith(_DROPOUT_SUFFIXES)]
    values = {**dict.fromkeys(_SPECIAL_TOKENS), **dict.fromkeys(dropout_keys, 0.0), **config}
    values["vocab_size"] = vocabulary
    for name in _LENGTH_KEYS:
        if name in keys:
            values[name] = length
    try:
        return AutoConfig.for_model(family, **values)
    except Exception as error:
        raise _configuration_error(family, config, error) from error


def _configuration_error(
    family: str, config: Mapping[str, object], error: Exception
) -> ScenarioError:
    return ScenarioError(
        f"model.family {family!r} failed with model.config = {dict(config)}: "
        f"{type(error).__name__}: {error}"
    )
