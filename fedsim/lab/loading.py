"""Runs in Python and notebooks: run, load, tables as pandas frames, figures."""

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
from fedsim.common.imports import from_file
from fedsim.lab.reading.targets import costs_to
from fedsim.records import folder as files
from fedsim.records.notebook import as_html, as_line, facts_of
from fedsim.records.reading import RunFolder, as_frame, making_sense
from fedsim.records.schema import ROUNDS, with_columns
from fedsim.running.scenario import Scenario, load
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
    executor: str = "threads",
    workers: int | None = None,
    address: str | None = None,
    resume: bool = False,
) -> "Result":
    """Run a scenario within a running event loop (a notebook, a server); see ``run``."""
    from fedsim.clock.executors import make_executor
    from fedsim.running.runner import Job

    read = scenario if isinstance(scenario, Scenario) else load(scenario)
    with closing(make_executor(executor, workers, address, read.training.device)) as where:
        return Result(
            await Job(read, None if out is None else Path(out), where, resume=resume).execute()
        )


def run(
    scenario: Scenario | str | Path,
    out: str | Path | None = None,
    *,
    executor: str = "threads",
    workers: int | None = None,
    address: str | None = None,
    resume: bool = False,
) -> "Result":
    """Run a scenario to its end; a running event loop (a notebook) waits meanwhile.

    Args:
        scenario: the scenario, the path of its file, or the name of a shipped one
            (``"quickstart"``).
        out: the run folder to make; None writes nothing.
        executor: ``inline``, ``threads`` or ``ray``: where the learning is computed, without
            influence on the result.
        workers: number of threads or processes; by default one per core.
        address: the Ray cluster to use, ``HOST:PORT`` or ``auto``; by default Ray is started on
            this machine.
        resume: continue the run in ``out`` from its newest checkpoint; the result equals that of
            an uninterrupted run.

    Raises:
        ScenarioError, DataError, RunFolderError: nothing was written.
        CheckpointError: there is nothing to resume.
        SimulationError: the run cannot go on; the folder holds the records until then.
    """
    running = run_async(
        scenario, out, executor=executor, workers=workers, address=address, resume=resume
    )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(running)
    return _run_aside(running)


def _run_aside(running: "Coroutine[Any, Any, Result]") -> "Result":
    """Run a coroutine in another thread, since an event loop runs in this one; Ctrl-C cancels
    it.
    """
    loop = asyncio.new_event_loop()
    task = loop.create_task(running, context=copy_context())
    with closing(loop), ThreadPoolExecutor(1) as thread:
        done = thread.submit(loop.run_until_complete, task)
        try:
            return done.result()
        except KeyboardInterrupt:
            loop.call_soon_threadsafe(task.cancel)
            raise


def load_run(path: str | Path, *, allow_code: bool = False) -> "LoadedRun":
    """Load a run folder; ``RunFolderError`` if there is no run, or at first use for a missing or
    damaged file.

    ``allow_code``: whether ``scenario`` may import code that is named by import path.
    """
    return LoadedRun(RunFolder(path), allow_code)


