"""The command line, called within this process."""

from typing import Any

from click.testing import CliRunner, Result

from fedsim.cli import main


def call(*words: object, **how: Any) -> Result:
    """The result of ``fedsim WORDS...``; an unforeseen exception is in it, unless
    ``catch_exceptions`` is False.
    """
    return CliRunner().invoke(main, [*map(str, words)], **how)


def done(*words: object) -> str:
    """The output of ``fedsim WORDS...``, which ends with 0."""
    result = call(*words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output
