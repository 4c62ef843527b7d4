"""Patterns of the names of tensors and layers, and the table ``model.lora``."""

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field

from fedsim.errors import ScenarioError
from fedsim.language.spec import Spec

Patterns = Annotated[list[str], Field(min_length=1)] | str
"""Names of tensors or layers, in which * stands for anything."""


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


def listed(patterns: Patterns) -> list[str]:
    """Patterns as a list."""
    return [patterns] if isinstance(patterns, str) else patterns


def matching(names: Sequence[str], patterns: Patterns, key: str, what: str = "tensor") -> set[str]:
    """The names that match one of the patterns, in which * stands for anything.

    Args:
        names: of tensors or layers of a model.
        patterns: as ``fnmatch`` has them.
        key: of the scenario, for messages; ``what`` the names are of.

    Raises:
        ScenarioError: a pattern matches nothing.
    """
    for pattern in listed(patterns):
        if not any(fnmatchcase(name, pattern) for name in names):
            near = get_close_matches(pattern, names, n=3, cutoff=0.3)
            hint = f"; the nearest are {', '.join(near)}" if near else ""
            raise ScenarioError(f"{key} has {pattern!r}, and the model has no such {what}{hint}; it has {', '.join(names)}")
    return {name for name in names if any(fnmatchcase(name, pattern) for pattern in listed(patterns))}
