"""Sanitised text: from files of any origin, for terminals, spreadsheets and Markdown.

The command lines print through ``say``, or draw through ``terminal.Console``.
"""

import html
import re
from typing import Any

import click

_LONGEST = 80  # characters of a name
_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~$^])")
_FORMULA = ("=", "+", "-", "@")  # how a spreadsheet's formulas begin


def say(*lines: object, err: bool = False) -> None:
    """Print lines, each as one line, to stdout or stderr."""
    if lines:
        click.echo("\n".join(visible(str(line)) for line in lines), err=err)


def visible(text: str) -> str:
    r"""The text with an escape such as ``\u001b`` for each unprintable character; TOML keeps its meaning."""
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else _escape(ord(c)) for c in text)
    )


def harmless(value: Any) -> Any:
    """A value of JSON whose texts, keys included, have each line visible."""
    if isinstance(value, str):
        return value if value.isprintable() else "\n".join(map(visible, value.split("\n")))
    if isinstance(value, dict):
        return {harmless(key): harmless(item) for key, item in value.items()}
    return [harmless(item) for item in value] if isinstance(value, list | tuple) else value


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clean(text: str, longest: int = _LONGEST) -> str:
    """The text on one line of printable characters, without the middle if it is long."""
    line = " ".join(
        "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text).split()
    )
    return (
        line
        if len(line) <= longest
        else f"{line[: longest // 2]}\u2026{line[len(line) - (longest - 1) // 2 :]}"
    )


def for_csv(text: str) -> str:
    """The visible text, quoted where a spreadsheet would take it for a formula."""
    line = clean(visible(text))
    return f"'{line}" if line.startswith(_FORMULA) else line


def for_markdown(line: str) -> str:
    """The line, escaped for Markdown and the HTML made of it."""
    return _MARKDOWN.sub(r"\\\1", html.escape(line, quote=False))
