"""Runs in Python and notebooks: run and load them, with tables as pandas frames and figures."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from fedsim.common.errors import FedsimError, RunFolderError, ScenarioError, nearest
from fedsim.common.files import parse_json
from fedsim.lab.reading.targets import costs_to
from fedsim.records import folder as files
from fedsim.records.notebook import as_html, as_line, facts_of
from fedsim.records.reading import RunFolder, as_frame, making_sense
from fedsim.records.schema import ROUNDS, with_columns
from fedsim.running.scenario import Scenario, load, load_of_run
from fedsim.world.meters.base import Column
from fedsim.world.meters.energy import TABLE as ENERGY

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedsim.analysis.pictures import PictureKind
    from fedsim.running.runner import EndedRun


async def run_async(
    scenario: Scenario | str | Path,
    out: str | Path | None = None,
    *,
    executor: str | None = None,
    workers: int | None = None,
    address: str | None = None,
    resources: str | Mapping[str, object] | None = None,
    resume: bool = False,
    more: int | str | None = None,
) -> "Result":
    """Run a scenario to its end, in a running event loop (of a notebook, or a server).

    Code without an event loop calls ``run``.

    Args:
        scenario: the scenario, the path of its file, or the name of a shipped scenario.
        out: the run folder to make; None writes nothing.
        executor: ``inline``, ``threads``, ``processes`` or ``ray``, which computes the learning; by
            default as for ``run``.
        workers: count of threads or processes; by default as for ``run``.
        address: address of a Ray cluster, ``HOST:PORT`` or ``auto``; by default Ray is started on
            this machine.
        resources: resources that each task on Ray reserves on its node, such as
            ``{"num_cpus": 1, "num_gpus": 0.25, "memory": "2 GB"}``; by default one core.
        resume: continue the run in ``out`` from its newest checkpoint.
        more: by how much the finished run in ``out`` goes on, see ``run``.

    Returns:
        The summary and the tables of the run.

    Raises:
        ScenarioError, DataError, RunFolderError: the run is invalid; nothing was written.
        CheckpointError: there is no checkpoint to resume.
        SimulationError: the run failed; the folder has its records until then.
    """
    from fedsim.clock.executors import make_executor
    from fedsim.running.more import Extension
    from fedsim.running.runner import Job

    if not isinstance(scenario, Scenario):
        scenario = load(scenario)
    folder = None if out is None else Path(out)
    device = scenario.training.device
    extension = None if more is None else Extension.read(more)
    with closing(make_executor(executor, workers, address, device, resources)) as engine:
        job = Job(scenario, folder, engine, resume=resume, more=extension)
        return Result(await job.execute())


def run(
    scenario: Scenario | str | Path,
    out: str | Path | None = None,
    *,
    executor: str | None = None,
    workers: int | None = None,
    address: str | None = None,
    resources: str | Mapping[str, object] | None = None,
    resume: bool = False,
    more: int | str | None = None,
) -> "Result":
    """Run a scenario to its end; a running event loop (of a notebook) is blocked meanwhile.

    Args:
        scenario: the scenario, the path of its file, or the name of a shipped scenario
            (``"quickstart"``).
        out: the run folder to make; None writes nothing.
        executor: ``inline``, ``threads``, ``processes`` or ``ray``, which computes the learning.
            The executor does not influence the result. By default ``threads``, or ``processes`` if
            ``training.device`` is ``cuda`` and this machine has several GPUs, over which the
            processes are spread.
        workers: count of threads or processes; by default one per core, or one process per GPU.
        address: address of a Ray cluster, ``HOST:PORT`` or ``auto``; by default Ray is started on
            this machine.
        resources: resources that each task on Ray reserves on its node, such as
            ``{"num_cpus": 1, "num_gpus": 0.25, "memory": "2 GB"}``; by default one core.
        resume: continue the run in ``out`` from its newest checkpoint. The result equals the
            result of an uninterrupted run.
        more: a count of rounds, or a time as text, by which the finished run in ``out`` goes on;
            its scenario had ``checkpoint.last``. The result equals the result of a run that had
            the later end from the start. None: the run is unfinished, or new.

    Returns:
        The summary and the tables of the run.

    Raises:
        ScenarioError, DataError, RunFolderError: the run is invalid; nothing was written.
        CheckpointError: there is no checkpoint to resume.
        SimulationError: the run failed; the folder has its records until then.

    Example:
        >>> import fedsim
        >>> scenario = fedsim.load("quickstart", ["learning=off", "stop.rounds=2"])
        >>> result = fedsim.run(scenario)
        >>> result.summary["status"], result.summary["rounds"]
        ('done', 2)
        >>> result.rounds[["round", "selected", "valid"]].to_dict("list")
        {'round': [0, 1], 'selected': [20, 20], 'valid': [15, 16]}
    """
    coroutine = run_async(
        scenario,
        out,
        executor=executor,
        workers=workers,
        address=address,
        resources=resources,
        resume=resume,
        more=more,
    )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    return _run_in_thread(coroutine)


def _run_in_thread(coroutine: "Coroutine[object, object, Result]") -> "Result":
    """Run a coroutine in a new event loop in another thread; Ctrl-C cancels the coroutine."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(coroutine, context=copy_context())
    with closing(loop), ThreadPoolExecutor(1) as thread:
        future = thread.submit(loop.run_until_complete, task)
        try:
            return future.result()
        except KeyboardInterrupt:
            loop.call_soon_threadsafe(task.cancel)
            raise


