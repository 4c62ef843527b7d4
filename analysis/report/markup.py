"""HTML: every text is escaped unless it is ``Markup``."""

import base64
import html
import json
import zlib
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.harmless import clean, harmless

_LONGEST = 200  # of a name or another text from a scenario; the middle of longer ones is left out


class Markup(str):
    """HTML, which is not escaped again."""

    __slots__ = ()


def asset(name: str) -> Markup:
    """The text of a file in ``assets``."""
    return Markup(
        resources.files("fedsim.analysis.report")
        .joinpath("assets", name)
        .read_text(encoding="utf-8")
        .rstrip("\n")
    )


def el(tag: str, *children: str | None, **attributes: Any) -> Markup:
    """An element. Texts among the children are escaped, ``None`` is left out.

    Attributes lose a closing underscore and have hyphens for the others (``class_``,
    ``aria_label``); ``True`` stands for a bare one, ``None`` and ``False`` leave it out.
    """
    words = []
    for name, value in attributes.items():
        if value is not None and value is not False:
            key = name.rstrip("_").replace("_", "-")
            words.append(f" {key}" if value is True else f' {key}="{_escaped(str(value))}"')
    opening = f"<{tag}{''.join(words)}>"
    return Markup(
        opening if tag in ("img", "input", "meta") else f"{opening}{join(*children)}</{tag}>"
    )


def join(*children: str | None) -> Markup:
    """Children one after the other, texts escaped."""
    there = [child for child in children if child is not None]
    return Markup(
        "".join(child if isinstance(child, Markup) else _escaped(child) for child in there)
    )


def _escaped(text: str) -> str:
    """A text for HTML, in which no character changes the order or the looks of others."""
    return html.escape(harmless(text))


def plain(text: object, most: int = _LONGEST) -> str:
    """A text from a scenario as one line of printable characters, the middle left out when it is
    long.
    """
    return clean(str(text), most)


def data_block(name: str, value: object) -> Markup:
    """A value for the page's scripts, as JSON that no text in it can end early."""
    text = json.dumps(harmless(value), separators=(",", ":"), allow_nan=False).replace(
        "<", "\\u003c"
    )
    return Markup(f'<script type="application/json" id="{html.escape(name)}">{text}</script>')


def pack(columns: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Arrays as JSON: ``layout`` has a (name, kind, length) each, ``data`` the bytes of all,
    deflated, in base64.

    A column of n numbers of k bytes is written as n first bytes, n second bytes and so on
    (``columns.js`` puts them back).
    """
    layout = []
    planes = []
    for name, column in columns.items():
        kind = f"{column.dtype.kind}{column.dtype.itemsize}"
        layout.append([name, kind, len(column)])
        whole = np.ascontiguousarray(column, dtype=f"<{kind}")
        planes.append(whole.view(np.uint8).reshape(-1, column.dtype.itemsize).T.tobytes())
    return {"layout": layout, "data": deflated(b"".join(planes))}


def deflated(content: bytes) -> str:
    """Bytes deflated, in base64 (``columns.js`` inflates them)."""
    return base64.b64encode(zlib.compress(content, 9)).decode("ascii")
