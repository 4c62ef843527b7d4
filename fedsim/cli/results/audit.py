"""Result of ``fedsim audit``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from fedsim.cli.results.parts import ResultEntries, VerbResult


class CheckedPart(ResultEntries):
    """Outcome of one check of ``fedsim audit``: its title, and the problems that it found."""

    check: str
    """Title of the check."""
    passed: bool
    """Whether it found no problem."""
    problems: list[str]
    """All problems; empty if the check has passed."""


class UncheckedEntry(ResultEntries):
    """Column or entry of a run folder's file that no check of ``fedsim audit`` covers, and why."""

    name: str
    """The file and its column, key or entry, such as ``rounds.parquet: loss``."""
    reason: str
    """Why no check covers it."""


class AuditResult(VerbResult):
    """JSON output of ``fedsim audit``, which checks the files of a run against each other.

    It has the outcome of each check, and names the parts of the run that could not be checked.
    """

    verb: Literal["audit"] = "audit"
    run: str
    """The run folder."""
    passed: bool
    """Whether all checks have passed."""
    status: str
    """Status of the run; the records of a ``failed`` run are checked up to its error."""
    checks: list[CheckedPart]
    """Outcome of each check."""
    not_checked: list[str]
    """Sentences on parts of the run that could not be checked, such as values of user code."""
    unchecked: list[UncheckedEntry]
    """Entries that no check covers; empty without ``--unchecked``."""

    @classmethod
    def of(
        cls,
        run: Path,
        status: str,
        findings: Mapping[str, list[str]],
        not_checked: list[str],
        unchecked: Mapping[str, str],
    ) -> "AuditResult":
        """Return the JSON output of ``fedsim audit`` from the problems that its checks found.

        Args:
            run: the run folder.
            status: status of the run.
            findings: title of a check -> its problems.
            not_checked: sentences on parts of the run that could not be checked, such as values
                that the user's code has computed.
            unchecked: column, key or entry of the run folder that no check covers -> the reason.
        """
        return cls(
            run=str(run),
            passed=not any(findings.values()),
            status=status,
            checks=[
                CheckedPart(check=title, passed=not problems, problems=problems)
                for title, problems in findings.items()
            ],
            not_checked=not_checked,
            unchecked=[
                UncheckedEntry(name=name, reason=reason) for name, reason in unchecked.items()
            ],
        )
