"""Exports of runs and studies to experiment trackers: TensorBoard, MLflow, and Weights & Biases.

The package of a tracker is imported when it is needed. A repeated export replaces the previous
one. All functions raise ``RunFolderError`` if a folder is neither a run nor a study or is damaged,
if the package is missing, or if ``out`` cannot be written.
"""

import hashlib
import importlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from fedsim.common.errors import RunFolderError
from fedsim.common.files import flatten
from fedsim.lab.reading.study_folder import distinct_names, is_done, is_study, read_index
from fedsim.records.folder import writing
from fedsim.records.ledger import total_of_round
from fedsim.records.reading import RunFolder
from fedsim.records.schema import OF_PEERS

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_TAGS = {
    "model": ("accuracy", "loss", "train_loss", "discrepancy"),
    "peers": OF_PEERS,
    "groups": ("purity", "ari", "nmi"),
    "clients": ("selected", "valid", "slow", "disconnected"),
}
_SUMMARY_FIELDS = (
    "strategy",
    "seed",
    "status",
    "rounds",
    "simulated_s",
    "events_sha256",
    "models_sha256",
)
_EVENTS = "events.out.tfevents.0.fedsim"  # name of the file for TensorBoard
_MLFLOW_LIMIT = 6000  # greatest length of a parameter in MLflow (characters)
# settings of W&B that keep it from recording the machine and the user's code
_WANDB_SWITCHES = ("x_disable_stats", "x_disable_meta", "disable_git", "disable_code")


@dataclass(frozen=True)
class Export:
    """Run to export to a tracker such as TensorBoard or MLflow, with its name there.

    Attributes:
        run: the run folder.
        name: name of the run, unique among the exported runs.
        study: name of the run's study; empty for a single run.
    """

    run: RunFolder
    name: str
    study: str = ""

    @property
    def key(self) -> str:
        """ID of the run in the tracker, 16 hexadecimal digits; every export gives the same ID."""
        text = f"{self.study}\n{self.name}\n{self.run.summary['events_sha256']}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def figures(self) -> dict[str, str | int | float]:
        """Results in the summary that trackers show: name, such as ``accuracy/best``, -> value."""
        summary = self.run.summary
        values = {name: summary.get(name) for name in _SUMMARY_FIELDS}
        for part in ("accuracy", "energy", "bytes"):
            for name, value in summary.get(part, {}).items():
                values[f"{part}/{name}"] = value
        return {
            name: value for name, value in values.items() if isinstance(value, str | int | float)
        }

    @property
    def exit_code(self) -> int:
        """Exit code for the tracker: 0 if the run is done, else 1."""
        return 0 if self.run.summary["status"] == "done" else 1

    def scalars(self) -> Iterator[tuple[float, int, dict[str, float]]]:
        """Yield the numbers of each round: metrics, bytes of the round, and all bytes so far.

        Yields:
            Simulated time of the round's end (s), index of the round, and numbers by name (the tag
            in a tracker).
        """
        total = 0.0
        for row in self.run.rounds:
            total += total_of_round(row)
            scalars: dict[str, float] = {}
            for part, columns in _TAGS.items():
                for column in columns:
                    if row[column] is not None:
                        scalars[f"{part}/{column}"] = float(row[column])
            scalars["traffic/down, bytes"] = row["bytes_down"]
            scalars["traffic/up, bytes"] = row["bytes_up"]
            if row.get("bytes_peer") is not None:
                scalars["traffic/between devices, bytes"] = row["bytes_peer"]
            scalars["traffic/so far, bytes"] = total
            yield row["time"], row["round"], scalars


def exports(paths: Sequence[str | Path]) -> list[Export]:
    """Return the runs to export: the given runs, then the finished runs of the given studies.

    Args:
        paths: folders of runs and studies.

    Raises:
        RunFolderError: a study has no finished run.
    """
    folders = [Path(path) for path in paths]
    singles = [folder for folder in folders if not is_study(folder)]
    runs = []
    for folder, name in zip(singles, distinct_names(singles), strict=True):
        runs.append(Export(RunFolder(folder), name))
    for folder in folders:
        if is_study(folder):
            runs += _find_study_runs(folder)
    return runs


def _find_study_runs(path: Path) -> list[Export]:
    """Return the finished runs of a study, each once, even if several variants share it.

    Raises:
        RunFolderError: the study has no finished run.
    """
    folders: dict[Path, None] = {}
    for variant in read_index(path).variants:
        for run in variant.runs:
            folders[path / run.folder] = None
    finished = [folder for folder in folders if is_done(folder)]
    if not finished:
        raise RunFolderError(f"the study {str(path)!r} has no run that is done")
    study = path.resolve().name
    runs = []
    for folder in finished:
        name = "/".join((study, *folder.parts[-2:]))
        runs.append(Export(RunFolder(folder), name, study))
    return runs