def load_run(path: str | Path, *, allow_code: bool = False) -> "LoadedRun":
    """Load a run folder.

    Args:
        path: the run folder.
        allow_code: whether ``scenario`` may import code that it names by import path.

    Returns:
        The run. A missing or damaged file raises ``RunFolderError`` when it is first used.

    Raises:
        RunFolderError: there is no run in the folder.

    Example:
        >>> import fedsim
        >>> scenario = fedsim.load("quickstart", ["learning=off", "stop.rounds=1"])
        >>> written = fedsim.run(scenario, "runs/quick")
        >>> run = fedsim.load_run("runs/quick")
        >>> run.summary["stopped"]
        '1 rounds'
        >>> run.devices["selected"].sum().item()
        20
    """
    return LoadedRun(RunFolder(path), allow_code)


class LoadedRun:
    """Run folder with its tables as pandas frames. Times are in s, and sizes in bytes.

    Args:
        reader: the run folder; None if the run wrote no folder.
        allow_code: whether ``scenario`` may import code that it names by import path.
    """

    def __init__(self, reader: RunFolder | None, allow_code: bool = False) -> None:
        self._reader = reader
        self._allow_code = allow_code

    @property
    def _folder(self) -> RunFolder:
        if self._reader is None:
            raise RunFolderError(
                "the run was kept in no folder: fedsim.run(scenario, 'runs/NAME') keeps its tables"
            )
        return self._reader

    @property
    def path(self) -> Path:
        """Path of the run folder."""
        return self._folder.path

    @property
    def summary(self) -> dict[str, Any]:
        """Content of ``summary.json`` as a dict."""
        return self._folder.summary

    @property
    def sections(self) -> dict[str, Any]:
        """Scenario of the run as plain tables (dict), from ``scenario.toml``.

        Keys of an earlier version of fedsim are replaced by the keys of this version.
        """
        return self._folder.scenario

    @cached_property
    def scenario(self) -> Scenario:
        """Scenario of the run, validated. Running it repeats the run.

        Raises:
            RunFolderError: the scenario is invalid in this version, or names code that may not be
                imported.
        """
        try:
            return load_of_run(self._folder, allow_code=self._allow_code)
        except ScenarioError as error:
            raise RunFolderError(
                f"{files.SCENARIO} of {str(self.path)!r} cannot be used here: {error}; "
                ".sections has its plain tables"
            ) from None

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """DataFrame with one row per round, or per aggregation of an asynchronous strategy.

        Columns include accuracy and loss on test data, selected and completed clients, and bytes.
        """
        return self._frame(files.ROUNDS)

    @cached_property
    def devices(self) -> "pd.DataFrame":
        """DataFrame with one row per device.

        Columns include speed, links, samples, arrival and departure, group, number of selections
        and accuracy.
        """
        return self._frame(files.DEVICES)

    @cached_property
    def availability(self) -> "pd.DataFrame":
        """DataFrame with one row per change of availability: ``device``, ``time`` (s), ``on``.

        ``on`` tells whether the device can be reached from this time on. Runs of older versions do
        not have this table.
        """
        folder = self._folder
        if folder.understood.is_former and not folder.has(files.AVAILABILITY):
            raise RunFolderError(
                f"{str(folder.path)!r} has no {files.AVAILABILITY}: an earlier version wrote the run"
            )
        return self._frame(files.AVAILABILITY)

    @cached_property
    def energy(self) -> "pd.DataFrame":
        """DataFrame with one row per device: power and energy by phase, battery and carbon.

        A phase is an activity of the device, such as training. Only runs that count energy have
        this table.
        """
        return self._frame(ENERGY)

    @cached_property
    def events(self) -> "pd.DataFrame":
        """DataFrame with one row per record, such as the end of a task.

        The column ``data`` has a dict of the record's fields that have no column.
        """
        return self._frame(files.EVENTS, json_column="data")

    @cached_property
    def transfers(self) -> "pd.DataFrame":
        """DataFrame with one row per message.

        The column ``payloads`` has a list of the message's parts, each as [purpose, bytes].
        """
        return self._frame(files.TRANSFERS, json_column="payloads")

    def models(self, *, best: bool = False) -> "dict[str, dict[str, NDArray[np.float32]]]":
        """Return the saved models: a dict from file name (without ending) to tensors by name.

        Args:
            best: whether to return the models of the best test (``evaluation.keep_best``), instead
                of the last models.
        """
        return self._folder.models(files.BEST if best else files.MODELS)

    def costs_to(self, accuracy: float | str) -> dict[str, float]:
        """Return the costs until a test first reached a target.

        Args:
            accuracy: the target: an accuracy (0..1), or another metric as ``"perplexity=8"``.

        Returns:
            ``rounds``, ``time`` (s), ``bytes``, ``joules``, ``grams`` (of CO2) and ``cost``
            (money); NaN for costs that were not counted, or if no test reached the target.
        """
        return costs_to(self._folder.rounds, accuracy, self.summary)

    def figure(self, kind: str = "accuracy", **options: Any) -> "Figure":
        """Draw a picture of the run.

        Args:
            kind: kind of the picture, such as ``timeline``.
            options: options of the picture, see ``fedsim.analysis``.

        Raises:
            FedsimError: there is no picture of this kind.
        """
        from fedsim.analysis.pictures import OF_ONE, OF_SEVERAL

        draw = find_drawing(OF_ONE | OF_SEVERAL, kind)
        with making_sense([self.path]):
            if kind in OF_SEVERAL:
                return draw([self._folder], **options)
            return draw(self._folder, **options)

    def __repr__(self) -> str:
        return as_line(f"run {str(self.path)!r}", self._facts())

    def _repr_html_(self) -> str:
        return as_html(f"run {self.path.name}", self._facts())

    def _facts(self) -> dict[str, str]:
        with making_sense([self.path]):
            return facts_of(self.summary)

    def _frame(self, name: str, json_column: str = "") -> "pd.DataFrame":
        """Return a table of the run folder as a DataFrame.

        Args:
            name: file name of the table.
            json_column: name of a column to parse as JSON, whose empty cells become {}; "" for no
                such column.
        """
        with making_sense([self.path]):
            frame = as_frame(self._folder.table(name))
            if json_column:
                values: list[Any] = []
                for text in frame[json_column]:
                    values.append(parse_json(text) if isinstance(text, str) else {})
                frame[json_column] = values
            return frame


