"""Runs for MLflow: an experiment per study; the step is the round, the time the simulated time since 1970."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsim.errors import RunFolderError
from fedsim.lab.trackers.exports import Export, exports, tracker

_EXPERIMENT = "fedsim"  # of runs without a study
_KEY = "fedsim.key"
_LONGEST = 6000  # characters of a parameter
_AT_A_TIME = {"params": 100, "metrics": 1000}  # in one call


def write_mlflow(paths: Sequence[str | Path], out: str | Path) -> list[str]:
    """Write runs to an MLflow store; returns their names. An export done again takes the place of the first.

    Args:
        paths: folders of runs and studies.
        out: a folder, which becomes a file store, or the URI of a store (``sqlite:///mlflow.db``, ``http://127.0.0.1:5000``).

    Raises:
        RunFolderError: a folder is neither a run nor a study, or is damaged; the store cannot be used; or MLflow is missing.
    """
    mlflow = tracker("mlflow.tracking", "MLflow", "mlflow-skinny>=2.10")
    from mlflow.exceptions import MlflowException

    found = exports(paths)
    uri = str(out) if "://" in str(out) else Path(out).resolve().as_uri()
    try:
        if uri.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions refuse file stores unless this is said
            Path(out).mkdir(parents=True, exist_ok=True)
        client = mlflow.MlflowClient(uri)
        for one in found:
            _write(client, one)
    except (MlflowException, OSError) as error:
        raise RunFolderError(f"--out {str(out)!r} cannot be written: {str(error).splitlines()[0]}") from None
    return [one.name for one in found]


def _write(client: Any, one: Export) -> None:
    from mlflow.entities import Metric, Param

    name = one.study or _EXPERIMENT
    known = client.get_experiment_by_name(name)
    experiment = client.create_experiment(name) if known is None else known.experiment_id
    for old in client.search_runs([experiment], f"tags.`{_KEY}` = '{one.key}'"):
        client.delete_run(old.info.run_id)
    texts = {name: value for name, value in one.figures.items() if isinstance(value, str)}
    tags, end = {_KEY: one.key, **texts}, round(one.run.summary["simulated_s"] * 1000)
    number = client.create_run(experiment, start_time=0, run_name=one.name, tags=tags).info.run_id
    told = [(tag, value, round(time * 1000), step) for time, step, values in one.scalars() for tag, value in values.items()]
    told += [(f"summary/{name}", float(value), end, 0) for name, value in one.figures.items() if name not in texts]
    entries = {
        "params": [Param(key, str(value)[:_LONGEST]) for key, value in one.settings.items()],
        "metrics": [Metric(re.sub(r"[^\w\-. /]", "", tag), *values) for tag, *values in told],  # MLflow allows no others
    }
    for kind, most in _AT_A_TIME.items():
        for begin in range(0, len(entries[kind]), most):
            client.log_batch(number, **{kind: entries[kind][begin : begin + most]})
    client.set_terminated(number, "FINISHED" if one.run.summary["status"] == "done" else "FAILED", end_time=end)
