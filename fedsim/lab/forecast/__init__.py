"""Forecasts of a scenario before it is run: its cost in the simulated world, and on this machine."""

import asyncio
import sys
from typing import TYPE_CHECKING, NamedTuple

from fedsim.executors.base import Executor
from fedsim.lab.forecast.nominal import nominal_lines
from fedsim.lab.forecast.trial import Beginning
from fedsim.language.units import show_bytes, show_seconds
from fedsim.simulation import Simulation

if TYPE_CHECKING:
    from fedsim.scenario import Scenario

PATIENCE_S = 2.0


class Forecast(NamedTuple):
    """The cost of a whole run on this machine.

    Attributes:
        share: tried part of the run, 0..1; if it is 0, nothing below is known.
        build_s, simulation_s, training_s, testing_s: real seconds.
        events, trained_steps, tests: how many.
        memory_bytes: peak; None where the system does not tell.
        disk_bytes: of the run folder.
        futile: why the run ends, if it does so within the trial and without a single round.
    """

    share: float
    build_s: float
    simulation_s: float
    training_s: float
    testing_s: float
    events: float
    trained_steps: float
    tests: float
    memory_bytes: float | None
    disk_bytes: float
    futile: str | None

    @property
    def real_s(self) -> float:
        """The sum of the real seconds."""
        return self.build_s + self.simulation_s + self.training_s + self.testing_s


def forecast_lines(scenario: "Scenario", executor: Executor, patience_s: float = PATIENCE_S) -> list[str]:
    """Build the scenario, try its beginning, and say what can be known.

    Args:
        scenario: what would be run.
        executor: where it would be run.
        patience_s: real seconds for each part of the trial; 0: no trial, but only what follows without one.

    Raises:
        ScenarioError, DataError: it cannot be run.
    """
    if scenario.strategy.brings_learning:
        Simulation(scenario, executor=executor)  # refuses what cannot be run
        about = (
            f"{scenario.population.devices} devices; what they compute, send and learn is for {scenario.strategy.called} to say"
        )
        return [about, *scenario.stop.notes, *scenario.strategy.notes]
    trial = Beginning.built(scenario, executor)
    lines = nominal_lines(trial.run)
    return [*lines, *_real_lines(scenario, forecast(trial, patience_s))] if patience_s else lines


def forecast(trial: Beginning, patience_s: float = PATIENCE_S) -> Forecast:
    """Try a run that has been built, and extrapolate.

    The simulation is tried without learning; then a part of what it would have trained is trained, and a model tested. Other
    computations of a strategy, such as a clustering, are not counted, nor are checkpoints.
    """
    trial.go(patience_s)
    run, tally = trial.run, trial.tally
    times = 1 / trial.share if trial.share else 0.0
    step_s, test_s = (0.0, 0.0) if trial.core is None else asyncio.run(trial.costs(trial.core, patience_s))
    tests, scenario = times * tally.tests, run.scenario
    if trial.share < 1.0 and scenario.stop.rounds is not None:  # perhaps it ended before the first one
        tests = max(tests, scenario.evaluation.tests(scenario.stop.rounds))
    trained = times * sum(map(trial.steps_of, tally.trainings))
    models = 0.0 if trial.core is None else len(run.strategy.models()) * run.learner.bytes
    return Forecast(
        share=trial.share,
        build_s=trial.build_s,
        simulation_s=trial.real_s * times,
        training_s=trained * step_s,
        testing_s=tests * test_s,
        events=trial.events * times,
        trained_steps=trained,
        tests=tests,
        memory_bytes=_peak_memory(),
        disk_bytes=trial.growing_bytes * times + trial.fixed_bytes + models,
        futile=trial.stopped if trial.share == 1.0 and not trial.rounds else None,
    )


def _real_lines(scenario: "Scenario", found: Forecast) -> list[str]:
    if not found.share:
        return ["what a run takes here cannot be told: not one round ended within the trial"]
    parts = [f"{show_seconds(found.simulation_s)} to simulate {found.events:.0f} events"]
    if scenario.learning == "on":
        parts.append(f"{show_seconds(found.training_s)} for {found.trained_steps:.0f} steps of SGD")
        parts.append(f"{show_seconds(found.testing_s)} for {found.tests:.0f} tests")
    most = "at most " if scenario.stop.accuracy is not None else ""
    lines = [f"here a run takes {most}about {show_seconds(found.real_s)}: {', '.join(parts)}"]
    memory = "" if found.memory_bytes is None else f"{show_bytes(found.memory_bytes)} of memory and "
    lines.append(f"it needs about {memory}{show_bytes(found.disk_bytes)} on disk")
    if found.futile is not None:
        lines.append(f"it makes not one round ({found.futile}): devices, deadline and strategy do not go together")
    return lines


def _peak_memory() -> float | None:
    try:
        import resource
    except ImportError:  # there is none on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024.0
