"""The rounds of runs as scalars for TensorBoard: its step is the round, its time the simulated time.

Charts over "Step" are over rounds, charts over "Relative" over simulated time. Needs the package ``tensorboard`` alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsim.errors import RunFolderError
from fedsim.records.exports import exports, scalars
from fedsim.records.folder import writing
from fedsim.records.reading import RunFolder

_FILE = "events.out.tfevents.0.fedsim"  # the same every time: an export done again takes the place of the first


def write_tensorboard(paths: Sequence[str | Path], out: Path) -> list[Path]:
    """Write each run's rounds to ``out/RUN``, where TensorBoard takes it for a run of that name; returns the files.

    Args:
        paths: folders of runs, and of studies, whose runs are in ``out/STUDY``.
        out: a folder; files of an earlier export of the same runs are replaced.

    Raises:
        RunFolderError: a folder is not a run, or is damaged; a file cannot be written; or the package is missing.
    """
    try:
        import tensorboard  # noqa: F401 - found out before anything is read
    except ImportError as error:
        raise RunFolderError(
            f"TensorBoard cannot be imported ({error}); pip install 'tensorboard>=2.15' installs it"
        ) from error
    return [_write(one.run, out / one.name / _FILE) for one in exports(paths)]


def _write(run: RunFolder, path: Path) -> Path:
    """Write one run's file."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    def event(time: float, **content: Any) -> bytes:
        data: bytes = Event(wall_time=time, **content).SerializeToString()
        return data

    with writing(path) as beside, beside.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(event(0.0, file_version="brain.Event:2"))
        for time, number, values in scalars(run):
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
            writer.write(event(time, step=number, summary=summary))
    return path
