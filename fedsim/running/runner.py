"""Runs a scenario: builds and executes it, and writes the run folder.

The folder is also written after failures and interrupts.
"""

import asyncio
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedsim.clock.executors import Executor
from fedsim.clock.simulation import Simulation
from fedsim.common.errors import CheckpointError, RunFolderError, home_of
from fedsim.common.harmless import say
from fedsim.records import folder as files
from fedsim.records import live, parquet
from fedsim.records.live import EVERY_S, RUNNING, Live
from fedsim.records.lock import locked
from fedsim.records.recorder import Recorder
from fedsim.records.schema import AVAILABILITY, TRACED_LINKS, TRACES, models_digest
from fedsim.running.checkpoint import snapshot, store
from fedsim.running.checkpoint.origins import Origins
from fedsim.running.model_files import Models, best_models, find_not_finite, last_models
from fedsim.running.more import (
    Extension,
    find_checkpoint,
    refuse_dependent,
    refuse_former,
)
from fedsim.running.signals import ANNOUNCEMENTS, end_at_once
from fedsim.running.summary import summarise

if TYPE_CHECKING:
    from fedsim.running.assembly import Run
    from fedsim.running.scenario import Scenario


# limits in real time (s) after an interrupt; beyond them the process is ended
_LONGEST_BLOCK_S = 1.5  # limit of a computation that blocks the event loop
# limit of training after SIGTERM or SIGHUP; after Ctrl-C the user decides
_LONGEST_TRAINING_S = 10.0
_CHECK_EVERY_S = 0.1  # real time between two checks of the run (s)

FAILED = "failed"  # status of a run that ended with an error


class EndedRun(NamedTuple):
    """Result of a run that has ended: its summary and its table of rounds.

    Attributes:
        summary: content of ``summary.json``.
        rows: rows of ``rounds.parquet``, each a dict from column to value.
        folder: the run folder; None if the run was not written to one.
    """

    summary: dict[str, Any]
    rows: list[dict[str, Any]]
    folder: Path | None


