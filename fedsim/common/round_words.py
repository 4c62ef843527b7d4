"""Words for the rounds of a run; a strategy without rounds counts versions of the model."""

import re
from collections.abc import Iterable, Mapping

from fedsim.common.harmless import clean

ROUND = "round"
"""Usual noun for a row of the table of rounds."""
_LONGEST = 30  # greatest length of a noun (characters)


def round_word(summary: Mapping[str, object]) -> str:
    """Return the noun for a row of a run's table of rounds, such as ``round`` or ``version``.

    Args:
        summary: the content of ``summary.json``.
    """
    return clean(str(summary.get("round_word", ROUND)), _LONGEST)


def counted(count: int, word: str) -> str:
    """Format a count with its noun: ``"1 group"``, ``"2 groups"``, ``"no groups"``.

    Args:
        count: the count.
        word: noun in the singular.
    """
    if count == 1:
        return f"1 {word}"
    number = f"{count:,}" if count else "no"
    return f"{number} {word}s"


def count_rounds(count: int, word: str) -> str:
    """Format a count of rounds with the run's noun: ``"1 version"``, ``"2 versions"``."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def common_word(words: Iterable[str]) -> str:
    """Return the noun for rounds of several runs that are shown together.

    Args:
        words: the noun of each run, such as ``version``.

    Returns:
        The noun if it is the same for all runs, else ``round``.
    """
    distinct = set(words)
    return distinct.pop() if len(distinct) == 1 else ROUND


def stopped_in_words(summary: Mapping[str, object]) -> str:
    """Return the reason why a run ended, for the user, with the run's noun for rounds, such as "version".

    Args:
        summary: the content of ``summary.json``.
    """
    plural = f"{round_word(summary)}s"
    return re.sub(r"(?<=\d )rounds$", lambda _: plural, str(summary["stopped"]))
