"""Building of HTML. Every text is escaped unless it is ``Markup``."""

import base64
import html
import json
import zlib
from collections.abc import Mapping
from importlib import resources

import numpy as np

from fedsim.common.arrays import AnyArray
from fedsim.common.harmless import clean, harmless

_LONGEST = 200  # characters of a text from a scenario; the middle of longer texts is left out


class Markup(str):
    """Text that is HTML already. ``el`` and ``join`` insert it as it is, and escape other texts."""

    __slots__ = ()


def asset(name: str) -> Markup:
    """Return the content of a file in the report's folder ``assets``, such as a script.

    The content counts as HTML: ``el`` and ``join`` do not escape it.
    """
    packaged = resources.files("fedsim.analysis.report").joinpath("assets", name)
    return Markup(packaged.read_text(encoding="utf-8").rstrip("\n"))


def el(tag: str, *children: str | None, **attributes: object) -> Markup:
    """Return an HTML element.

    Args:
        tag: name of the element, such as ``div``.
        children: content of the element. Texts are escaped, and None is left out.
        attributes: attributes of the element. A trailing underscore of a name is removed, and
            other underscores become hyphens (``class_``, ``aria_label``). True gives an attribute
            without a value; None and False leave the attribute out.
    """
    opening = f"<{tag}"
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        opening += f" {name.rstrip('_').replace('_', '-')}"
        if value is not True:
            opening += f'="{_escape(str(value))}"'
    opening += ">"
    if tag in ("img", "input", "meta"):
        return Markup(opening)
    return Markup(f"{opening}{join(*children)}</{tag}>")


def join(*children: str | None) -> Markup:
    """Concatenate elements and texts to HTML; texts are escaped, and None is left out."""
    texts = []
    for child in children:
        if child is not None:
            texts.append(child if isinstance(child, Markup) else _escape(child))
    return Markup("".join(texts))


def _escape(text: str) -> str:
    """Escape a text for HTML, and replace characters that change the order or look of others."""
    return html.escape(harmless(text))


def plain(text: object, most: int = _LONGEST) -> str:
    """Convert a value of a scenario to one line of at most ``most`` printable characters.

    The middle of a longer text is left out.

    Args:
        text: the text, or a value to write as text.
        most: the largest number of characters.
    """
    return clean(str(text), most)


def data_block(name: str, value: object) -> Markup:
    """Return a ``script`` element with a value as JSON, for the page's scripts.

    The function escapes all texts in the value, so that they cannot end the element early.

    Args:
        name: id of the element.
        value: the value, of types that JSON has; numbers are finite.
    """
    text = json.dumps(harmless(value), separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="{html.escape(name)}">{text}</script>')


def pack(columns: Mapping[str, AnyArray]) -> dict[str, object]:
    """Pack arrays into a JSON value, which ``columns.js`` unpacks.

    A column of n values of k bytes is written as n first bytes, n second bytes and so on, which
    compresses better.

    Args:
        columns: arrays with a single dimension, by name.

    Returns:
        ``layout`` with name, type (such as ``f8``, as in numpy) and length of each column, and
        ``data``, the bytes of all columns, deflated, in base64.
    """
    layout = []
    contents = []
    for name, column in columns.items():
        kind = f"{column.dtype.kind}{column.dtype.itemsize}"
        layout.append([name, kind, len(column)])
        little_endian = np.ascontiguousarray(column, dtype=f"<{kind}")
        value_bytes = little_endian.view(np.uint8).reshape(-1, column.dtype.itemsize)
        contents.append(value_bytes.T.tobytes())
    return {"layout": layout, "data": deflated(b"".join(contents))}


def deflated(content: bytes) -> str:
    """Compress bytes by deflate, and encode them in base64; ``columns.js`` inflates them."""
    return base64.b64encode(zlib.compress(content, 9)).decode("ascii")
