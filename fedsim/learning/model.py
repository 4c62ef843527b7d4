"""The base of every model of a scenario, and of those whose parts are told apart by patterns of their names."""

from abc import abstractmethod
from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field, model_validator

from fedsim.errors import ScenarioError
from fedsim.language.spec import Spec
from fedsim.learning.architecture import Shape, Tensor
from fedsim.model_cost import ModelCost
from fedsim.training import CutBy

if TYPE_CHECKING:
    from fedsim.learning.objectives import Objective
    from fedsim.learning.spec import Trainer

Patterns = Annotated[list[str], Field(min_length=1)] | str
"""Names of tensors or layers, in which * stands for anything."""


def matching(names: Sequence[str], patterns: Patterns, key: str, what: str = "tensor") -> set[str]:
    """The names (of a model's tensors or layers) that match one of the patterns, as ``fnmatch`` has them.

    A pattern of the scenario's ``key`` that matches nothing raises ``ScenarioError``.
    """
    chosen: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if not (found := [name for name in names if fnmatchcase(name, pattern)]):
            near = get_close_matches(pattern, names, n=3, cutoff=0.3)
            hint = f"; the nearest are {', '.join(near)}" if near else ""
            raise ScenarioError(f"{key} has {pattern!r}, and the model has no such {what}{hint}; it has {', '.join(names)}")
        chosen.update(found)
    return chosen


class LoRA(Spec):
    """``model.lora``: low-rank adapters beside dense layers, W x + b + alpha / rank B A x (Hu et al., "LoRA", 2021).

    Their tensors are called ``LAYER.lora_A`` [rank, inputs], which is drawn as a dense layer's weights are, and
    ``LAYER.lora_B`` [outputs, rank], which begins at 0. Without ``model.train`` they alone are trained.

    Attributes:
        rank: of every adapter.
        alpha: over the rank the factor of what an adapter adds.
        where: names of the layers that get one; by default every ``torch.nn.Linear``.
    """

    rank: int = Field(ge=1, le=100_000)
    alpha: float = Field(default=16.0, gt=0.0, le=1e6)
    where: Patterns = "*"


class Model(Spec):
    """A model: its size and cost for samples of a shape and a number of classes."""

    learnable: ClassVar[bool] = True
    """Whether it has weights, and not only a size."""

    kind: str

    @abstractmethod
    def tensors(self, shape: Shape, classes: int) -> list[Tensor]:
        """The parameters (and running statistics) that are trained, in the order of a flat model.

        Raises:
            ScenarioError: the model cannot take such samples, or a pattern matches nothing.
        """

    @abstractmethod
    def flops(self, shape: Shape, classes: int) -> float:
        """FLOPs of a training step on one sample."""

    @abstractmethod
    def cost(self, shape: Shape, classes: int, training: "Trainer", objective: "Objective | None" = None) -> ModelCost:
        """The cost of one step with the optimiser of ``training`` and the loss of ``objective``, without it cross-entropy.

        What strategies add to a step (a proximal term) does not count. A module that cannot be trained on such samples raises
        ``ScenarioError``.
        """

    def parameters(self, shape: Shape, classes: int) -> int:
        """Numbers in the flat model."""
        return sum(tensor.size for tensor in self.tensors(shape, classes))

    def base_bytes(self, shape: Shape, classes: int) -> float:
        """Bytes of the frozen tensors."""
        return 0.0

    @property
    def says_what_stays(self) -> bool:
        """Whether the scenario says which tensors stay on the devices."""
        return False

    def cut(self, by: CutBy, size: float) -> Self:
        """The smaller model of a width, or with adapters of a rank, whose tensors are the first numbers of this one's.

        Raises:
            ScenarioError: there is no such model.
        """
        raise ScenarioError(
            f"strategy.sizes has the {by} of each device's model, and model.kind is {self.kind!r}, which has none; allowed are "
            + ("fedsim's models of dense layers and convolutions" if by == "width" else "models with adapters (model.lora)")
        )


class PartedModel(Model):
    """A model whose parts are told apart.

    Attributes:
        lora: adapters beside the model's dense layers; None: there are none.
        train: patterns of the tensors that are trained; None: all, or with ``lora`` the adapters. The others are frozen: every
            device downloads them once, with its first model (``base`` in the ledger), and no message has them again.
        keep: patterns of trained tensors that never leave a device: it begins with the initial ones and then has its own. A
            pattern ``CLASS:NAME`` matches by the class of the layer too, as ``*Norm*:*`` does.
        send: patterns of the tensors that are sent, instead of ``keep``: all others stay.
    """

    lora: LoRA | None = None
    train: Patterns | None = None
    keep: Patterns | None = None
    send: Patterns | None = None

    @model_validator(mode="after")
    def _parts(self) -> Self:
        if self.keep is not None and self.send is not None:
            raise ValueError("'keep' and 'send' both say which tensors leave a device; give one of them")
        return self

    @property
    def says_what_stays(self) -> bool:
        return self.keep is not None or self.send is not None

    @property
    def has_frozen(self) -> bool:
        """Whether the scenario says that some tensors are not trained."""
        return self.lora is not None or self.train is not None

    def cut(self, by: CutBy, size: float) -> Self:
        if by == "width" or self.lora is None:
            return super().cut(by, size)
        if size != int(size) or size > self.lora.rank:
            raise ScenarioError(
                f"strategy.sizes has a rank of {size:g}, and model.lora.rank is {self.lora.rank}; allowed are whole numbers up "
                "to that"
            )
        narrow = {"lora": self.lora.model_copy(update={"rank": int(size)})}
        return self.model_copy(update=narrow | ({"train": None} if by == "adapters" else {}))

    @abstractmethod
    def trained(self, shape: Shape, classes: int) -> list[Tensor]:
        """The tensors, whatever of them is kept or sent."""

    def tensors(self, shape: Shape, classes: int) -> list[Tensor]:
        found = self.trained(shape, classes)
        key, patterns = ("keep", self.keep) if self.send is None else ("send", self.send)
        if patterns is None:
            return found
        names = [tensor.name for tensor in found]
        by_class = {f"{tensor.layer}:{tensor.name}": tensor.name for tensor in found}
        chosen = matching([*names, *by_class], patterns, f"model.{key}")
        chosen |= {by_class[name] for name in chosen if name in by_class}
        return [tensor._replace(kept=(tensor.name in chosen) == (key == "keep")) for tensor in found]
