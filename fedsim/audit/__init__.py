"""The audit: checks whether a run folder is possible and consistent. It uses only the folder, never the engine.

Each check is one function over the folder's tables (``Evidence``) that yields problems; ``audit`` runs all of them.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from fedsim.audit import books, energy, limits, links, story, world
from fedsim.audit.evidence import Evidence
from fedsim.errors import FedsimError
from fedsim.language.imports import from_file
from fedsim.records.reading import RunFolder

CHECKS: dict[str, Callable[[Evidence], Iterator[str]]] = {
    "every file is there, whole and as it was sealed": books.sealed,
    "the records are those that were fingerprinted": books.records_intact,
    "the run ended as the summary says": books.ended_so,
    "the models are those that were fingerprinted": books.models_intact,
    "the scenario is the one that was run": books.scenario_agrees,
    "time never runs backwards": story.time_order,
    "every task begins, takes its steps in order and ends once": story.task_lives,
    "no device does two things at once": story.one_place,
    "deadlines held": story.deadlines,
    "every valid update was aggregated once": story.aggregated_once,
    "rounds agree with their tasks": story.round_counts,
    "transfers agree with the records": books.transfers_agree,
    "no more bytes arrived than were sent": books.delivered_at_most_sent,
    "headers were counted as the protocol says": books.headers_counted,
    "ledger, transfers and summary agree": books.ledgers_agree,
    "devices agree with the records": limits.devices_agree,
    "devices worked only while they could be reached": limits.reachable,
    "no link carried more than it can": links.within_capacity,
    "the run kept to the scenario's limits": limits.limits_kept,
    "the models are those of the scenario and the strategy": limits.models_as_said,
    "the devices are those that the scenario and its seed make": world.devices_as_drawn,
    "epochs agree with their ends": world.epochs_agree,
    "training took as long as samples and speed say": world.durations_agree,
    "hosts shared their cores and workers": world.hosts_shared,
    "energy is counted as the scenario says": world.energy_as_said,
    "meters agree with the records": books.meters_agree,
    "energy adds up over phases, devices and rounds": energy.energy_adds_up,
    "no battery was below zero, or gave what it did not hold": energy.batteries_hold,
}

MOST_FINDINGS = 10_000
"""Findings listed for one check: one record too many can make all that follow wrong."""


def audit(path: str | Path, *, allow_code: bool = False) -> dict[str, list[str]]:
    """Run every check on the run folder at ``path``; returns the problems of each, an empty list for a check that passes.

    ``allow_code``: whether the meters that its scenario names by import path are imported, to count again.

    Raises ``RunFolderError``: there is no run folder.
    """
    evidence = Evidence(RunFolder(path))
    with from_file(allow_code):
        return {name: _findings(check, evidence) for name, check in CHECKS.items()}


def _findings(check: Callable[[Evidence], Iterator[str]], evidence: Evidence) -> list[str]:
    """Findings of a check; a folder too damaged to check is a finding too."""
    found: list[str] = []
    try:
        with np.errstate(all="ignore"):  # numbers that are none are findings: they agree with no book
            findings = check(evidence)
            found += islice(findings, MOST_FINDINGS)
            if next(findings, None) is not None:
                found.append(f"more than these {MOST_FINDINGS} findings, which are not listed")
    except FedsimError as error:
        found.append(str(error))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        found.append(f"cannot be checked: the folder is damaged ({type(error).__name__}: {error})")
    return found
