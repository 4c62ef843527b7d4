"""Text made harmless: it comes from files of any origin, and may hold what a terminal, a spreadsheet or Markdown obeys.

All that the command lines print goes through ``say``, or where it is drawn through ``terminal.Console``.
"""

import html
import re

import click

_LONGEST = 80  # characters of a name
_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~$^])")
_FORMULA = ("=", "+", "-", "@")  # how a spreadsheet's formulas begin


def say(*lines: object, err: bool = False) -> None:
    """Print lines, each as one line, to stdout or stderr."""
    if lines:
        click.echo("\n".join(visible(str(line)) for line in lines), err=err)


def visible(text: str) -> str:
    r"""A text with an escape such as ``\u001b`` for each character that has no sign of its own: TOML stays what it is."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(ord(c)) for c in text)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clean(text: str, longest: int = _LONGEST) -> str:
    """A text on one line, of printable characters, the middle left out when it is long."""
    line = " ".join("".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text).split())
    return line if len(line) <= longest else f"{line[: longest // 2]}\u2026{line[len(line) - (longest - 1) // 2 :]}"


def for_csv(text: str) -> str:
    """A text that no spreadsheet takes for a formula, visible, so that two names stay two."""
    line = clean(visible(text))
    return f"'{line}" if line.startswith(_FORMULA) else line


def for_markdown(line: str) -> str:
    """A line that Markdown, and the HTML made of it, show as it is."""
    return _MARKDOWN.sub(r"\\\1", html.escape(line, quote=False))
