"""Checks of what a strategy gives to the end of a round: its models, updates, figures and counts."""

import math
from collections.abc import Mapping, Sequence
from typing import cast

from fedsim.common.arguments import (
    INDEX,
    in_words,
    is_index,
    is_number,
    is_text,
    number,
    optional,
    plain,
    refusal,
)
from fedsim.common.errors import SimulationError, show_value
from fedsim.common.user_records import check_fields
from fedsim.federation.argument_rules import devices_of
from fedsim.federation.round_result import Measured
from fedsim.learning.refs import Ref, length_of

_FIGURE = optional(number())
_COUNTS = ("selected", "valid", "slow", "disconnected")
BOOKED = ("round", "time", "bytes_down", "bytes_up", "bytes_peer", "joules", "grams", "cost")
"""Columns of ``rounds.parquet`` that fedsim fills, and no strategy."""

# ``fits`` of this rule receives the count of devices in place of an object with a method
_DEVICES = optional(devices_of(lambda count: cast(int, count)))


MODELS_IN_WORDS = (
    "a dict from names to pairs of a model (Ref) and the devices that it serves (None: all); if a "
    "model comes from 'state', the loop may keep an entry of that name there: use another name"
)
"""Values that ``Strategy.models`` may return, in words."""


# file systems allow 255 bytes, some of which a file's ending and a temporary name need
_MOST_NAME_BYTES = 200


def is_file_name(name: object) -> bool:
    """Return whether a value can name a file of models: 1 to 200 bytes, without "/" and NUL."""
    if not isinstance(name, str) or not is_text(name) or not name:
        return False
    return "/" not in name and "\0" not in name and len(name.encode()) <= _MOST_NAME_BYTES


def _is_model_name(name: object) -> bool:
    """Return whether a value is a name of a model: a file name, or ``family/index``."""
    return isinstance(name, str) and is_text(name) and is_file_name(name.partition("/")[0])


def find_wrong_model(models: Mapping[str, object], devices: int, parameters: int) -> str:
    """Describe the first wrong entry of a strategy's models; "" if all entries are right.

    Args:
        models: the models by name, each with the devices that it serves, as ``Strategy.models``
            returns them.
        devices: count of devices.
        parameters: count of a model's parameters.
    """
    for name, assigned in models.items():
        if not _is_model_name(name):
            return f"the name {show_value(name)}, by which no file can be written"
        if not isinstance(assigned, tuple) or len(assigned) != 2:
            return f"{show_value(assigned)} for {name!r}"
        model, served = assigned
        if not isinstance(model, Ref):
            return f"{show_value(model)} for {name!r}"
        length = length_of(model, parameters)  # None: unknown before the model is computed
        if length not in (None, parameters):
            return f"an array of {length} numbers, in place of {parameters}, for {name!r}"
        if not _DEVICES.fits(devices, plain(served)):
            return f"the devices {show_value(served)}, of {devices}, for {name!r}"
    return ""


def check_updates(updates: Sequence[object], devices: int) -> None:
    """Raise ``SimulationError`` if an entry of ``updates`` is no ``Measured``, or has a wrong field.

    Args:
        updates: the argument ``updates`` of ``Server.finish_round``.
        devices: count of devices.
    """
    for update in updates:
        if not isinstance(update, Measured):
            raise refusal("Server.finish_round", "an entry of updates", update, "a Measured")
        name = _find_wrong_field(update, devices)
        if name:
            value = getattr(update, name)
            # ``_FIELDS``: allowed values of each field, in words
            allowed = _FIELDS[name].format(devices=f"0 to {devices - 1}")
            raise refusal("Server.finish_round", f"{name} of a Measured", value, allowed)


_FIELDS = {
    "update": "a model (Ref)",
    "weight": "a finite number",
    "start": "a model (Ref), or None",
    "center": "a model (Ref), or None",
    "device": "{devices}, or None",
}
"""Field of ``Measured`` -> its allowed values in words."""


def _find_wrong_field(update: Measured, devices: int) -> str:
    """Return the name of the first field of an update with a wrong value; empty if all are right."""
    model, weight, start, center, device = update
    if not isinstance(model, Ref):
        return "update"
    if not is_number(weight) or not math.isfinite(weight):
        return "weight"
    if start is not None and not isinstance(start, Ref):
        return "start"
    if center is not None and not isinstance(center, Ref):
        return "center"
    index = plain(device)
    if index is not None and not (is_index(index) and cast(int, index) < devices):
        return "device"
    return ""


def check_figures(
    method: str, figures: Mapping[str, object], counts: Mapping[str, object]
) -> dict[str, object]:
    """Check figures and counts of a round, and convert numbers of numpy to plain numbers.

    Args:
        method: the method that the strategy has called, such as ``Server.note_round``.
        figures: values of columns of ``rounds.parquet``, by name.
        counts: counts of the round's tasks, and further fields of the record, by name.

    Returns:
        Figures and counts by name.

    Raises:
        SimulationError: a name belongs to a column that fedsim fills, or is in both ``figures`` and
            ``counts``, or a value is wrong.
    """
    if not figures and not counts:
        return {}
    for name in (*figures, *counts):
        if name in BOOKED:
            raise SimulationError(
                f"{method}: {name!r} is a column that fedsim itself fills; allowed are other names "
                "of figures and counts"
            )
        if name in figures and name in counts:
            raise SimulationError(f"{method}: {name!r} is given twice; allowed is once")
    fields: dict[str, object] = {}
    for name, value in (*figures.items(), *counts.items()):
        if name in _COUNTS:
            rule = INDEX
        elif name in figures or name == "epsilon":
            rule = _FIGURE
        else:  # the field is only in the record, and ``check_fields`` checks it
            fields[name] = value
            continue
        plain_value = plain(value)
        if not rule.fits(None, plain_value):
            argument = f"figures[{name!r}]" if name in figures else name
            raise refusal(method, argument, value, in_words(rule, None))
        fields[name] = plain_value
    return check_fields(method, "round", fields)
