"""Runs and studies for trackers of experiments: TensorBoard, MLflow, and Weights & Biases.

Each tracker's package is loaded when it is needed. An export done again takes the place of the
first. ``RunFolderError`` says that a folder is neither a run nor a study or is damaged, the package
missing, or ``out`` cannot be written.
"""

import hashlib
import importlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.common.errors import RunFolderError
from fedsim.common.files import flat
from fedsim.lab.reading.study_folder import is_done, is_study, names_apart, read_index
from fedsim.records.folder import writing
from fedsim.records.ledger import total_of_round
from fedsim.records.reading import RunFolder
from fedsim.records.schema import OF_PEERS

_TAGS = {
    "model": ("accuracy", "loss", "train_loss", "discrepancy"),
    "peers": OF_PEERS,
    "groups": ("purity", "ari", "nmi"),
    "clients": ("selected", "valid", "slow", "disconnected"),
}
_OF_SUMMARY = (
    "strategy",
    "seed",
    "status",
    "rounds",
    "simulated_s",
    "events_sha256",
    "models_sha256",
)
_EVENTS = "events.out.tfevents.0.fedsim"  # TensorBoard's file
_LONGEST = 6000  # characters of a parameter of MLflow's
_OFF = ("x_disable_stats", "x_disable_meta", "disable_git", "disable_code")  # of W&B


@dataclass(frozen=True)
class Export:
    """A run to export, with a unique name; ``study`` is empty for a single run."""

    run: RunFolder
    name: str
    study: str = ""

    @property
    def key(self) -> str:
        """The run's name in the tracker, the same whenever it is exported."""
        text = f"{self.study}\n{self.name}\n{self.run.summary['events_sha256']}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def figures(self) -> dict[str, Any]:
        summary = self.run.summary
        figures = {name: summary.get(name) for name in _OF_SUMMARY}
        for part in ("accuracy", "energy", "bytes"):
            figures |= {f"{part}/{name}": value for name, value in summary.get(part, {}).items()}
        return {
            name: value for name, value in figures.items() if isinstance(value, str | int | float)
        }

    def scalars(self) -> Iterator[tuple[float, int, dict[str, float]]]:
        """Each round's time (s), its number, and its scalars by tag: measures, and the bytes
        moved, in it and so far.
        """
        moved = 0.0
        for row in self.run.rounds:
            moved += total_of_round(row)
            told = {
                f"{part}/{name}": float(row[name])
                for part, of in _TAGS.items()
                for name in of
                if row[name] is not None
            }
            told |= {"traffic/down, bytes": row["bytes_down"], "traffic/up, bytes": row["bytes_up"]}
            yield row["time"], row["round"], told | {"traffic/so far, bytes": moved}


def exports(paths: Sequence[str | Path]) -> list[Export]:
    """The runs in folders of runs and studies, those of studies that are done, at least one of
    each.
    """
    single = [Path(path) for path in paths if not is_study(Path(path))]
    found = [
        Export(RunFolder(path), name)
        for path, name in zip(single, names_apart(single), strict=True)
    ]
    for path in (Path(path) for path in paths if is_study(Path(path))):
        runs = dict.fromkeys(
            path / run.folder for variant in read_index(path).variants for run in variant.runs
        )
        done = [folder for folder in runs if is_done(folder)]
        if not done:
            raise RunFolderError(f"the study {str(path)!r} has no run that is done")
        study = path.resolve().name
        found += [
            Export(RunFolder(folder), "/".join((study, *folder.parts[-2:])), study)
            for folder in done
        ]
    return found


