"""Inputs of a study's runs: data sets and files, which other machines may not have."""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedsim.common.files import find_file
from fedsim.common.inputs import Reference, copied_files, recorded_files
from fedsim.common.streams import Streams
from fedsim.lab.study.parts import Pieces, read_pieces, write_pieces
from fedsim.learning.data.kept import KeptData, keeping
from fedsim.learning.data.sources import Synthetic
from fedsim.running.scenario import Scenario


@dataclass(frozen=True)
class CopiedFile:
    """Copy of a file that a scenario names.

    Attributes:
        reference: the file as scenarios name it.
        name: name of the file in its folder.
        pieces: the content.
    """

    reference: Reference
    name: str
    pieces: Pieces


class _WrittenFiles:
    """Copies of files on this machine's disk, each written when it is first looked up.

    Args:
        files: the files.
        folder: an existing folder for the copies.
    """

    def __init__(self, files: Sequence[CopiedFile], folder: Path) -> None:
        self._files = {file.reference: file for file in files}
        self._folder = folder
        self._paths: dict[Reference, Path] = {}

    def find(self, reference: Reference) -> Path | None:
        """Return the path of a file's copy; None if the file is not among them."""
        file = self._files.get(reference)
        if file is not None and reference not in self._paths:
            path = self._folder / f"{len(self._paths)}" / file.name
            write_pieces(path, file.pieces)
            self._paths[reference] = path
        return self._paths.get(reference)


@dataclass(frozen=True)
class RunInputs:
    """Inputs of a run.

    Attributes:
        data: the loaded data set, if the run has one.
        files: copies of the other files that the scenario names.
    """

    data: KeptData = field(default_factory=KeptData)
    files: Sequence[CopiedFile] = ()

    @contextmanager
    def in_use(self, folder: Path) -> Iterator[None]:
        """Context manager in which runs are built from these inputs.

        Only the files that a run reads are written; files of other variants stay in memory.

        Args:
            folder: an existing folder for the files.
        """
        with keeping(self.data), copied_files(_WrittenFiles(self.files, folder).find):
            yield


class StudyInputs:
    """Inputs of all runs of a study, recorded while a run of each variant is built."""

    def __init__(self) -> None:
        self._kept = KeptData()
        self._files: dict[Reference, CopiedFile] = {}

    def record(self, scenario: Scenario, build: Callable[[], None]) -> None:
        """Record the inputs of a scenario's runs.

        Args:
            scenario: the scenario.
            build: builds a run of the scenario, without learning.
        """
        with keeping(self._kept), recorded_files() as files:
            build()
            if scenario.learning == "on" and not scenario.strategy.brings_learning:
                self._load_rest(scenario)
        for reference, path in files.items():
            if reference not in self._files and path.is_file():
                self._files[reference] = CopiedFile(reference, path.name, read_pieces(path))

    def _load_rest(self, scenario: Scenario) -> None:
        """Record the inputs that only a run with learning reads: its data set and model file."""
        is_drawn = isinstance(scenario.data.source, Synthetic)
        if not is_drawn and scenario.data.kept_key not in self._kept.datasets:
            scenario.data.build(scenario.population.devices, Streams(scenario.seed))
        file = getattr(scenario.model, "file", None)
        if file is not None:
            find_file(file, scenario.data.own_folder())

    def of(self, text: str) -> RunInputs:
        """Return the inputs of a run.

        Args:
            text: the scenario, as TOML.
        """
        data = Scenario(**tomllib.loads(text)).data
        selection = KeptData()
        key = data.kept_key
        if key in self._kept.shapes:
            selection.shapes[key] = self._kept.shapes[key]
        if key in self._kept.datasets:
            selection.datasets[key] = self._kept.datasets[key]
        return RunInputs(selection, [*self._files.values()])
