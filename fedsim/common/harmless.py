"""Functions that sanitise text of untrusted files, for terminals, spreadsheets and Markdown.

The command lines print only by ``say``, or by ``terminal.Console``.
"""

import html
import re
from typing import Any

import click

_LONGEST = 80  # greatest length of a name (characters)
_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~$^])")
_FORMULA = ("=", "+", "-", "@")  # first characters of formulas in spreadsheets


def say(*lines: object, err: bool = False) -> None:
    """Print lines with unprintable characters escaped.

    Args:
        lines: the lines.
        err: whether to print to stderr instead of stdout.
    """
    if lines:
        click.echo("\n".join(visible(str(line)) for line in lines), err=err)


def visible(text: str) -> str:
    r"""Escape unprintable characters as ``\u001b``, which TOML reads as the original character."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _escape(character) for character in text
    )


def harmless(value: Any) -> Any:
    """Escape unprintable characters in all texts and keys of a JSON value; line breaks stay."""
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
    """Return a character that can be printed, else a space or the replacement character (U+FFFD)."""
    if character.isprintable():
        return character
    return " " if character.isspace() else "\ufffd"


def for_csv(text: str) -> str:
    """Return a text for a cell of a CSV file: one line, safe for spreadsheets.

    Unprintable characters are escaped. If a spreadsheet would read the text as a formula, an
    apostrophe is put before it.
    """
    line = clean(visible(text))
    return f"'{line}" if line.startswith(_FORMULA) else line


def for_markdown(line: str) -> str:
    """Escape a line for Markdown, and for HTML that is made from the Markdown."""
    return _MARKDOWN.sub(r"\\\1", html.escape(line, quote=False))
