"""Names made harmless: they come from files of any origin, and may hold what a terminal, a spreadsheet or Markdown obeys."""

import html
import re

_LONGEST = 80  # characters of a name
_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~$^])")
_FORMULA = ("=", "+", "-", "@")  # how a spreadsheet's formulas begin


def clean(text: str, longest: int = _LONGEST) -> str:
    """A text on one line, of printable characters, the middle left out when it is long."""
    line = " ".join("".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text).split())
    return line if len(line) <= longest else f"{line[: longest // 2]}\u2026{line[len(line) - (longest - 1) // 2 :]}"


def for_csv(text: str) -> str:
    """A text that no spreadsheet takes for a formula, clean."""
    line = clean(text)
    return f"'{line}" if line.startswith(_FORMULA) else line


def for_markdown(line: str) -> str:
    """A line that Markdown, and the HTML made of it, show as it is."""
    return _MARKDOWN.sub(r"\\\1", html.escape(line, quote=False))
