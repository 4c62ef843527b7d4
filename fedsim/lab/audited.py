"""The audit of a run folder, and beside it what needs the engine: whether fedsim takes the
folder's scenario.

``lab.audit`` never imports the engine. The engine's classes alone know what a scenario may say,
so this check stands here.
"""

from pathlib import Path
from typing import NamedTuple

from fedsim.common.errors import DataError, FedsimError, ScenarioError
from fedsim.common.imports import from_file
from fedsim.lab.audit import audit
from fedsim.lab.audit.declared import unchecked_parts
from fedsim.records import folder as files
from fedsim.records.reading import RunFolder
from fedsim.running.scenario import load
from fedsim.version import __version__

VALID = "the scenario is one that fedsim takes"


class Audited(NamedTuple):
    """The problems of each check, and the parts of the user's own that no check covers."""

    findings: dict[str, list[str]]
    unchecked: list[str]


def audit_run(path: str | Path, *, allow_code: bool = False) -> Audited:
    """Audit a run folder, and validate its scenario.

    Args:
        path: the run folder.
        allow_code: whether code that its scenario names by import path is imported, to count and
            check again.

    Raises:
        RunFolderError: there is no run folder.
    """
    run = RunFolder(path)
    findings = audit(path, allow_code=allow_code)
    with from_file(allow_code):
        unchecked, all_here = unchecked_parts(run)
    problem = _refusal(run, allow_code)
    if problem is not None and not (all_here and run.summary.get("fedsim") == __version__):
        unchecked.append(f"{files.SCENARIO}: it cannot be validated here ({problem})")
        problem = None
    findings[VALID] = [] if problem is None else [problem]
    return Audited(findings, unchecked)


def _refusal(run: RunFolder, allow_code: bool) -> str | None:
    """Why fedsim refuses the scenario of a run; None if it takes it, or a file of the user's is
    not here.
    """
    try:
        load(run.path / files.SCENARIO, allow_code=allow_code)
    except DataError:
        return None
    except ScenarioError as error:
        return str(error)
    except FedsimError:
        return None
    return None
