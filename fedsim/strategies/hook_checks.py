"""Checks of what hooks of a user's strategy return: groups, tensors and entries of the summary."""

import json
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from fedsim.common.arguments import MOST_INDEX, is_text, is_whole, plain
from fedsim.common.errors import show_value
from fedsim.federation.round_checks import is_file_name

_NO_GROUP = -1
GROUP_IN_WORDS = f"a whole number from {_NO_GROUP} to {MOST_INDEX}, or None"
GROUPS_IN_WORDS = f"a list with the group of each device, each {GROUP_IN_WORDS}"
TENSORS_IN_WORDS = "a dict of files by name, each a dict of arrays of numbers by name"
FACTS_IN_WORDS = (
    "a dict with 'algorithm', a text, 'notes' and 'warnings', lists of texts, or JSON entries of "
    "your own with finite numbers"
)

_JSON_ERRORS = (TypeError, ValueError, RecursionError)


def find_wrong_group(group: object, *_: object, **__: object) -> str:
    """Return a text that shows the result of ``Strategy.group_of`` if it is no group, else ""."""
    return "" if _is_group(group) else show_value(group)


def find_wrong_groups(groups: Sequence[object], strategy: object, devices: Sequence[int]) -> str:
    """Return a text on the first mistake in the result of ``Strategy.groups_of``, or "".

    Args:
        groups: the group of each device.
        strategy: the strategy.
        devices: the devices.
    """
    listed = list(groups)
    if len(listed) != len(devices):
        return f"{len(listed)} groups for {len(devices)} devices"
    for device, group in zip(devices, listed, strict=True):
        if not _is_group(group):
            return f"{show_value(group)} for device {device}"
    return ""


def _is_group(value: object) -> bool:
    group = plain(value)
    return group is None or (is_whole(group) and _NO_GROUP <= cast(int, group) <= MOST_INDEX)


def find_wrong_tensors(files: Mapping[object, object], *_: object, **__: object) -> str:
    """Return a text on the first mistake in the result of ``Strategy.tensors``, or ""."""
    for name, tensors in files.items():
        if not is_file_name(name):
            return f"the name {show_value(name)}, by which no file can be written"
        if not isinstance(tensors, Mapping):
            return f"{show_value(tensors)} for the file {name!r}"
        for tensor_name, tensor in tensors.items():
            if not is_text(tensor_name) or not tensor_name:
                return f"the name {show_value(tensor_name)} of an array in the file {name!r}"
            if not isinstance(tensor, np.ndarray) or tensor.dtype.kind not in "biuf":
                return f"{show_value(tensor)} for the array {tensor_name!r} in the file {name!r}"
    return ""


def find_wrong_facts(facts: Mapping[object, object], *_: object, **__: object) -> str:
    """Return a text on the first mistake in the result of ``Strategy.facts``, or ""."""
    for name, fact in facts.items():
        if not is_text(name):
            return f"the name {show_value(name)} of an entry"
        if not _is_fact(name, fact):
            return f"{show_value(fact)} for {name!r}"
    return ""


def _is_fact(name: object, fact: object) -> bool:
    if name == "algorithm":
        return is_text(fact)
    if name in ("notes", "warnings"):
        return isinstance(fact, list | tuple) and all(map(is_text, fact))
    try:
        json.dumps(fact, allow_nan=False)
    except _JSON_ERRORS:
        return False
    return True
