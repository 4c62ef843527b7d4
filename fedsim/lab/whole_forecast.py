"""The whole forecast of a scenario: its sizes, its times, and what it costs on this machine."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsim.clock.executors import Executor
from fedsim.clock.simulation import Simulation
from fedsim.common.notes import collected_notes
from fedsim.common.round_words import counted
from fedsim.common.units import show_bytes, show_seconds
from fedsim.lab.device_memory import device_memory_lines
from fedsim.lab.forecast import PATIENCE_S, Beginning, data_lines, forecast, nominal_lines
from fedsim.lab.model_memory import (
    Need,
    count_models,
    data_need,
    model_needs,
    need_lines,
    saved_needs,
    unforeseen_lines,
    updates_in_memory_lines,
)
from fedsim.running.assembly import Run

if TYPE_CHECKING:
    from fedsim.running.scenario import Scenario


@dataclass(frozen=True)
class CostHere:
    """Predicted cost of a run on this machine.

    Attributes:
        real_s: real time of the whole run (s).
        build_s: real time to load data and build the world (s).
        simulation_s: real time of the simulation (s).
        training_s: real time of training (s).
        testing_s: real time of tests (s).
        events: count of events.
        trained_steps: count of SGD steps.
        tests: count of tests.
        memory_bytes: peak memory (bytes).
        disk_bytes: peak size of the run folder (bytes).
        scratch_bytes: peak size of models in the folder for temporary files (bytes).
        needs: memory and disk that each part of the scenario needs, such as its data.
    """

    real_s: float
    build_s: float
    simulation_s: float
    training_s: float
    testing_s: float
    events: float
    trained_steps: float
    tests: float
    memory_bytes: int
    disk_bytes: float
    scratch_bytes: float
    needs: tuple[Need, ...]


@dataclass(frozen=True)
class WholeForecast:
    """Forecast of a run before it begins, as text for people and as figures.

    Attributes:
        lines: text lines for people.
        cost: cost on this machine; None if there was no trial, or if no round ended within it.
    """

    lines: list[str]
    cost: CostHere | None = None


def forecast_lines(
    scenario: "Scenario", executor: Executor, patience_s: float = PATIENCE_S
) -> list[str]:
    """Build a scenario, run its beginning, and return a prediction of the run as text lines.

    Args:
        scenario: the scenario.
        executor: executor that computes the learning of the trial.
        patience_s: real time (s) for each part of the trial; 0 for no trial.
    """
    return forecast_whole(scenario, executor, patience_s).lines


def forecast_whole(
    scenario: "Scenario", executor: Executor, patience_s: float = PATIENCE_S
) -> WholeForecast:
    """Build a scenario, run its beginning, and predict the cost of the whole run.

    Args:
        scenario: the scenario.
        executor: executor that computes the learning of the trial.
        patience_s: real time (s) for each part of the trial; 0 for no trial.

    Raises:
        ScenarioError: the scenario is invalid.
        DataError: the data of the scenario cannot be read.
    """
    if scenario.strategy.traits.brings_learning:  # such as a Flower app, whose sizes are unknown
        Simulation(scenario, executor=executor)  # rejects invalid scenarios
        about = f"what they compute, send and learn is for {scenario.strategy.called} to say"
        return WholeForecast(
            [
                f"{counted(scenario.population.devices, 'device')}; {about}",
                *scenario.stop.notes,
                *scenario.strategy.notes,
            ]
        )
    with collected_notes() as notes:
        trial = Beginning(scenario, executor)
    lines = [*data_lines(trial.run), *notes, *trial.run.learner.notes, *nominal_lines(trial.run)]
    lines += device_memory_lines(trial.run)
    lines += shared_link_lines(trial.run)
    if not patience_s:
        return WholeForecast(lines)
    costs = forecast(trial, patience_s)
    if not trial.share:
        lines.append("what a run takes here cannot be told: not one round ended within the trial")
        return WholeForecast(lines)
    real_s = trial.build_s + costs["simulation_s"] + costs["training_s"] + costs["testing_s"]
    records_bytes = costs.pop("records_bytes")  # all other entries are fields of ``CostHere``
    needs, kept_bytes = _needs(trial, records_bytes)
    cost = CostHere(
        real_s=real_s,
        build_s=trial.build_s,
        memory_bytes=int(sum(need.memory_bytes for need in needs)),
        disk_bytes=_disk_bytes(needs, kept_bytes),
        scratch_bytes=sum(need.scratch_bytes for need in needs),
        needs=tuple(needs),
        **costs,
    )
    return WholeForecast([*lines, *_cost_lines(trial, cost)], cost)


def _disk_bytes(needs: Sequence[Need], kept_bytes: float | None) -> float:
    """Return the peak size of the run folder (bytes).

    Args:
        needs: disk space and memory that each part of the scenario needs.
        kept_bytes: size of the checkpoints that still exist when the final models are written
            (bytes); None if it is unknown, to assume the checkpoints' peak size.
    """
    sizes = {need.part: need.disk_bytes for need in needs if need.disk_bytes}
    total_bytes = sum(sizes.values())
    if kept_bytes is None:
        return total_bytes
    # final models are written when the run has ended, and only the last checkpoints still exist
    running_bytes = total_bytes - sizes.get("final models", 0.0)
    end_bytes = total_bytes - sizes.get("checkpoints", 0.0) + kept_bytes
    return max(running_bytes, end_bytes)


def _needs(trial: Beginning, records_bytes: float) -> tuple[list[Need], float | None]:
    """Return the memory and disk that each part of a scenario needs.

    Args:
        trial: a trial of the run's beginning, which has ended.
        records_bytes: size of the tables of the whole run (bytes).

    Returns:
        The needs, and the size of the checkpoints that still exist at the run's end (bytes; None if
        unknown).
    """
    data = data_need(trial.run.data)
    # code and the simulation: all that the trial left in memory but the data
    program_bytes = max(0.0, trial.resident_bytes - data.memory_bytes)
    needs = [
        Need("program", "", program_bytes),
        data,
        Need("records", "stop", disk_bytes=records_bytes),
    ]
    if trial.core is None:
        return needs, None
    counts = count_models(trial)
    needs += model_needs(trial.run, counts, trial.tally.largest_call, trial.workers)
    needs += saved_needs(trial.run, counts, trial.rounds / trial.share)
    listed_bytes = sum(need.memory_bytes for need in needs)
    # the rest of the trial's peak: activations and gradients, which the whole run needs as well
    training = Need("a training", "model", max(0.0, trial.peak_bytes - listed_bytes))
    return [*needs, training], counts.kept_bytes


_LONG_ROUND_TRIP_S = 0.02
_MANY_ROUND_TRIPS = 200  # an upload that lasts longer hardly depends on slow start and losses
_SAMPLED = slice(0, 1000)  # devices from whose links medians over all devices are estimated


def shared_link_lines(run: Run) -> list[str]:
    """Return a warning line if uploads over the server's link may be simulated as too fast.

    Without the window model, simulated transfers always use a link in full. A real link is idle at
    times, after lost packets (docs/time.md, windows and queues). There is a warning if all of the
    following hold:

    - The protocol does not use the window model, which simulates lost packets.
    - The uploads of a round fill the server's link: at their access rates, they could send faster
      than the link receives.
    - Round trips are long: at least 0.02 s.
    - The uploads take few round trips, at most 200.

    Args:
        run: a run that has not begun.

    Returns:
        The line in a list; an empty list if there is nothing to warn of.
    """
    uses_window_model = run.scenario.network.protocol.queueing() is not None
    if uses_window_model:
        return []
    network = run.network
    link_rate = network.links.get("server up", math.inf)  # bytes/s
    access_rates = np.asarray(network.access["up"][_SAMPLED], dtype=np.float64)  # bytes/s
    do_uploads_fill_link = run.at_once * float(np.median(access_rates)) > link_rate
    if not do_uploads_fill_link:
        return []
    round_trip_s = 2 * float(np.median(network.latencies[_SAMPLED]))
    if round_trip_s < _LONG_ROUND_TRIP_S:
        return []
    # time until all uploads of a round, which share the link, are done
    upload_s = run.at_once * run.dispatch.envelopes.up.model_bytes / link_rate
    if upload_s > _MANY_ROUND_TRIPS * round_trip_s:
        return []
    return [
        f"{run.at_once} uploads fill the server's link over round trips of "
        f"{show_seconds(round_trip_s)}, where losses leave a real link idle: network.protocol of "
        "kind 'tcp' with model 'window' simulates them, the present one is likely too fast"
    ]


def _cost_lines(trial: Beginning, cost: CostHere) -> list[str]:
    """Return text lines on the predicted cost of a run on this machine.

    Args:
        trial: the trial of the run's beginning, from which the cost was predicted.
        cost: the cost.
    """
    scenario = trial.run.scenario
    parts = [f"{show_seconds(cost.simulation_s)} to simulate {cost.events:.0f} events"]
    if scenario.learning == "on":
        training = show_seconds(cost.training_s)
        testing = show_seconds(cost.testing_s)
        parts.append(f"{training} for {cost.trained_steps:.0f} steps of SGD")
        parts.append(f"{testing} for {counted(round(cost.tests), 'test')}")
    parts.append(f"{show_seconds(cost.build_s)} to load data and build the world")
    most = "at most " if scenario.stop.accuracy is not None else ""
    memory = show_bytes(cost.memory_bytes)
    disk = show_bytes(cost.disk_bytes)
    scratch = ""
    if cost.scratch_bytes:
        scratch = f", and {show_bytes(cost.scratch_bytes)} for temporary files"
    lines = [
        f"here a run takes {most}about {show_seconds(cost.real_s)}: {', '.join(parts)}",
        f"it needs about {memory} of memory and {disk} on disk{scratch}",
    ]
    lines += need_lines(cost.needs)
    if trial.core is not None:
        lines += updates_in_memory_lines(trial.run, trial.tally.largest_call)
        lines += unforeseen_lines(trial.run)
    if trial.reason_without_round is not None:
        lines.append(
            f"it makes not one round ({trial.reason_without_round}): devices, deadline and strategy do not "
            "go together"
        )
    return lines
