"""Output of commands that fail."""

from fedsim.cli.results.parts import ResultEntries, VerbResult


class ErrorDetails(ResultEntries):
    """Error with which a command has failed."""

    message: str
    """The message of the error."""
    key: str | None
    """The key or option at fault; null if the message begins with none."""
    nearest: str | None
    """The valid name that is nearest to a misspelt one; null if there is none."""
    exit_code: int
    """Exit code of the command."""


class ErrorResult(VerbResult):
    """Output of any command that fails."""

    verb: str | None
    """The verb; null if the command line names none."""
    error: ErrorDetails
    """The error."""
