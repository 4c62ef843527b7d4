"""Arrays for the page's scripts, small: their bytes regrouped so that like ones stand together, deflated, in base64."""

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KINDS = {"u1": "<u1", "u2": "<u2", "u4": "<u4", "i2": "<i2", "i4": "<i4", "f4": "<f4"}


def pack(columns: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """The columns as JSON: ``layout`` has a (name, kind, length) each, ``data`` the bytes of all, one after the other.

    A column of n numbers of k bytes is written as n first bytes, n second bytes and so on (``columns.js`` puts them back).

    Args:
        columns: arrays [n] of uint8, uint16, uint32, int16, int32 or float32.
    """
    layout, planes = [], []
    for name, column in columns.items():
        kind = f"{column.dtype.kind}{column.dtype.itemsize}"
        plain = np.ascontiguousarray(column, dtype=_KINDS[kind])
        layout.append([name, kind, len(plain)])
        planes.append(plain.view(np.uint8).reshape(-1, plain.dtype.itemsize).T.tobytes())
    return {"layout": layout, "data": base64.b64encode(zlib.compress(b"".join(planes), 8)).decode("ascii")}
