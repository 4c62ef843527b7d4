"""Shorter waits of Flower's processes, for nodes whose time is measured.

An idle SuperNode asks for messages every 3 s, looks every 0.5 s for the answer of its ClientApp,
and waits 1, 2, 4 and at most 10 s between two looks for an object that is still being sent. These
waits lengthen a deployment's rounds, but do not depend on the network that a deployment measures.
"""

import logging
import os
import time
from types import SimpleNamespace

from fedsim.common.errors import SimulationError, show_value

VARIABLE = "FEDSIM_FLOWER_WAITS"
"""Environment variable with the longest wait (s) of Flower's processes.

If it is not set, Flower's waits are unchanged.
"""
_log = logging.getLogger("flwr")


def longest_wait_s() -> float | None:
    """Return the longest wait (s) that Flower's processes may do between two looks for messages.

    Returns:
        The value of the environment variable ``FEDSIM_FLOWER_WAITS``; None, for no limit, if it is
        not set.

    Raises:
        SimulationError: the variable is not a number above 0 and below 60.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0  # refused below
    if not 0.0 < seconds < 60.0:
        raise SimulationError(
            f"the environment has {VARIABLE} = {show_value(text)}; allowed are seconds above 0 and "
            "below 60, or nothing for Flower's own waits"
        )
    return seconds


def shorten_waits() -> None:
    """Limit Flower's waits in this process to ``longest_wait_s``, if that is not None.

    Flower's internals are patched. If the installed version of Flower has other internals, its
    waits stay as they are, and a warning is logged.
    """
    longest_s = longest_wait_s()
    if longest_s is None:
        return
    try:
        from flwr.supercore.inflatable import inflatable_utils
        from flwr.supernode import start_client_internal

        for name in ("pull_objects", "pull_and_inflate_object_from_tree"):
            # defaults of the function's keywords
            defaults = getattr(inflatable_utils, name).__kwdefaults__
            defaults["initial_backoff"] = longest_s
            defaults["backoff_cap"] = longest_s
        start_client_internal.time = SimpleNamespace(
            sleep=lambda seconds: time.sleep(min(seconds, longest_s))
        )
    except (ImportError, AttributeError, KeyError, TypeError) as error:
        _log.warning("this version of Flower keeps its own waits (%s)", error)
