"""Output to a terminal: tables, progress."""

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment


class Console(rich.console.Console):
    """rich's console, which takes no text for markup, and lets none through that a terminal would obey."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Replaces unprintable characters in each segment; rich's own control codes are no text, and stay."""
        for segment in super().render(renderable, options):
            harmless = segment.control or segment.text.isprintable() or segment.text == "\n"
            yield segment if harmless else segment._replace(text="".join(map(_sign, segment.text)))


def _sign(letter: str) -> str:
    return letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}"
