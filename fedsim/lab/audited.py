"""The audit of a run folder, together with a validation of its scenario.

``lab.audit`` checks a run's records without the code of the simulator. Only classes of the
simulator can validate a scenario, so this module does it.
"""

from pathlib import Path
from typing import NamedTuple

from fedsim.common.errors import FedsimError, ScenarioError
from fedsim.common.imports import code_from_file, is_refusal_of_code
from fedsim.lab.audit import OF_SIMULATIONS, audit
from fedsim.lab.audit.declared import unchecked_parts
from fedsim.records import folder as files
from fedsim.records.reading import RunFolder
from fedsim.running.packages import is_installed
from fedsim.running.scenario import load_of_run
from fedsim.version import __version__

VALID = "the scenario is one that fedsim takes"


class Audited(NamedTuple):
    """Result of an audit of a run folder: the problems of each check, and what was not checked.

    Attributes:
        findings: dict from title of each check to the problems that it found, as sentences; empty
            if the check has passed.
        unchecked: sentences on what no check covers, such as user code in the scenario.
    """

    findings: dict[str, list[str]]
    unchecked: list[str]


def audit_run(path: str | Path, *, allow_code: bool = False) -> Audited:
    """Check that the records of a run agree with each other, and validate the run's scenario.

    The scenario is valid if this version of fedsim accepts it. A refusal is a finding only if this
    version wrote the scenario, and if all code and packages that the scenario names are available.
    Any other refusal is listed in ``unchecked``. A scenario with values that this version does not
    have is not validated, and these values are listed in ``unchecked``.

    Args:
        path: the run folder.
        allow_code: whether to import the code that the scenario names by import path. Figures of
            this code can be checked only if it is imported.

    Raises:
        RunFolderError: ``path`` is not a run folder.
    """
    run = RunFolder(path)
    findings = audit(path, allow_code=allow_code)
    with code_from_file(allow_code):
        unchecked, can_import_all = unchecked_parts(run)
    missing_packages = _missing_packages(run)
    unchecked += missing_packages
    if files.MEASURED in run.summary:
        unchecked += [f"{title}: {reason}" for title, reason in OF_SIMULATIONS.items()]
    unknown_values = run.understood.lost
    for value in unknown_values:
        unchecked.append(
            f"the scenario has {value}, which this version does not have; what depends on it is "
            "not checked"
        )
    findings[VALID] = []
    refusal = None
    if not unknown_values:
        refusal = _reason_to_refuse(run, allow_code)
    if refusal is not None:
        is_of_this_version = (
            run.summary.get("fedsim") == __version__ and not run.understood.is_former
        )
        can_be_validated = can_import_all and is_of_this_version and not missing_packages
        if can_be_validated and not is_refusal_of_code(refusal):
            findings[VALID] = [refusal]
        else:  # the reason may be code or a package of this machine, and not the run
            unchecked.append(f"{files.SCENARIO}: it cannot be validated here ({refusal})")
    return Audited(findings, unchecked)


def _missing_packages(run: RunFolder) -> list[str]:
    """Return a sentence for each part of the scenario whose package is not installed here."""
    packages = run.summary.get("packages", {})
    if not isinstance(packages, dict):
        return [f"{files.SUMMARY}: packages is no table"]
    return [
        f"{key}: it is of the package {package}, which is not installed here"
        for key, package in sorted(packages.items())
        if not is_installed(str(package))
    ]


def _reason_to_refuse(run: RunFolder, allow_code: bool) -> str | None:
    """Return why this version of fedsim refuses a run's scenario; None if it accepts the scenario.

    Args:
        run: the run folder.
        allow_code: whether code that the scenario names may be imported.
    """
    try:
        load_of_run(run, allow_code=allow_code)
    except ScenarioError as error:
        return str(error)
    except FedsimError:  # such as a missing data file, which does not make the scenario invalid
        return None
    return None
