"""Result of ``fedsim check``."""

from dataclasses import asdict
from typing import Literal

from pydantic import JsonValue

from fedsim.cli.results.parts import ResultEntries, VerbResult
from fedsim.common.files import parse_toml
from fedsim.lab.whole_forecast import CostHere, WholeForecast


class NeedResult(ResultEntries):
    """Memory and disk space that a run needs for one purpose, such as personal models."""

    part: str
    """The part, such as ``personal models``."""
    key: str
    """The key of the scenario on which it depends; "" if there is none."""
    memory_bytes: float
    """Memory (bytes)."""
    disk_bytes: float
    """Size in the run folder (bytes)."""
    scratch_bytes: float
    """Size in the folder for temporary files (bytes)."""


class ForecastResult(ResultEntries):
    """Predicted cost of a run on this machine, from a trial of its beginning."""

    real_s: float
    """Real time of the whole run (s)."""
    build_s: float
    """Real time to load data and build the world (s)."""
    simulation_s: float
    """Real time of the simulation (s)."""
    training_s: float
    """Real time of training (s)."""
    testing_s: float
    """Real time of tests (s)."""
    events: float
    """Count of events."""
    trained_steps: float
    """Count of SGD steps."""
    tests: float
    """Count of tests."""
    memory_bytes: int
    """Peak memory (bytes)."""
    disk_bytes: float
    """Peak size of the run folder (bytes)."""
    scratch_bytes: float
    """Peak size of models in the folder for temporary files (bytes)."""
    needs: list[NeedResult]
    """Memory and disk by the part of the scenario that needs them."""

    @classmethod
    def of(cls, cost: CostHere) -> "ForecastResult":
        return cls(**asdict(cost))


class CheckResult(VerbResult):
    """JSON output of ``fedsim check`` for a valid scenario; an invalid scenario is an error.

    It has the scenario with every default, and the predicted cost of the run.
    """

    verb: Literal["check"] = "check"
    valid: Literal[True] = True
    lines: list[str]
    """Sizes, estimates and notes, as text for people."""
    forecast: ForecastResult | None
    """The predicted cost here; null with ``--no-trial``, or if no round ended within the trial."""
    scenario: dict[str, JsonValue]
    """The scenario with every default."""

    @classmethod
    def of(cls, scenario: str, forecast: WholeForecast) -> "CheckResult":
        """Return the result for a valid scenario.

        Args:
            scenario: the scenario with every default, as TOML.
            forecast: the forecast of the run.
        """
        cost = None
        if forecast.cost is not None:
            cost = ForecastResult.of(forecast.cost)
        return cls(lines=forecast.lines, forecast=cost, scenario=parse_toml(scenario))
