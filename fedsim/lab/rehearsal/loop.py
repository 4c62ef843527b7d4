"""Rehearse a scenario beside its simulation, fit a world to the rehearsal, and simulate again."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd

from fedsim.clock.executors import Inline
from fedsim.common.errors import DataError, FedsimError
from fedsim.common.files import read_toml, require_regular
from fedsim.deployed.refusals import unused
from fedsim.deployed.wire import FILE as WIRE
from fedsim.deployed.wire import WireCounters
from fedsim.lab.calibrate import calibrate
from fedsim.lab.calibrate.files import CLIENTS
from fedsim.lab.calibrate.files import SCENARIO as FITTED
from fedsim.lab.calibrate.log import LogDefaults
from fedsim.lab.rehearsal.conduct import MEASURED, RehearsalPlan, refuse, rehearse
from fedsim.lab.rehearsal.differences import Differences, compare, lines
from fedsim.lab.rehearsal.needs import simulated_only
from fedsim.lab.rehearsal.page import write_page
from fedsim.records.folder import SCENARIO
from fedsim.records.reading import RunFolder
from fedsim.running.overrides import Tables
from fedsim.running.runner import Job
from fedsim.running.scenario import Scenario, load

SIMULATED = "simulated"
"""Name of the folder of the simulation in a rehearsal's folder."""
CALIBRATED = "calibrated"
"""Name of the folder of the simulation of the calibrated world."""
PAGE = "rehearsal.html"
"""Name of the page in a rehearsal's folder."""
_FIT = "fit"  # folder of the files of the calibration
_DIRECTIONS = ("down", "up")


def rehearse_beside(
    scenario: Scenario, out: Path, plan: RehearsalPlan, notify: Callable[[str], None]
) -> list[str]:
    """Simulate a scenario, run it for real (a rehearsal), and compare the times of both.

    Speeds and links are then fitted to the rehearsal (a calibration). A simulation with the fitted
    values is compared too.

    Args:
        scenario: the scenario.
        out: folder for the runs, the fit, and the page of the comparison.
        plan: options of the rehearsal.
        notify: is called with lines of progress.

    Returns:
        Lines of text that describe the differences.

    Raises:
        ScenarioError: the scenario, or this machine, does not allow the rehearsal.
        RunFolderError: ``out`` has a rehearsal already.
        SimulationError: a process of the rehearsal has failed.
    """
    refuse(scenario, out, plan)
    if not (out / SIMULATED).exists():
        simulate(scenario, out / SIMULATED)
    notify("the scenario is simulated")
    rehearse(scenario, out, plan, notify)
    return describe(out)


def simulate(scenario: Scenario, folder: Path) -> None:
    """Simulate a scenario in this process, without a display of progress.

    Args:
        scenario: the scenario.
        folder: the run folder that is written.
    """
    asyncio.run(Job(scenario, folder, Inline()).execute())


def describe(out: Path) -> list[str]:
    """Compare a rehearsal with its simulations, as an HTML page and as text.

    A rehearsal runs a scenario in real time, in a real process for each device. If the folder lacks
    the simulation with speeds and links that are fitted to the rehearsal, the fit and this
    simulation are made first.

    Args:
        out: folder of a rehearsal that has ended.

    Returns:
        The comparison in words, as lines of text.
    """
    measured = out / MEASURED
    wire = _wire_of(out)
    uncalibrated = compare(out / SIMULATED, measured, wire)
    text = list(lines(uncalibrated, "the scenario"))
    run = RunFolder(measured)
    scenario = load(out / SIMULATED / SCENARIO, allow_code=True)
    trains = not run.summary["measured"]["pace"]  # ``pace`` is 0 if trainings were real
    names = list(simulated_only(scenario, has_namespaces=wire is not None, trains=trains))
    if names:
        text.append(f"simulated, and not rehearsed: {', '.join(names)}")
    calibrated: Differences | None = None  # None if the rehearsal is too short for a fit
    try:
        if not (out / CALIBRATED).exists():
            text += list(_calibrate(out))
        calibrated = compare(out / CALIBRATED, measured)
        text += lines(calibrated, "the calibrated world")
    except DataError as error:
        text.append(f"not calibrated: {error}")
    write_page(out / PAGE, run, uncalibrated, calibrated, names)
    text.append(f"written to {out / PAGE}")
    return text