class LoadedRun:
    """A run folder. Tables are pandas frames; times in s, sizes in bytes."""

    def __init__(self, files_of: RunFolder | None, allow_code: bool = False) -> None:
        self._files_of = files_of
        self._allow_code = allow_code

    @property
    def _read(self) -> RunFolder:
        if self._files_of is None:
            raise RunFolderError(
                "the run was kept in no folder: fedsim.run(scenario, 'runs/NAME') keeps its tables"
            )
        return self._files_of

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._read.path

    @property
    def summary(self) -> dict[str, Any]:
        """The content of ``summary.json``."""
        return self._read.summary

    @property
    def sections(self) -> dict[str, Any]:
        """The scenario as the plain tables of ``scenario.toml``."""
        return self._read.scenario

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario; running it gives the same run."""
        try:
            with from_file(self._allow_code):
                return Scenario(**self.sections)
        except ScenarioError as error:
            where = f"{files.SCENARIO} of {str(self.path)!r}"
            raise RunFolderError(
                f"{where} cannot be used here: {error}; .sections has its plain tables"
            ) from None

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """One row per aggregation: accuracy and loss on test data, selected and completed
        clients, bytes.
        """
        return self._frame(files.ROUNDS)

    @cached_property
    def devices(self) -> "pd.DataFrame":
        """One row per device: speed, links, samples, arrival and departure, group, times
        selected, accuracy.
        """
        return self._frame(files.DEVICES)

    @cached_property
    def availability(self) -> "pd.DataFrame":
        """One row per change of a device's availability: ``device``, ``time``, ``on``; runs of
        older versions lack it.
        """
        return self._frame(files.AVAILABILITY)

    @cached_property
    def energy(self) -> "pd.DataFrame":
        """One row per device: power and energy by phase, battery, carbon; only in runs that
        count energy.
        """
        return self._frame(ENERGY)

    @cached_property
    def events(self) -> "pd.DataFrame":
        """One row per record; ``data`` holds the fields of a record that have no column, as a
        dict.
        """
        return self._frame(files.EVENTS, parsed="data")

    @cached_property
    def transfers(self) -> "pd.DataFrame":
        """One row per message; ``payloads`` are its parts, [purpose, bytes] each."""
        return self._frame(files.TRANSFERS, parsed="payloads")

    def models(self) -> "dict[str, dict[str, NDArray[np.float32]]]":
        """Every model file's tensors, by file name without its ending and tensor name."""
        return self._read.models()

    def costs_to(self, accuracy: float | str) -> dict[str, float]:
        """Costs until a test had an accuracy (0..1) or ``"perplexity=8"``: rounds, time (s),
        bytes, joules, grams (or nan).
        """
        return costs_to(self._read.rounds, accuracy, self.summary)

    def figure(self, kind: str = "accuracy", **options: Any) -> "Figure":
        """A picture of the run (``timeline``), with options (see ``fedsim.analysis``).

        ``FedsimError``: there is none.
        """
        from fedsim.analysis.pictures import OF_ONE, OF_SEVERAL

        draw = drawing(OF_ONE | OF_SEVERAL, kind)
        with making_sense([self.path]):
            return draw([self._read] if kind in OF_SEVERAL else self._read, **options)

    def __repr__(self) -> str:
        return as_line(f"run {str(self.path)!r}", self._facts())

    def _repr_html_(self) -> str:
        return as_html(f"run {self.path.name}", self._facts())

    def _facts(self) -> dict[str, str]:
        with making_sense([self.path]):
            return facts_of(self.summary)

    def _frame(self, name: str, parsed: str = "") -> "pd.DataFrame":
        """A table, of which a column holds JSON."""
        with making_sense([self.path]):
            frame = as_frame(self._read.table(name))
            if parsed:
                frame[parsed] = [
                    parse_json(text) if isinstance(text, str) else {} for text in frame[parsed]
                ]
            return frame


class Result(LoadedRun):
    """A run that has just ended, as ``load_run`` gives it; without a ``folder`` its summary and
    ``rows``, a dict a round.
    """

    def __init__(self, ended: "EndedRun") -> None:
        super().__init__(None if ended.folder is None else RunFolder(ended.folder), allow_code=True)
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

        own = [
            Column(name, "", "")
            for row in self.rows[:1]
            for name in row
            if name not in ROUNDS.names
        ]
        return as_frame(pa.Table.from_pylist(self.rows, schema=with_columns(ROUNDS, own)))

    @override
    def costs_to(self, accuracy: float | str) -> dict[str, float]:
        return costs_to(self.rows, accuracy, self.summary)

    def __repr__(self) -> str:
        return as_line("result", facts_of(self.summary))

    def _repr_html_(self) -> str:
        return as_html(
            "result" if self.folder is None else f"result in {self.folder}", facts_of(self.summary)
        )


def drawing(known: "Mapping[str, PictureKind]", kind: str) -> "Callable[..., Figure]":
    """The function that draws a kind of picture."""
    if kind not in known:
        raise FedsimError(
            f"there is no figure {kind!r}; allowed are {', '.join(known)}{nearest(kind, known)}"
        )
    return known[kind].draw