def _import_tracker(module: str, name: str, package: str) -> ModuleType:
    """Import a module of a tracker.

    Args:
        module: name of the module.
        name: name of the tracker, for the error message.
        package: requirement that ``pip install`` takes.

    Raises:
        RunFolderError: the module cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RunFolderError(
            f"{name} cannot be imported ({error}); pip install {package!r} installs it"
        ) from error


def write_tensorboard(paths: Sequence[str | Path], out: Path) -> list[Path]:
    """Write the rounds of each run as TensorBoard scalars to the folder ``out/NAME``.

    The name of a study's run begins with the study's name. The step is the round, and the wall time
    is the simulated time, so "Relative" in TensorBoard shows simulated time.

    Args:
        paths: folders of runs and studies.
        out: folder to write to.

    Returns:
        The written files.
    """
    _import_tracker("tensorboard", "TensorBoard", "tensorboard>=2.15")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    runs = {out / run.name / _EVENTS: run for run in exports(paths)}
    for path, run in runs.items():
        with writing(path) as beside, beside.open("wb") as file:
            writer = RecordWriter(file)
            writer.write(Event(wall_time=0.0, file_version="brain.Event:2").SerializeToString())
            for time, number, scalars in run.scalars():
                values = [
                    Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()
                ]
                event = Event(wall_time=time, step=number, summary=Summary(value=values))
                writer.write(event.SerializeToString())
    return [*runs]


def write_mlflow(paths: Sequence[str | Path], out: str | Path) -> list[str]:
    """Write runs to an MLflow store, with one experiment per study.

    The step is the round, and the timestamp is the simulated time, counted from 1970.

    Args:
        paths: folders of runs and studies.
        out: a folder, which becomes a file store, or the URI of a store
            (``sqlite:///mlflow.db``, ``http://127.0.0.1:5000``).

    Returns:
        The names of the runs.
    """
    mlflow = _import_tracker("mlflow.tracking", "MLflow", "mlflow-skinny>=2.10")
    from mlflow.exceptions import MlflowException

    runs = exports(paths)
    uri = str(out) if "://" in str(out) else Path(out).resolve().as_uri()
    try:
        if uri.startswith("file:"):
            # newer versions of MLflow refuse file stores unless this variable is set
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            Path(out).mkdir(parents=True, exist_ok=True)
        client = mlflow.MlflowClient(uri)
        for run in runs:
            _write_mlflow(client, run)
    except (MlflowException, OSError) as error:
        raise RunFolderError(
            f"--out {str(out)!r} cannot be written: {str(error).splitlines()[0]}"
        ) from None
    return [run.name for run in runs]


def _write_mlflow(client: "MlflowClient", run: Export) -> None:
    """Write one run to an MLflow store, after deleting its earlier exports."""
    from mlflow.entities import Metric, Param

    experiment = _mlflow_experiment(client, run.study or "fedsim")
    for earlier in client.search_runs([experiment], f"tags.`fedsim.key` = '{run.key}'"):
        client.delete_run(earlier.info.run_id)
    figures = run.figures
    # texts become tags, and numbers metrics
    texts = {name: value for name, value in figures.items() if isinstance(value, str)}
    tags = {"fedsim.key": run.key, **texts}
    created = client.create_run(experiment, start_time=0, run_name=run.name, tags=tags)
    run_id = created.info.run_id
    end_ms = round(run.run.summary["simulated_s"] * 1000)  # MLflow takes times in ms
    metrics = []
    for time, step, scalars in run.scalars():
        for tag, value in scalars.items():
            metrics.append(Metric(_mlflow_name(tag), value, round(time * 1000), step))
    for name, figure in figures.items():
        if not isinstance(figure, str):
            metrics.append(Metric(_mlflow_name(f"summary/{name}"), float(figure), end_ms, 0))
    params = []
    for key, value in flatten(run.run.scenario).items():
        params.append(Param(key, str(value)[:_MLFLOW_LIMIT]))
    client.log_batch(run_id, metrics=metrics, params=params)
    status = "FAILED" if run.exit_code else "FINISHED"
    client.set_terminated(run_id, status, end_time=end_ms)


def _mlflow_experiment(client: "MlflowClient", name: str) -> str:
    """Return the ID of the MLflow experiment with this name, and create it if it is missing."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        experiment_id: str = client.create_experiment(name)
    else:
        experiment_id = experiment.experiment_id
    return experiment_id


def _mlflow_name(tag: str) -> str:
    """Return a tag without the characters that MLflow does not allow in names."""
    return re.sub(r"[^\w\-. /]", "", tag)


def write_wandb(paths: Sequence[str | Path], out: Path, project: str = "fedsim") -> list[Path]:
    """Write runs as W&B runs to upload later into ``out/wandb``, with one group per study.

    The step is the round, and ``simulated time, s`` is one of the metrics. No data leave the
    machine until ``wandb sync`` uploads the files.

    Args:
        paths: folders of runs and studies.
        out: folder to write to.
        project: name of the project to which ``wandb sync`` uploads the runs.

    Returns:
        The folders of the runs.
    """
    wandb = _import_tracker("wandb", "W&B", "wandb>=0.18")
    runs = exports(paths)
    try:
        out.mkdir(parents=True, exist_ok=True)
        return [_write_wandb(wandb, run, out, project) for run in runs]
    except OSError as error:
        raise RunFolderError(f"--out {str(out)!r} cannot be written: {error.strerror}") from None
    finally:
        # waits for the process of W&B, which may still write files when a run is finished
        wandb.teardown()


def _write_wandb(wandb: ModuleType, run: Export, out: Path, project: str) -> Path:
    """Write one run as a W&B run to upload later, after deleting its earlier exports.

    Returns:
        The folder of the W&B run.
    """
    pattern = f"wandb/offline-run-*-{run.key}"
    for earlier in out.glob(pattern):
        shutil.rmtree(earlier)
    settings = wandb.Settings(
        silent=True,
        console="off",
        x_save_requirements=False,
        **dict.fromkeys(_WANDB_SWITCHES, True),
    )
    wandb_run = wandb.init(
        mode="offline",
        dir=str(out),
        config=flatten(run.run.scenario),
        settings=settings,
        project=project,
        name=run.name,
        group=run.study or None,
        id=run.key,
    )
    for time, number, scalars in run.scalars():
        wandb_run.log({**scalars, "simulated time, s": time}, step=number)
    wandb_run.summary.update({f"summary/{name}": value for name, value in run.figures.items()})
    wandb_run.finish(exit_code=run.exit_code)
    return next(out.glob(pattern))
