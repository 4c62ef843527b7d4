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
    """Copy in memory of a file that a scenario names, to send it to another machine.

    Attributes:
        reference: pair of the file's path, as a scenario has it, and the scenario's ``data.root``
            (None if it has none), by which a run finds the copy.
        name: name of the file, without its folder.
        pieces: the content, as uint8 arrays of at most 16 MiB each.
    """

    reference: Reference
    name: str
    pieces: Pieces


class _WrittenFiles:
    """Writes copies of files from memory to this machine's disk, each when it is first looked up.

    Args:
        files: the files.
        folder: an existing folder for the copies.
    """

    def __init__(self, files: Sequence[CopiedFile], folder: Path) -> None:
        self._files = {file.reference: file for file in files}
        self._folder = folder
        self._paths: dict[Reference, Path] = {}  # paths of the copies that are on disk already

    def find(self, reference: Reference) -> Path | None:
        """Return the path of a file's copy on disk, which the first call for the file writes.

        Args:
            reference: the file as scenarios name it.

        Returns:
            The path; None if there is no copy of the file.
        """
        file = self._files.get(reference)
        if file is not None and reference not in self._paths:
            # each file gets a numbered folder, as two files may have the same name
            path = self._folder / f"{len(self._paths)}" / file.name
            write_pieces(path, file.pieces)
            self._paths[reference] = path
        return self._paths.get(reference)


@dataclass(frozen=True)
class RunInputs:
    """Data and files that a run reads, to send them with the run to another machine.

    Attributes:
        data: the loaded data set, if the run has one.
        files: copies of further files that the scenario names.
    """

    data: KeptData = field(default_factory=KeptData)
    files: Sequence[CopiedFile] = ()

    @contextmanager
    def in_use(self, folder: Path) -> Iterator[None]:
        """Return a context in which runs read these inputs instead of this machine's own files.

        Each file is written to disk when a run first reads it; files that no run reads stay in
        memory.

        Args:
            folder: an existing folder for the files.
        """
        with keeping(self.data), copied_files(_WrittenFiles(self.files, folder).find):
            yield


class StudyInputs:
    """Collects the data and files that the runs of a study read, to send them to a cluster's nodes.

    ``record`` builds one run of a variant, and stores the data and files that this run reads.
    ``of`` then returns the inputs of any run of the study, to send them with the run.
    """

    def __init__(self) -> None:
        self._kept = KeptData()
        self._files: dict[Reference, CopiedFile] = {}

    def record(self, scenario: Scenario, build: Callable[[], None]) -> None:
        """Build a run of a scenario, and keep copies of the data and files that it reads.

        Args:
            scenario: the scenario.
            build: builds a run of the scenario, without learning.
        """
        with keeping(self._kept), recorded_files() as files:
            build()
            if scenario.learning == "on" and not scenario.strategy.traits.brings_learning:
                self._load_rest(scenario)
        for reference, path in files.items():
            if reference not in self._files and path.is_file():
                self._files[reference] = CopiedFile(reference, path.name, read_pieces(path))

    def _load_rest(self, scenario: Scenario) -> None:
        """Read the data set and the model file of a scenario, so that ``record`` stores them.

        A run that is built without learning does not read them.
        """
        is_synthetic = isinstance(scenario.data.source, Synthetic)
        if not is_synthetic and scenario.data.kept_key not in self._kept.datasets:
            scenario.data.build(scenario.population.devices, Streams(scenario.seed))
        file = getattr(scenario.model, "file", None)
        if file is not None:
            find_file(file, scenario.data.own_folder())

    def of(self, text: str) -> RunInputs:
        """Return the data set of a run, and copies of the files that the study's runs read.

        Args:
            text: the run's scenario, as TOML.
        """
        data_spec = Scenario(**tomllib.loads(text)).data
        data_of_run = KeptData()
        key = data_spec.kept_key
        if key in self._kept.shapes:
            data_of_run.shapes[key] = self._kept.shapes[key]
        if key in self._kept.datasets:
            data_of_run.datasets[key] = self._kept.datasets[key]
        return RunInputs(data_of_run, [*self._files.values()])
