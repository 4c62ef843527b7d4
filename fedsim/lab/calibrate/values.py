"""Helpers for arrays of clients' values: means by client, unknown values, and bisection."""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from fedsim.common.arrays import Flags, Floats, Ints


def aggregate(values: Floats, client: Ints, clients: int, function: str = "median") -> Floats:
    """Aggregate the values of each client.

    Args:
        values: the values; float64 [n].
        client: index of each value's client; int64 [n].
        clients: count of clients.
        function: ``median`` or ``mean``.

    Returns:
        The aggregates, NaN for a client that has no values; float64 [clients].
    """
    by_client = pd.Series(values).groupby(np.asarray(client)).agg(function)
    return np.asarray(by_client.reindex(range(clients)), dtype=np.float64)


def fill_unknown(values: Floats) -> Floats:
    """Return the values with NaN replaced by the median of the known values; float64 [n].

    If all values are NaN, infinity replaces them.
    """
    known = values[~np.isnan(values)]
    substitute = np.median(known) if len(known) else math.inf
    return np.where(np.isnan(values), substitute, values)


def bisect(is_low: Callable[[Floats], Flags], low: Floats, high: Floats) -> Floats:
    """Find by bisection, element by element, the value at which ``is_low`` becomes false.

    Args:
        is_low: function that returns whether each of n values is below its boundary; bool [n].
        low: values below the boundaries; float64 [n].
        high: values above the boundaries; float64 [n].

    Returns:
        The boundaries; float64 [n].
    """
    for _ in range(60):
        middle = (low + high) / 2
        is_below = is_low(middle)
        low = np.where(is_below, middle, low)
        high = np.where(is_below, high, middle)
    return np.asarray(low, dtype=np.float64)
