"""Runs and studies as trackers of experiments take them: names, settings, and scalars round by round."""

import hashlib
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.errors import RunFolderError
from fedsim.files import flat
from fedsim.records.ledger import total_of_round
from fedsim.records.reading import RunFolder
from fedsim.records.schema import OF_PEERS
from fedsim.records.study_folder import is_done, is_study, read_index

_TAGS = {
    "model": ("accuracy", "loss", "train_loss", "discrepancy"),
    "peers": OF_PEERS,
    "groups": ("purity", "ari", "nmi"),
    "clients": ("selected", "valid", "slow", "disconnected"),
}
_OF_SUMMARY = ("strategy", "seed", "status", "rounds", "simulated_s", "events_sha256", "models_sha256")


@dataclass(frozen=True)
class Export:
    """A run to be exported.

    Attributes:
        run: its folder.
        name: different for each run of an export.
        study: the name of the run's study; empty for a single run.
    """

    run: RunFolder
    name: str
    study: str = ""

    @property
    def key(self) -> str:
        """The run's name in the tracker, the same whenever it is exported."""
        said = f"{self.study}\n{self.name}\n{self.run.summary['events_sha256']}"
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    @property
    def settings(self) -> dict[str, Any]:
        """The scenario, by dotted key."""
        return flat(self.run.scenario)

    @property
    def figures(self) -> dict[str, Any]:
        """The summary: numbers and names."""
        summary = self.run.summary
        parts = {"accuracy": summary["accuracy"], "energy": summary.get("energy", {})}
        parts["bytes"] = {name: summary["bytes"][name] for name in ("down", "up", "wasted")}
        figures = {name: summary[name] for name in _OF_SUMMARY if name in summary}
        figures |= {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}
        return {name: value for name, value in figures.items() if isinstance(value, str | int | float)}

    def scalars(self) -> Iterator[tuple[float, int, dict[str, float]]]:
        """Each round's time (s), its number, and its scalars by tag: measures, and the bytes moved, in it and so far."""
        moved = 0.0
        for row in self.run.rounds:
            moved += total_of_round(row)
            told = {f"{part}/{name}": float(row[name]) for part, of in _TAGS.items() for name in of if row[name] is not None}
            told |= {"traffic/down, bytes": row["bytes_down"], "traffic/up, bytes": row["bytes_up"]}
            yield row["time"], row["round"], told | {"traffic/so far, bytes": moved}


def tracker(module: str, name: str, package: str) -> Any:
    """Import a tracker's module.

    Raises:
        RunFolderError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RunFolderError(f"{name} cannot be imported ({error}); pip install {package!r} installs it") from error


def exports(paths: Sequence[str | Path]) -> list[Export]:
    """The runs in folders of runs and studies, those of studies that are done.

    Raises:
        RunFolderError: a folder is neither a run nor a study, or is damaged; or a study has no run that is done.
    """
    single = iter(names([RunFolder(path) for path in paths if not is_study(Path(path))]))
    found: list[Export] = []
    for path in map(Path, paths):
        if not is_study(path):
            found.append(Export(RunFolder(path), next(single)))
            continue
        runs = dict.fromkeys(path / run.folder for variant in read_index(path).variants for run in variant.runs)
        done = [folder for folder in runs if is_done(folder)]
        if not done:
            raise RunFolderError(f"the study {str(path)!r} has no run that is done")
        study = path.resolve().name
        found += [Export(RunFolder(folder), "/".join((study, *folder.parts[-2:])), study) for folder in done]
    return found


def names(runs: Sequence[RunFolder]) -> list[str]:
    """The runs' folders, with as many folders above as tell them apart, and their places where none do."""
    paths = [run.path.resolve() for run in runs]
    for depth in range(1, max((len(path.parts) for path in paths), default=0)):
        found = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(found)) == len(found):
            return found
    return [f"{place}-{path.name}" for place, path in enumerate(paths, start=1)]
