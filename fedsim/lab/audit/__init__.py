"""The audit: checks whether a run folder is possible and consistent, without the engine.

Each check is a function over the folder's tables (``Evidence``) that yields the problems that it
finds. ``audit`` runs all checks.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from fedsim.common.errors import FedsimError
from fedsim.common.imports import code_from_file
from fedsim.lab.audit import (
    books,
    combined,
    declared,
    energy,
    figures,
    hosts,
    layout,
    limits,
    links,
    pace,
    peers,
    population,
    presence,
    privacy,
    processes,
    progress,
    secure,
    story,
    traces,
    trainings,
    updates,
    wire,
    world,
)
from fedsim.lab.audit.evidence import Evidence
from fedsim.records.folder import MEASURED
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
    "rounds begin with the clients that they ask": story.rounds_begin,
    "deadlines are those of the scenario": story.deadlines_as_said,
    "deadlines held": story.deadlines,
    "every valid update was aggregated once": updates.aggregated_once,
    "updates are as old as their aggregations say": updates.rounds_of_updates,
    "rounds agree with their tasks": updates.round_counts,
    "transfers agree with the records": books.transfers_agree,
    "no more bytes arrived than were sent": books.delivered_at_most_sent,
    "headers were counted as the protocol says": books.headers_counted,
    "ledger, transfers and summary agree": books.ledgers_agree,
    "devices agree with the records": limits.devices_agree,
    "devices came and left as table and records say": population.lifetimes_agree,
    "tasks and devices keep their groups": population.groups_agree,
    "the devices' tests add up to the last round's": population.tests_agree,
    "devices could be reached when the seed says": population.availability_as_drawn,
    "devices worked only while they could be reached": presence.reachable,
    "each message has the bytes that models, parts and codecs make": wire.bytes_as_said,
    "links and cells are those of the scenario": links.layout_as_said,
    "no link carried more than it can": links.within_capacity,
    "links follow their traces from where scenario and seed say": traces.places_as_drawn,
    "no message took longer than its links explain": pace.within_time,
    "devices sent to those that topology, draws and all-reduces say": peers.peers_as_said,
    "the run kept to the scenario's limits": limits.limits_kept,
    "the models are those of the scenario and the strategy": limits.models_as_said,
    "the tensors of models are those of the scenario": layout.tensors_as_said,
    "updates weigh what the strategy's rule gives them": combined.weights_as_said,
    "edge servers weigh what their samples give them": combined.edges_as_said,
    "secure aggregation exchanged what it says": secure.secure_as_said,
    "epsilon follows from noise and rounds": privacy.privacy_as_said,
    "the devices are those that the scenario and its seed make": world.devices_as_drawn,
    "data shifted as the scenario says": population.shifts_as_said,
    "clients were asked for the scenario's epochs": trainings.epochs_as_said,
    "epochs agree with their ends": trainings.epochs_agree,
    "fewer layers were trained only where the scenario allows it": trainings.layers_as_said,
    "training took as long as samples and speed say": trainings.durations_agree,
    "hosts shared their cores": hosts.hosts_shared,
    "tasks waited for workers only while all were taken": hosts.workers_as_said,
    "tasks on hosts started up as the scenario says": hosts.started_up,
    "outages came when the scenario and its seed say": processes.outages_as_said,
    "uploads queued for the scenario's slots": processes.slots_as_said,
    "devices were slowed as the scenario says": processes.paces_as_said,
    "the records of processes are all there": processes.acts_counted,
    "the summary's accuracy is that of the rounds": figures.accuracies_agree,
    "the summary's metrics are those of the rounds": figures.metrics_agree,
    "the best round and its models are those of the tests": progress.progress_as_said,
    "figures are possible": figures.figures_possible,
    "energy is counted as the scenario says": world.energy_as_said,
    "meters agree with the records": books.meters_agree,
    "what the scenario does not count has no figures": books.nothing_uncounted,
    "energy adds up over phases, devices and rounds": energy.energy_adds_up,
    "no battery was below zero, or gave what it did not hold": energy.batteries_hold,
    "parts of one's own find nothing wrong": declared.own_parts_agree,
}

"""Dict from the title of a check to its function, in the order in which the checks run."""

OF_SIMULATIONS: dict[str, str] = {
    "headers were counted as the protocol says": "headers of a real message are not counted",
    "no message took longer than its links explain": "a real message also waits for processes",
    "no link carried more than it can": "the scenario's links need not be the real ones",
    "training took as long as samples and speed say": "real training takes what it takes",
    "epochs agree with their ends": "the ends of real epochs are not recorded",
    "devices worked only while they could be reached": "a node that is gone is noticed late",
}
"""Check -> reason why it does not apply to the folder of a deployment, whose times were measured."""

MOST_FINDINGS = 10_000
"""Most findings listed for one check: one superfluous record can make all later ones wrong."""


def audit(path: str | Path, *, allow_code: bool = False) -> dict[str, list[str]]:
    """Run every check on a run folder, and return the problems that each check found.

    A check compares files of the folder with each other, or repeats a calculation from the
    scenario.

    Args:
        path: the run folder.
        allow_code: whether user code that the scenario names by import path may be imported, to
            recount its meters and to call its ``check_run``.

    Returns:
        Dict from the title of each check to its findings; an empty list if the check passes. The
        folder of a real deployment has no entry for the checks that only suit a simulation
        (``OF_SIMULATIONS``).

    Raises:
        RunFolderError: ``path`` is not a run folder.
    """
    run = RunFolder(path)
    evidence = Evidence(run)
    left_out = OF_SIMULATIONS if MEASURED in run.summary else {}
    with code_from_file(allow_code):
        return {
            name: _findings(check, evidence)
            for name, check in CHECKS.items()
            if name not in left_out
        }


def _findings(check: Callable[[Evidence], Iterator[str]], evidence: Evidence) -> list[str]:
    """Run one check of the audit on a run folder, and return the problems found, as sentences.

    A folder that is too damaged for the check gives one more sentence, instead of an error. At most
    ``MOST_FINDINGS`` findings are listed, followed by a sentence that there are more.
    """
    problems: list[str] = []
    try:
        # NaN and infinity are findings, because they equal no due value. Arrow strings, which
        # are the default of pandas, would take a third of the time of a short run's audit.
        with np.errstate(all="ignore"), pd.option_context("mode.string_storage", "python"):
            findings = check(evidence)
            problems += islice(findings, MOST_FINDINGS)
            if next(findings, None) is not None:
                problems.append(f"more than these {MOST_FINDINGS} findings, which are not listed")
    except FedsimError as error:
        problems.append(str(error))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        problems.append(f"cannot be checked: the folder is damaged ({reason})")
    return problems
