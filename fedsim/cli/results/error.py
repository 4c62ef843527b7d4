"""Output of commands that fail."""

from fedsim.cli.results.parts import ResultEntries, VerbResult


class ErrorDetails(ResultEntries):
    """Message of the error with which a command has failed, and the key or option at fault."""

    message: str
    """The message of the error."""
    key: str | None
    """The key or option at fault; null if the message begins with none."""
    nearest: str | None
    """The valid name that is nearest to a misspelt one; null if there is none."""
    exit_code: int
    """Exit code of the command."""


class ErrorResult(VerbResult):
    """JSON output of a command that fails: the error, instead of the command's own result."""

    verb: str | None
    """The verb; null if the command line names none."""
    error: ErrorDetails
    """The error."""
