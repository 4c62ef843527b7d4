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
    r"""Escape each unprintable character, such as ``\u001b``; TOML reads the text as before."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _escape(character) for character in text
    )


def harmless(value: Any) -> Any:
    """Escape unprintable characters in all texts of a value of JSON, keys included; lines stay."""
    if isinstance(value, str):
        return value if value.isprintable() else "\n".join(map(visible, value.split("\n")))
    if isinstance(value, dict):
        return {harmless(key): harmless(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [harmless(item) for item in value]
    return value


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clean(text: str, longest: int = _LONGEST) -> str:
    """Put a text on one line of printable characters.

    Args:
        text: the text.
        longest: number of characters above which the middle of the line is left out.
    """
    line = " ".join("".join(map(_printable, text)).split())
    if len(line) <= longest:
        return line
    return f"{line[: longest // 2]}\u2026{line[len(line) - (longest - 1) // 2 :]}"


def _printable(character: str) -> str:
    """Replace an unprintable character by a space, or by the replacement character."""
    if character.isprintable():
        return character
    return " " if character.isspace() else "\ufffd"


def for_csv(text: str) -> str:
    """The visible text, quoted if a spreadsheet would take it for a formula."""
    line = clean(visible(text))
    return f"'{line}" if line.startswith(_FORMULA) else line


def for_markdown(line: str) -> str:
    """The line, escaped for Markdown and the HTML that is made from it."""
    return _MARKDOWN.sub(r"\\\1", html.escape(line, quote=False))