def _wire_of(out: Path) -> WireCounters | None:
    file = out / WIRE
    if not file.is_file():
        return None
    began = RunFolder(out / MEASURED).summary["measured"]["began"]
    return WireCounters(file, float(began))


def _calibrate(out: Path) -> Iterator[str]:
    """Fit the devices' speeds and links to a rehearsal, and simulate the scenario with them.

    The scenario keeps its data and its strategy. A device with too few tasks for a fit keeps the
    links and the speed that it has in the scenario. But if trainings took the time that this
    machine needed, it gets the median speed of the fitted devices.

    Args:
        out: folder of the rehearsal.

    Yields:
        A line for people on the count of devices without a fit, if there are any.

    Raises:
        DataError: the rehearsal is too short for a fit, or the fitted world cannot be simulated.
    """
    calibrate(out / MEASURED, out / _FIT, LogDefaults(), by_client=True)
    fitted = read_toml(out / _FIT / FITTED)  # its lists have an entry for each fitted device
    clients = pd.read_csv(require_regular(out / _FIT / CLIENTS))  # a row for each fitted device
    settings = _scenario_settings(out, median_speed=float(clients["speed"].median()))
    fitted_settings = {"speed": fitted["population"]["speed"], **fitted["network"]["device"]}
    for index, device in enumerate(map(int, clients["client"])):
        for name, values_of_devices in settings.items():
            values_of_devices[device] = fitted_settings[name][index]
    tables = _fitted_tables(out, fitted, settings)
    try:
        simulate(Scenario(**tables), out / CALIBRATED)
    except FedsimError as error:
        raise DataError(f"the fitted world cannot be simulated: {error}") from None
    unfitted = len(settings["speed"]) - len(clients)
    if unfitted:
        yield f"devices with too few tasks for a fit, which keep their links: {unfitted}"


def _fitted_tables(out: Path, fitted: Tables, settings: dict[str, list[str]]) -> Tables:
    """Return the tables of the simulated scenario with fitted speeds, jitter and network.

    Args:
        out: folder of the rehearsal.
        fitted: tables of the fitted world.
        settings: speed, rates and latency of each device, as ``_scenario_settings`` returns them,
            with the fitted values.
    """
    scenario = load(out / SIMULATED / SCENARIO, allow_code=True)
    tables = scenario.model_dump(mode="python", exclude_none=True)
    for dotted_key in unused(scenario):
        # The fitted values already include the effect of these parts, such as slow phases. Only the
        # availability stays, as it is not fitted.
        section, _, key = dotted_key.partition(".")
        if section == "population" and key != "availability":
            tables[section].pop(key)
    tables["population"]["speed"] = settings["speed"]
    tables["population"]["jitter"] = fitted["population"]["jitter"]
    device_links = {name: settings[name] for name in (*_DIRECTIONS, "latency")}
    tables["network"] = {**fitted["network"], "device": device_links}
    return tables


def _scenario_settings(out: Path, median_speed: float) -> dict[str, list[str]]:
    """Return speed, link rates and latency of each device in the simulation of a rehearsal.

    Args:
        out: folder of the rehearsal.
        median_speed: median speed of the fitted devices (samples/s). If trainings took the time
            that this machine needed, it replaces the speeds, which had no effect then.

    Returns:
        Dict from ``speed``, ``down``, ``up`` and ``latency`` to texts with units; [devices] each.
    """
    rows = RunFolder(out / SIMULATED).devices
    settings = {
        "speed": [f"{row['speed']:.9g} samples/s" for row in rows],
        "latency": [f"{row['latency']:.9g} s" for row in rows],
    }
    for direction in _DIRECTIONS:
        settings[direction] = [f"{row[f'link_{direction}']:.9g} B/s" for row in rows]
    if not RunFolder(out / MEASURED).summary["measured"]["pace"]:
        settings["speed"] = [f"{median_speed:.9g} samples/s"] * len(rows)
    return settings
