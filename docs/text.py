"""Markdown for the generated pages: pages, tables, and texts of docstrings."""

import inspect
import re
from collections.abc import Iterable

from fedsim.common.spec import Spec, summary


def page(title: str, blocks: Iterable[str]) -> str:
    """A page of blocks; empty ones are left out."""
    return "\n\n".join([f"# {title}", *(block for block in blocks if block)]) + "\n"


def toctree(names: Iterable[str], *options: str) -> str:
    """A list of links to pages."""
    return "\n".join(["```{toctree}", ":maxdepth: 1", *options, "", *names, "```"])


def row_of(cells: Iterable[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def plain(text: str) -> str:
    """The text with all signs of Markdown escaped."""
    return re.sub(r"([*_\[\]<>|#$^~\\{}])", r"\\\1", text)


def prose(text: str) -> str:
    """A docstring without its sections; ``code`` remains code."""
    sections = re.split(
        r"\n(?:Attributes|Args|Example|Raises|Returns|Yields):\n", inspect.cleandoc(text) + "\n"
    )
    return _with_code(sections[0].strip().split("``"))


def quoted(text: str) -> str:
    """A line of the catalogue, in which code is in single quotes."""
    return _with_code(re.split(r"(?<!\w)'([^'\n]+?)'(?![\w'])", text))


def _with_code(parts: Iterable[str]) -> str:
    """Text and code, in turns."""
    texts = []
    for place, part in enumerate(parts):
        texts.append(f"`{part}`" if place % 2 else plain(part))
    return "".join(texts)


def about(spec: type[Spec]) -> str:
    """The summary of a table's docstring."""
    return quoted(summary(spec))


def sentence(text: str) -> str:
    """The text with a capital first letter."""
    return text[0].upper() + text[1:]
