"""``Scenario``: the description of a run, read from TOML and written back with every default."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import tomli_w
from pydantic import ValidationError, model_validator

from fedsim.clock.simulation import Simulation
from fedsim.common.errors import ScenarioError, show_value
from fedsim.common.harmless import clean
from fedsim.common.imports import code_from_file
from fedsim.common.wording import explain
from fedsim.records.notebook import as_html, as_line
from fedsim.records.reading import RunFolder
from fedsim.running.conflicts import SECTIONS_OF_LEARNING, conflicts
from fedsim.running.overrides import apply_changes, read_toml
from fedsim.running.sections import Sections
from fedsim.running.shipped import find_file, is_study

if TYPE_CHECKING:
    from fedsim.running.assembly import Run


class Scenario(Sections):
    """Complete, validated description of a run, as a TOML file or keyword arguments give it.

    Example:
        >>> import fedsim
        >>> samples = {"low": 100, "high": 100}
        >>> scenario = fedsim.Scenario(
        ...     learning="off",
        ...     population={"devices": 4, "speed": "10 samples/s", "samples": samples},
        ...     strategy={"kind": "fedavg", "clients_per_round": 2},
        ...     stop={"rounds": 3},
        ... )
        >>> scenario.population.devices
        4
        >>> fedsim.Scenario(population={"devices": 0})
        Traceback (most recent call last):
        fedsim.common.errors.ScenarioError: population.devices is 0; it must be 1 or more
    """

    @model_validator(mode="after")
    def _check_conflicts(self) -> Self:
        self.strategy.check(self.population.trainable)
        self.strategy.check_population(self.population)
        problem = next(conflicts(self), None)
        if problem is not None:
            raise ScenarioError(problem)
        return self

    def __init__(self, **sections: Any) -> None:
        try:
            super().__init__(**sections)
        except ValidationError as error:
            raise ScenarioError(explain(error, sections)) from None

    def install(self, simulation: Simulation) -> "Run":
        """Build the run that this scenario describes, in an empty simulation.

        Args:
            simulation: the simulation.

        Returns:
            The run, which is ready to begin.

        Raises:
            ScenarioError, DataError: the run cannot be built.
        """
        from fedsim.running.assembly import assemble

        return assemble(self, simulation)

    def __repr__(self) -> str:
        return as_line(f"scenario {clean(self.name)!r}", self._facts())

    def _repr_html_(self) -> str:
        return as_html(f"scenario {self.name}", self._facts())

    def _facts(self) -> dict[str, str]:
        """Return the properties that ``repr`` shows: name -> text."""
        limits = self.stop.model_dump(mode="json", exclude_none=True)
        limit_texts = [f"{key.replace('_', ' ')} {value}" for key, value in limits.items()]
        return {
            "strategy": self.strategy.kind,
            "model": self.model.kind if self.learning == "on" else "none",
            "data": f"{self.data.source.kind}, {self.data.partition.kind}",
            "devices": str(self.population.devices),
            "network": self.network.kind,
            "seed": str(self.seed),
            "until": ", ".join(limit_texts),
        }

    def to_toml(self) -> str:
        """Return the scenario as TOML with every default, from which the same scenario is read."""
        unused = set(SECTIONS_OF_LEARNING) if self.strategy.traits.brings_learning else None
        return tomli_w.dumps(self.model_dump(mode="python", exclude=unused, exclude_none=True))


def load(
    path: str | Path,
    changes: Sequence[str] = (),
    seed: int | None = None,
    *,
    allow_code: bool = False,
    tell: Callable[[str], object] = lambda _: None,
) -> Scenario:
    """Read a scenario from a TOML file, with changes from the command line.

    Args:
        path: a TOML file, which may extend another one (``extends``), or the name of a shipped
            scenario.
        changes: overrides ``key.path=value``; a value is TOML, or else plain text; an empty
            value removes the key.
        seed: overrides the file's seed.
        allow_code: whether to import code that the file names by import path
            (``fedsim.common.imports``).
        tell: called with a message for each key dropped because ``changes`` alter the ``kind``
            of its table.

    Returns:
        The scenario.

    Raises:
        ScenarioError: the file cannot be read, or describes something that cannot be run.

    Example:
        >>> import fedsim
        >>> scenario = fedsim.load("quickstart", ["stop.rounds=5", "strategy.deadline=1 min"])
        >>> scenario.stop.rounds, scenario.strategy.deadline
        (5, 60.0)
    """
    if not isinstance(path, str | Path):
        raise ScenarioError(
            f"{show_value(path)} is no file's path or name; tables become a scenario by "
            "fedsim.Scenario(**tables)"
        )
    sections = read_toml(find_file(path), "scenario")
    if is_study(sections):
        raise ScenarioError(f"{str(path)!r} is a study, not a scenario: 'fedsim study' runs it")
    all_changes = [*changes]
    if seed is not None:
        all_changes.append(f"seed={seed}")
    with code_from_file(allow_code):
        apply_changes([sections], all_changes, Scenario, tell)
        return Scenario(**sections)


def load_of_run(
    folder: RunFolder,
    changes: Sequence[str] = (),
    *,
    allow_code: bool = False,
    tell: Callable[[str], object] = lambda _: None,
) -> Scenario:
    """Return the scenario of a run folder, also if an earlier version wrote it.

    Args:
        folder: the run folder.
        changes: overrides ``key.path=value``; an empty value removes the key.
        allow_code: whether to import code that the scenario names by import path.
        tell: called with a message for each dropped key, as by ``load``.

    Raises:
        ScenarioError: the scenario is not valid, or has keys or values of an earlier version that
            this version cannot express.
        RunFolderError: ``scenario.toml`` cannot be read.
    """
    lost = folder.understood.lost
    if lost:
        raise ScenarioError(
            f"the scenario has {', '.join(lost)}, which this version does not have: the run can be "
            "repeated by the version that wrote it alone"
        )
    sections = deepcopy(folder.scenario)
    with code_from_file(allow_code):
        apply_changes([sections], [*changes], Scenario, tell)
        return Scenario(**sections)