def _tracker(module: str, name: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RunFolderError(
            f"{name} cannot be imported ({error}); pip install {package!r} installs it"
        ) from error


def write_tensorboard(paths: Sequence[str | Path], out: Path) -> list[Path]:
    """Write each run's rounds to ``out/RUN``, those of studies to ``out/STUDY``, as scalars;
    returns the files.

    The step is the round, the time the simulated time: charts over "Relative" are over simulated
    time.
    """
    _tracker("tensorboard", "TensorBoard", "tensorboard>=2.15")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    found = {out / one.name / _EVENTS: one for one in exports(paths)}
    for path, one in found.items():
        with writing(path) as beside, beside.open("wb") as file:
            writer = RecordWriter(file)
            writer.write(Event(wall_time=0.0, file_version="brain.Event:2").SerializeToString())
            for time, number, values in one.scalars():
                told = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
                writer.write(
                    Event(
                        wall_time=time, step=number, summary=Summary(value=told)
                    ).SerializeToString()
                )
    return [*found]


def write_mlflow(paths: Sequence[str | Path], out: str | Path) -> list[str]:
    """Write runs to an MLflow store, an experiment a study; returns their names.

    ``out`` is a folder, which becomes a file store, or the URI of a store
    (``sqlite:///mlflow.db``, ``http://127.0.0.1:5000``). The step is the round, the time the
    simulated time since 1970.
    """
    mlflow = _tracker("mlflow.tracking", "MLflow", "mlflow-skinny>=2.10")
    from mlflow.exceptions import MlflowException

    found = exports(paths)
    uri = str(out) if "://" in str(out) else Path(out).resolve().as_uri()
    try:
        if uri.startswith("file:"):
            # newer versions refuse file stores without it
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            Path(out).mkdir(parents=True, exist_ok=True)
        client = mlflow.MlflowClient(uri)
        for one in found:
            _tell_mlflow(client, one)
    except (MlflowException, OSError) as error:
        raise RunFolderError(
            f"--out {str(out)!r} cannot be written: {str(error).splitlines()[0]}"
        ) from None
    return [one.name for one in found]


def _tell_mlflow(client: Any, one: Export) -> None:
    from mlflow.entities import Metric, Param

    name = one.study or "fedsim"
    known = client.get_experiment_by_name(name)
    experiment = client.create_experiment(name) if known is None else known.experiment_id
    for old in client.search_runs([experiment], f"tags.`fedsim.key` = '{one.key}'"):
        client.delete_run(old.info.run_id)
    texts = {name: value for name, value in one.figures.items() if isinstance(value, str)}
    tags = {"fedsim.key": one.key, **texts}
    end = round(one.run.summary["simulated_s"] * 1000)
    number = client.create_run(experiment, start_time=0, run_name=one.name, tags=tags).info.run_id
    values = [
        (tag, value, round(time * 1000), step)
        for time, step, own in one.scalars()
        for tag, value in own.items()
    ]
    values += [
        (f"summary/{name}", float(value), end, 0)
        for name, value in one.figures.items()
        if name not in texts
    ]
    # MLflow allows no other letters
    metrics = [Metric(re.sub(r"[^\w\-. /]", "", tag), *others) for tag, *others in values]
    params = [Param(key, str(value)[:_LONGEST]) for key, value in flat(one.run.scenario).items()]
    client.log_batch(number, metrics=metrics, params=params)
    client.set_terminated(
        number, "FINISHED" if one.run.summary["status"] == "done" else "FAILED", end_time=end
    )


def write_wandb(paths: Sequence[str | Path], out: Path, project: str = "fedsim") -> list[Path]:
    """Write runs as W&B's own files into ``out/wandb``, a study as a group; returns their folders.

    The step is the round; ``simulated time, s`` is a metric beside the others. Nothing leaves
    this machine until somebody sends the files by ``wandb sync``, to this ``project``.
    """
    wandb = _tracker("wandb", "W&B", "wandb>=0.18")
    found = exports(paths)
    try:
        out.mkdir(parents=True, exist_ok=True)
        return [_write_wandb(wandb, one, out, project) for one in found]
    except OSError as error:
        raise RunFolderError(f"--out {str(out)!r} cannot be written: {error.strerror}") from None
    finally:
        # its own process writes the files, and may still be at it when a run is finished
        wandb.teardown()


def _write_wandb(wandb: Any, one: Export, out: Path, project: str) -> Path:
    written = f"wandb/offline-run-*-{one.key}"
    for old in out.glob(written):
        shutil.rmtree(old)
    quiet = wandb.Settings(
        silent=True, console="off", x_save_requirements=False, **dict.fromkeys(_OFF, True)
    )
    names = {"project": project, "name": one.name, "group": one.study or None, "id": one.key}
    run = wandb.init(
        mode="offline", dir=str(out), config=flat(one.run.scenario), settings=quiet, **names
    )
    for time, number, values in one.scalars():
        run.log({**values, "simulated time, s": time}, step=number)
    run.summary.update({f"summary/{name}": value for name, value in one.figures.items()})
    run.finish(exit_code=0 if one.run.summary["status"] == "done" else 1)
    return next(out.glob(written))
