"""Rules for arguments of the API of strategies, in addition to ``fedsim.common.arguments``."""

from collections.abc import Callable

import numpy as np

from fedsim.common.arguments import (
    ArgumentRule,
    instance,
    is_mapping,
    is_number,
    list_of,
    one_of,
)
from fedsim.learning.refs import Ref

PAIRS = (tuple, list)
MODEL = instance(Ref, "a model (Ref)")
MODELS = list_of(MODEL, "models")
CONTENTS = ArgumentRule(lambda _, value: is_mapping(value), "a dict of contents by name")
DIRECTION = one_of("down", "up")
WEIGHTS = ArgumentRule(
    lambda _, value: isinstance(value, np.ndarray) and value.dtype.kind in "iuf",
    "an array of numbers",
)


def _is_weighted_model(value: object) -> bool:
    if not isinstance(value, PAIRS) or len(value) != 2:
        return False
    return isinstance(value[0], Ref) and is_number(value[1])


WEIGHTED_MODELS = list_of(
    ArgumentRule(
        lambda _, value: _is_weighted_model(value), "a pair of a model (Ref) and a number"
    ),
    "pairs",
)


def device_of(count_of: Callable[[object], int]) -> ArgumentRule:
    """Make a rule for IDs of devices.

    Args:
        count_of: function that receives the object whose method is called, such as the ``Clients``
            of a server, and returns the count of devices.
    """

    def fits(owner: object, value: object) -> bool:
        is_id = isinstance(value, int) and 0 <= value < count_of(owner)
        return is_id and not isinstance(value, bool)

    return ArgumentRule(fits, lambda owner: f"a device of 0 to {count_of(owner) - 1}")


def devices_of(count_of: Callable[[object], int]) -> ArgumentRule:
    """Make a rule for lists of IDs of devices.

    Args:
        count_of: function that receives the object whose method is called, such as the ``Clients``
            of a server, and returns the count of devices.
    """
    return list_of(device_of(count_of), "devices")
