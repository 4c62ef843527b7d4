"""Variants of a study, and the changes of the base scenario that make a variant's scenario."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from fedsim.common.errors import show_value
from fedsim.lab.compare.lines import format_value, short_key
from fedsim.lab.study.spec import PART, SIZE, TRIAL, Size, StudyPart, StudySpec
from fedsim.running.overrides import Tables, at, changed, nest_dotted_keys

# greatest length of a folder's name (characters), so that paths stay within limits of file systems
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Variant:
    """One of the settings that a study compares: a variant by name, at one point of the grid.

    The grid has lists of values for some keys of the scenario; a point is one value of each.

    Attributes:
        name: name of the variant or reference in the study.
        point: pairs of key and value: the study's size and part, if any, then the keys of the grid.
            The variant of a search's trial also has the trial's index and values.
        changes: changes of the base scenario; values of the grid override them.
    """

    name: str
    point: tuple[tuple[str, Any], ...] = ()
    changes: Mapping[str, object] = field(default_factory=dict, compare=False)

    @property
    def label(self) -> str:
        """Name and grid values as text, such as ``fedprox, share=0.3``; unique within a study."""
        keys = [key for key, _ in self.point]
        parts = [self.name]
        for key, value in self.point:
            parts.append(f"{short_key(key, keys)}={format_value(value)}")
        return ", ".join(parts)

    def at(self, values: Mapping[str, object]) -> "Variant":
        """Return a copy of the variant in which further keys have certain values.

        Args:
            values: dict from dotted key of the scenario to value, such as the values of a trial.
        """
        return replace(self, point=(*self.point, *values.items()))

    @property
    def folder(self) -> str:
        return safe_name(self.label)


VariantLayers = dict[str, Mapping[str, object]]
"""Tables of a base scenario and of its changes, by their origin in the study's file."""


def layers_of(variant: Variant, spec: StudySpec) -> VariantLayers:
    """Return the tables from which a variant's scenario is merged: the base and all changes.

    Later tables override earlier ones. They are the base scenario, then the study's tables
    ``[sizes]`` (such as a small and a full study), ``[parts]`` (some of the variants, with further
    changes) and ``[variants]``, and at last the values of the grid.

    Args:
        variant: the variant, with one value of each key of the study's grid.
        spec: the study.

    Returns:
        Dict from origin in the study's file, such as ``variants.fedavg``, to the tables there.
    """
    point = {key: value for key, value in variant.point if key != TRIAL}
    size_name = point.pop(SIZE, "")
    part_name = point.pop(PART, "")
    size = spec.sizes.get(size_name, Size())
    part = spec.parts.get(part_name, StudyPart())
    layers: VariantLayers = {
        "base": part.base or size.base or spec.base,
        f"sizes.{size_name}.changes": nest_dotted_keys(size.changes),
        f"parts.{part_name}.changes": nest_dotted_keys(part.changes),
    }
    if variant.name in spec.variants:
        layers[f"variants.{variant.name}"] = nest_dotted_keys(variant.changes)
    for key, value in point.items():
        sets = {**spec.sets.get(key, {}), **size.sets.get(key, {})}
        if sets:  # the key is the name of a set, and its values are names of changes
            layers[f"sets.{key}.{value}"] = nest_dotted_keys(sets[value])
        else:
            layers[f"grid.{key}"] = nest_dotted_keys({key: value})
    return layers


def merge(layers: VariantLayers) -> Tables:
    """Merge a base scenario and its changes into one scenario; later tables override earlier ones.

    Args:
        layers: dict from origin in the study's file to the tables there, as ``layers_of`` returns
            it.
    """
    tables: Tables = reduce(changed, layers.values(), {})
    return tables


def find_last_layer(layers: VariantLayers, keys: Sequence[str]) -> str:
    """Return a text that names the table of a study that decides a key's value, and the value.

    An example is ``variants.slow says training.lr = 0.1``. The last table that sets the key, or
    sets a table around the key, decides.

    Args:
        layers: dict from origin in the study's file to the tables there, as ``layers_of`` returns
            it.
        keys: the parts of a dotted key.
    """
    for origin, tables in reversed(layers.items()):
        for depth in range(len(keys), 0, -1):
            value = at(tables, keys[:depth])
            if value is not None:
                return f"{origin} says {'.'.join(keys[:depth])} = {show_value(value)}"
    return "nothing of it is left"


def safe_name(name: str) -> str:
    """Convert a name to a folder name, made of letters, digits and ``-_.=,+``.

    A changed name ends in a part of its SHA-256.
    """
    compact_name = name.replace(", ", ",")
    safe_text = re.sub(r"[^A-Za-z0-9_.=,+-]", "_", compact_name)
    is_unchanged = safe_text == compact_name and len(safe_text) <= _LONGEST_NAME
    if is_unchanged and safe_text[:1].isalnum() and not safe_text.endswith("."):
        return safe_text
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    start = safe_text[:_LONGEST_NAME].lstrip("-_.=,+")
    return f"{start or 'variant'}-{digest}"
