"""Result of ``fedsim run``."""

from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from fedsim.cli.results.parts import VerbResult
from fedsim.common.files import read_json
from fedsim.records.folder import SUMMARY


class RunResult(VerbResult):
    """JSON output of ``fedsim run``: the run folder, the run's status, and its summary."""

    verb: Literal["run"] = "run"
    folder: str
    """The run folder."""
    status: str
    """``done`` or ``interrupted``, as in the summary."""
    resume: str | None
    """The command that resumes an interrupted run; null if there is no checkpoint."""
    summary: dict[str, JsonValue]
    """Content of the run's ``summary.json``."""

    @classmethod
    def of(cls, folder: Path, resumption: str | None) -> "RunResult":
        """Return the result of a run, from the run's folder.

        Args:
            folder: the run folder.
            resumption: the command that resumes the run; None if it has no checkpoint.
        """
        summary = read_json(folder / SUMMARY)
        return cls(folder=str(folder), status=summary["status"], resume=resumption, summary=summary)
