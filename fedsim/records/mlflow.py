"""Runs for MLflow: an experiment a study, a run a run; its step is the round, its time the simulated time since 1970.

Needs ``mlflow-skinny`` (or ``mlflow``, which shows them).
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsim.errors import RunFolderError
from fedsim.records.exports import Export, exports, scalars

_EXPERIMENT = "fedsim"  # of runs that are of no study
_KEY = "fedsim.key"
_LONGEST = 6000  # characters of a parameter
_AT_A_TIME = {"params": 100, "metrics": 1000}  # in one call


def write_mlflow(paths: Sequence[str | Path], out: str | Path) -> list[str]:
    """Tell an MLflow store of runs; returns their names. An export done again takes the place of the first.

    Args:
        paths: folders of runs and studies.
        out: a folder, which becomes a file store, or the URI of a store (``sqlite:///mlflow.db``, ``http://127.0.0.1:5000``).

    Raises:
        RunFolderError: a folder is neither a run nor a study, or is damaged; the store cannot be used; or MLflow is missing.
    """
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise RunFolderError(f"MLflow cannot be imported ({error}); pip install 'mlflow-skinny>=2.10' installs it") from error
    found = exports(paths)
    uri = str(out) if "://" in str(out) else Path(out).resolve().as_uri()
    if uri.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions refuse file stores unless this is said
    try:
        if uri.startswith("file:"):
            Path(out).mkdir(parents=True, exist_ok=True)
        client = MlflowClient(uri)
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
    tags = {_KEY: one.key, **{name: value for name, value in one.figures.items() if isinstance(value, str)}}
    number = client.create_run(experiment, start_time=0, run_name=one.name, tags=tags).info.run_id
    params = [Param(key, str(value)[:_LONGEST]) for key, value in one.settings.items()]
    metrics = [
        Metric(_named(tag), value, round(time * 1000), step)
        for time, step, values in scalars(one.run)
        for tag, value in values.items()
    ]
    end = round(one.run.summary["simulated_s"] * 1000)
    figures: Mapping[str, Any] = one.figures
    metrics += [
        Metric(_named(f"summary/{name}"), float(value), end, 0) for name, value in figures.items() if not isinstance(value, str)
    ]
    for word, entries in (("params", params), ("metrics", metrics)):
        for begin in range(0, len(entries), _AT_A_TIME[word]):
            client.log_batch(number, **{word: entries[begin : begin + _AT_A_TIME[word]]})
    client.set_terminated(number, "FINISHED" if one.run.summary["status"] == "done" else "FAILED", end_time=end)


def _named(tag: str) -> str:
    """A tag in the characters that MLflow allows."""
    return re.sub(r"[^\w\-. /]", "", tag)