class Job:
    """One run from start to end: it builds the parts, runs them, and writes the run folder.

    The constructor validates everything before it makes the folder, and locks the folder until the
    run is over. The job closes ``executor``.

    Args:
        scenario: the scenario.
        out: the run folder; None to write no files.
        executor: runs the training and the tests of models.
        resume: whether to continue the run in the folder from its newest checkpoint.
        more: count of rounds or time by which the finished run in the folder is continued; None for
            a new or an unfinished run.
        live_every_s: real time between two updates of the intermediate results in the folder (s).

    Attributes:
        over: whether the run has ended and its files are closed.
        notes: sentences for the user on a run that is continued with ``more``.

    Raises:
        ScenarioError, DataError: the scenario or its data are not valid; nothing was written.
        RunFolderError: the folder cannot be used; nothing was written.
        CheckpointError: there is nothing to resume; no file was changed.
    """

    def __init__(
        self,
        scenario: "Scenario",
        out: Path | None,
        executor: Executor,
        *,
        resume: bool = False,
        more: Extension | None = None,
        live_every_s: float = EVERY_S,
    ) -> None:
        self._started = time.perf_counter()
        self.over = False
        self.scenario = scenario
        self.out = out
        self._more = more
        # stored before ``_more`` moves the end of ``self.scenario``
        self._planned_rounds = scenario.stop.rounds
        self.notes: list[str] = []
        if more is not None and out is None:
            raise RunFolderError("--more goes on with a run in a folder; give it as --out")
        resume = resume or more is not None
        # why a run of this scenario cannot be resumed; None if it can
        obstacle = scenario.not_restorable
        if resume and obstacle:
            raise CheckpointError(f"the run cannot be resumed: {obstacle}")
        self.checkpointer: snapshot.Checkpointer | None = None
        with ExitStack() as lock:  # releases the folder's lock if the run is refused
            if out is not None and resume:
                self._reopen(out, lock)
            elif out is not None:
                files.refuse_unusable(out)
            self.simulation = Simulation(self.scenario, executor=executor)
            self.run: Run = self.simulation.installed
            if out is not None and not resume:
                self._make_folder(out, lock)
            self.recorder = Recorder(out, self.run.meters, self.run.test_columns)
            if out is not None:
                self._prepare_checkpoints(out, resume=resume)
            self._listen(live_every_s)
            self._lock = lock.pop_all()  # from now on, the end of the run releases the lock

    def _reopen(self, out: Path, lock: ExitStack) -> None:
        """Lock the folder of the run to resume, and check that it has this scenario's run.

        With ``more``, the end of the scenario is then moved.
        """
        self._refuse_other(out)
        lock.enter_context(locked(out))
        self._refuse_other(out)  # another process may have ended the run before the lock
        if self._more is not None:
            self.scenario = self._more.lengthen(self.scenario)

    def _refuse_other(self, out: Path) -> None:
        refuse_former(out)
        if self._more is None:
            files.refuse_other_run(out, self.scenario.to_toml())
        else:
            self._more.check_folder(out, self.scenario)

    def _make_folder(self, out: Path, lock: ExitStack) -> None:
        """Make and lock the folder of a new run, and write the scenario into it."""
        files.make(out)
        lock.enter_context(locked(out))
        files.refuse_unusable(out)  # another process may have used the folder before
        files.write_text(out / files.SCENARIO, self.scenario.to_toml())

    def _prepare_checkpoints(self, out: Path, *, resume: bool) -> None:
        """Restore the newest checkpoint if ``resume``, and create the checkpointer."""
        origins = Origins(self.run)
        if resume:
            self._restore(out, origins)
        files.write_network(out, self.run.network.layout())
        if self.scenario.not_restorable is None:
            self.checkpointer = snapshot.Checkpointer(
                self.scenario.checkpoint, out, self.run, self.recorder, origins
            )

    def _restore(self, out: Path, origins: Origins) -> None:
        """Restore the newest checkpoint, and remove all files that were written after it.

        With ``more``, the newest checkpoint before the run's end is restored, and the scenario in
        the folder is replaced by the scenario with the later end.

        Args:
            out: the run folder.
            origins: fingerprints of the data and input files from which the run was built.
        """
        checkpoint = store.latest(out) if self._more is None else find_checkpoint(out)
        snapshot.resume(checkpoint, self.run, self.recorder, origins)
        if self._more is not None:
            note = refuse_dependent(self.run, self._planned_rounds)
            if note is not None:
                self.notes.append(note)
            store.remove_after(checkpoint)
        meter_files = [name for name, _content, _columns in self.run.meters.files()]
        files.reopen(out, self.recorder.parts, meter_files)
        # The scenario is replaced last: the folder has no summary any more, so that a process that
        # is killed here leaves an unfinished run, with either scenario.
        if self._more is not None:
            files.write_text(out / files.SCENARIO, self.scenario.to_toml())

    def _listen(self, live_every_s: float) -> None:
        """Let the recorder, the checkpointer and the writer of live results receive the records.

        Args:
            live_every_s: real time between two copies of intermediate results to the folder (s).
        """
        self.simulation.listen(self.recorder.take)
        if self.checkpointer is not None:
            # a checkpoint by time may be due at any record, a checkpoint by rounds after a round
            kinds = ("round",) if self.scenario.checkpoint.time is None else ()
            self.simulation.listen(self.checkpointer.watch, kinds=kinds)
        if self.out is not None:
            live_results = Live(self.simulation, self.out, self._copy_to, live_every_s)
            self.simulation.listen(live_results.watch, kinds=("task-end",))

    def interrupt(self) -> None:
        """End the run after all events of the present time, and save it if it can be resumed."""
        if self.checkpointer is not None:
            self.checkpointer.request()
        self.simulation.interrupt()

    async def execute(self) -> EndedRun:
        """Run to the end, and close the run folder, also after an error.

        Returns:
            The result.

        Raises:
            FedsimError: the run has failed. Errors of the user's code are raised as they are.
        """
        status = FAILED
        try:
            stopped = await self.simulation.run()
            status = "interrupted" if stopped == "interrupted" else "done"
        finally:  # writes the results so far, also after an error
            try:
                result = await self._close(status)
            finally:  # releases the lock even if the results cannot be written
                self.over = True
                self._lock.close()
                self.simulation.executor.close()
        return result

    async def _close(self, status: str) -> EndedRun:
        """Compute the final models and the summary, and write both to the run folder, if any."""
        self.recorder.close()
        strategy = self.run.strategy
        evaluator = self.run.evaluator
        tensors: Models = {}  # the final models
        if status != FAILED:
            tensors = await last_models(self.run)
        summary = self._summary(status, models_digest(tensors))
        if status != FAILED and summary["accuracy"]["final"] is None:
            reason = strategy.why_no_accuracy()
            if not reason:
                reason = evaluator.why_no_accuracy(summary["rounds"], strategy.models())
            summary["no_accuracy"] = reason
        # fedsim leaves updates that are not finite out of every model, so the strategy's own code
        # is the likely cause, and the message says where this code is
        names = ", ".join(find_not_finite(tensors))
        if names:
            summary["not_finite"] = f"{names}{home_of(type(strategy))}"
        if status == "done" and self.scenario.evaluation.fine_tune_epochs:
            tuned = await evaluator.test_fine_tuned(
                strategy.models(), summary["rounds"], strategy.score
            )
            summary["accuracy"]["fine_tuned"] = tuned
        if self.out is not None:
            if status != FAILED:
                files.write_models(self.out, await best_models(self.run), files.BEST)
            self._close_folder(self.out, status, tensors, summary)
        return EndedRun(summary, self.recorder.rounds, self.out)

    def _close_folder(
        self, out: Path, status: str, tensors: Models, summary: Mapping[str, object]
    ) -> None:
        """Write models and the last tables, then the summary; remove files that are obsolete.

        Files with parts of tables are obsolete when a done run has written the whole tables.
        """
        files.write_models(out, tensors)
        self._write_devices(out)
        # times at which devices became available or unavailable
        changes = self.run.availability_columns(self.recorder.last_time)
        parquet.write_columns(out / files.AVAILABILITY, changes, AVAILABILITY)
        live.remove(out)
        obsolete_parts = self.recorder.parts if status == "done" else []
        fingerprints = files.fingerprints(out, but=obsolete_parts)
        files.write_summary(out, {**summary, "files_sha256": fingerprints})
        if self.scenario.checkpoint.last:  # ``--more`` needs the parts
            return
        # removed after the summary is written: a run that is killed before resumes from these parts
        for part in obsolete_parts:
            part.unlink()

    def _copy_to(self, folder: Path) -> None:
        self.recorder.copy_to(folder)
        self._write_devices(folder)
        files.write_text(folder / files.SUMMARY, files.summary_text(self._summary(RUNNING)))

    def _write_devices(self, out: Path) -> None:
        parquet.write_meters(out, self.run.meters)
        parquet.write_devices(out, self.run.device_columns(), self.run.meters)
        traces = self.run.trace_columns()
        if traces is not None:
            pieces, links = traces
            parquet.write_columns(out / files.TRACES, pieces, TRACES)
            parquet.write_columns(out / files.TRACED_LINKS, links, TRACED_LINKS)

    def _summary(self, status: str, models_sha256: str | None = None) -> dict[str, Any]:
        """Return the content of ``summary.json``.

        Args:
            status: status of the run, such as ``done``.
            models_sha256: SHA-256 of the final models; None as long as the run goes on.
        """
        wall_s = time.perf_counter() - self._started
        return summarise(
            self.run, self.recorder, status, self._reason(status), models_sha256, wall_s
        )

    def _reason(self, status: str) -> str:
        """Return why the run ended, for the summary's entry ``stopped``, or the text "it goes on".

        Args:
            status: status of the run.
        """
        if status == RUNNING:
            return "it goes on"
        if status == FAILED:
            return "an error ended it"
        return self.simulation.stopped or "nothing left to happen"