class Result(LoadedRun):
    """A run that has just ended.

    If the run wrote a folder, all attributes of a loaded run can be used. Otherwise only
    ``summary``, ``rows``, ``rounds`` and ``costs_to`` can be used.

    Attributes:
        rows: one dict per round.
        folder: the run folder; None if the run wrote no folder.

    Example:
        >>> import fedsim
        >>> scenario = fedsim.load("quickstart", ["learning=off", "stop.rounds=1"])
        >>> result = fedsim.run(scenario, "runs/quick")
        >>> result.summary["strategy"], result.summary["stopped"]
        ('fedavg', '1 rounds')
        >>> (result.events["kind"] == "task-end").sum().item()
        20
    """

    def __init__(self, ended: "EndedRun") -> None:
        reader = None if ended.folder is None else RunFolder(ended.folder)
        super().__init__(reader, allow_code=True)
        self._summary = ended.summary
        self.rows = ended.rows
        self.folder = ended.folder

    @property
    @override
    def summary(self) -> dict[str, Any]:
        return self._summary

    @cached_property
    @override
    def rounds(self) -> "pd.DataFrame":
        import pyarrow as pa

        extra_names = []
        if self.rows:
            extra_names = [name for name in self.rows[0] if name not in ROUNDS.names]
        columns = with_columns(ROUNDS, [Column(name, "", "") for name in extra_names])
        return as_frame(pa.Table.from_pylist(self.rows, schema=columns))

    @override
    def costs_to(self, accuracy: float | str) -> dict[str, float]:
        return costs_to(self.rows, accuracy, self.summary)

    def __repr__(self) -> str:
        return as_line("result", facts_of(self.summary))

    def _repr_html_(self) -> str:
        title = "result" if self.folder is None else f"result in {self.folder}"
        return as_html(title, facts_of(self.summary))


def find_drawing(kinds: "Mapping[str, PictureKind]", kind: str) -> "Callable[..., Figure]":
    """Return the function that draws a kind of picture.

    Args:
        kinds: the kinds of pictures by name.
        kind: the name of a kind.

    Raises:
        FedsimError: ``kind`` is not in ``kinds``.
    """
    if kind not in kinds:
        raise FedsimError(
            f"there is no figure {kind!r}; allowed are {', '.join(kinds)}{nearest(kind, kinds)}"
        )
    return kinds[kind].draw
