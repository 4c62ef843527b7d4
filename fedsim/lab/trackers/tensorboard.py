"""The rounds of runs as scalars for TensorBoard: the step is the round, the time the simulated time.

Charts over "Step" are over rounds, charts over "Relative" over simulated time. Needs the package ``tensorboard`` alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsim.lab.trackers.exports import Export, exports, tracker
from fedsim.records.folder import writing

_FILE = "events.out.tfevents.0.fedsim"  # the same every time: an export done again takes the place of the first


def write_tensorboard(paths: Sequence[str | Path], out: Path) -> list[Path]:
    """Write each run's rounds to ``out/RUN``, where TensorBoard takes it for a run of that name; returns the files.

    Args:
        paths: folders of runs, and of studies, whose runs are in ``out/STUDY``.
        out: a folder; files of an earlier export of the same runs are replaced.

    Raises:
        RunFolderError: a folder is not a run, or is damaged; a file cannot be written; or the package is missing.
    """
    tracker("tensorboard", "TensorBoard", "tensorboard>=2.15")
    return [_write(one, out / one.name / _FILE) for one in exports(paths)]


def _write(one: Export, path: Path) -> Path:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    with writing(path) as beside, beside.open("wb") as file:

        def write(time: float, **content: Any) -> None:
            writer.write(Event(wall_time=time, **content).SerializeToString())

        writer = RecordWriter(file)
        write(0.0, file_version="brain.Event:2")
        for time, number, values in one.scalars():
            told = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            write(time, step=number, summary=Summary(value=told))
    return path