def end_soon(job: Job, number: int) -> None:
    """Signal handler that saves and ends a run after all events of its present simulated time.

    The process ends immediately, without a save, if a computation blocks it for more than 1.5 s, or
    if training takes more than 10 s. The run can then be resumed from its last checkpoint. After
    Ctrl-C, training may take any time. After a signal by which a batch system announces the end of
    a job, there is no limit at all, because another signal will follow.

    Args:
        job: the run.
        number: number of the signal that interrupted the run.
    """
    job.interrupt()
    if number in ANNOUNCEMENTS:
        return
    with suppress(RuntimeError):  # RuntimeError: no event loop runs, so nothing can block
        loop = asyncio.get_running_loop()
        threading.Thread(target=_watch, args=(job, loop, number), daemon=True).start()


def _watch(job: Job, loop: asyncio.AbstractEventLoop, number: int) -> None:
    """End the process if a run does not end soon enough after an interrupt.

    ``end_soon`` starts this function in a thread. The limits are ``_LONGEST_BLOCK_S`` for a
    computation that blocks the event loop, and ``_LONGEST_TRAINING_S`` for training. After Ctrl-C,
    training may take any time.

    Args:
        job: the run.
        loop: the event loop of the run.
        number: number of the signal that interrupted the run.
    """
    has_responded = threading.Event()  # set by the event loop, unless a computation blocks it
    has_responded.set()
    interrupted_at = time.monotonic()
    last_response = interrupted_at
    simulation = job.simulation
    while not job.over:
        now = time.monotonic()
        is_training = simulation.working  # training blocks the loop, and has a limit of its own
        if has_responded.is_set() or is_training:
            last_response = now
            has_responded.clear()
            with suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(has_responded.set)
        is_stuck = now - last_response > _LONGEST_BLOCK_S
        has_limit = number != signal.SIGINT  # whether training has a limit; not after Ctrl-C
        is_late = has_limit and now - interrupted_at > _LONGEST_TRAINING_S
        # Saving and writing results may take long; training after the run's end may not.
        # ``savable`` is True while the run's state can be saved, and after the run.
        is_writing = simulation.savable and (is_stuck or simulation.stopped is None)
        if (is_stuck or is_late) and not is_writing:
            say(
                "fedsim: this instant takes too long; ended within it, the last checkpoint is "
                "what remains",
                err=True,
            )
            end_at_once(number)
        time.sleep(_CHECK_EVERY_S)
