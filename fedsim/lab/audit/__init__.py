"""The audit: checks whether the files of a run folder can be true, without the simulator's code.

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
    "every file is there, whole and as it was sealed": books.check_file_hashes,
    "the records are those that were fingerprinted": books.check_record_hashes,
    "the run ended as the summary says": books.check_stop_reason,
    "the models are those that were fingerprinted": books.check_model_hashes,
    "the scenario is the one that was run": books.check_scenario_entries,
    "time never runs backwards": story.check_time_order,
    "every task begins, takes its steps in order and ends once": story.check_task_steps,
    "no device does two things at once": story.check_one_task_at_a_time,
    "rounds begin with the clients that they ask": story.check_round_begins,
    "deadlines are those of the scenario": story.check_deadline_values,
    "deadlines held": story.check_deadlines_kept,
    "every valid update was aggregated once": updates.check_aggregated_once,
    "updates are as old as their aggregations say": updates.check_staleness,
    "rounds agree with their tasks": updates.check_round_counts,
    "transfers agree with the records": books.check_transfers,
    "no more bytes arrived than were sent": books.check_delivered_bytes,
    "headers were counted as the protocol says": books.check_header_bytes,
    "ledger, transfers and summary agree": books.check_ledgers,
    "devices agree with the records": limits.check_devices,
    "devices came and left as table and records say": population.check_lifetimes,
    "tasks and devices keep their groups": population.check_groups,
    "the devices' tests add up to the last round's": population.check_tests,
    "devices could be reached when the seed says": population.check_availability,
    "devices worked only while they could be reached": presence.check_reachability,
    "each message has the bytes that models, parts and codecs make": wire.check_message_sizes,
    "links and cells are those of the scenario": links.check_network_file,
    "no link carried more than it can": links.check_link_capacities,
    "links follow their traces from where scenario and seed say": traces.check_trace_offsets,
    "no message took longer than its links explain": pace.check_transfer_times,
    "devices sent to those that topology, draws and all-reduces say": peers.check_peers,
    "the run kept to the scenario's limits": limits.check_limits,
    "the models are those of the scenario and the strategy": limits.check_saved_models,
    "the tensors of models are those of the scenario": layout.check_tensors,
    "updates weigh what the strategy's rule gives them": combined.check_weights,
    "edge servers weigh what their samples give them": combined.check_edge_weights,
    "secure aggregation exchanged what it says": secure.check_secure_messages,
    "epsilon follows from noise and rounds": privacy.check_epsilon,
    "the devices are those that the scenario and its seed make": world.check_drawn_devices,
    "data shifted as the scenario says": population.check_shifts,
    "clients were asked for the scenario's epochs": trainings.check_requested_epochs,
    "epochs agree with their ends": trainings.check_epoch_ends,
    "fewer layers were trained only where the scenario allows it": trainings.check_trained_layers,
    "training took as long as samples and speed say": trainings.check_durations,
    "hosts shared their cores": hosts.check_core_shares,
    "tasks waited for workers only while all were taken": hosts.check_host_workers,
    "tasks on hosts started up as the scenario says": hosts.check_start_ups,
    "outages came when the scenario and its seed say": processes.check_outages,
    "uploads queued for the scenario's slots": processes.check_upload_slots,
    "devices were slowed as the scenario says": processes.check_slowdowns,
    "the records of processes are all there": processes.check_act_counts,
    "the summary's accuracy is that of the rounds": figures.check_accuracies,
    "the summary's metrics are those of the rounds": figures.check_metrics,
    "the best round and its models are those of the tests": progress.check_progress,
    "figures are possible": figures.check_figures,
    "energy is counted as the scenario says": world.check_energy_settings,
    "meters agree with the records": books.check_meters,
    "what the scenario does not count has no figures": books.check_uncounted,
    "energy adds up over phases, devices and rounds": energy.check_energy,
    "no battery was below zero, or gave what it did not hold": energy.check_batteries,
    "parts of one's own find nothing wrong": declared.check_own_parts,
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
"""Dict from the title of a check that is only for simulations to the reason why.

``audit`` leaves these checks out for a deployment, whose times were measured on real machines.
"""

MOST_FINDINGS = 10_000
"""Most findings listed for one check: one superfluous record can make all later ones wrong."""


def audit(path: str | Path, *, allow_code: bool = False) -> dict[str, list[str]]:
    """Run every check on a run folder, and return the problems that each check found.

    A check compares files of the folder with each other, or repeats a calculation of the run from
    the scenario.

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
        # NumPy need not warn of NaN and infinity: they equal no expected value and become findings.
        # Arrow strings, the default of pandas, would take a third of a short run's audit.
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
