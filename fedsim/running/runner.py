"""Runs a scenario: builds it, executes it, and writes the run folder, also after failures and
interrupts.
"""

import asyncio
import signal
import threading
import time
from contextlib import ExitStack, suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedsim.clock.executors import Executor
from fedsim.clock.simulation import Simulation
from fedsim.common.errors import CheckpointError, home_of
from fedsim.common.harmless import say
from fedsim.records import folder as files
from fedsim.records import live, parquet
from fedsim.records.live import EVERY_S, RUNNING, Live
from fedsim.records.lock import locked
from fedsim.records.recorder import Recorder
from fedsim.records.schema import ASKED, AVAILABILITY, models_digest
from fedsim.running.checkpoint import snapshot
from fedsim.running.signals import end_at_once
from fedsim.version import __version__
from fedsim.world.meters.base import Column

if TYPE_CHECKING:
    from fedsim.running.assembly import Run
    from fedsim.running.scenario import Scenario


_PATIENCE_S = 1.5  # for computations of the event loop's thread, in the world or in a handler
# for an instant that waits for training, after SIGTERM; after Ctrl-C the user decides
_TRAINING_S = 10.0
_LOOK_S = 0.1


FAILED = "failed"  # the status of a run that an error has ended


class EndedRun(NamedTuple):
    """Result of a run: ``summary.json``, the rows of ``rounds.parquet``, and the folder."""

    summary: dict[str, Any]
    rows: list[dict[str, Any]]
    folder: Path | None


class Job:
    """One run, from building it to the closed run folder; ``over``: it has ended, and its files
    are closed.

    The constructor validates everything before it makes the folder, and locks the folder until the
    run is over. The job closes ``executor``. ``live_every_s``: interval at which intermediate
    results are written (s of real time).

    Raises:
        ScenarioError, DataError, RunFolderError: nothing was written.
        CheckpointError: there is nothing to resume; no file was changed.
    """

    def __init__(
        self,
        scenario: "Scenario",
        out: Path | None,
        executor: Executor,
        *,
        resume: bool = False,
        live_every_s: float = EVERY_S,
    ) -> None:
        self._started = time.perf_counter()
        self.over = False
        self.scenario = scenario
        self.out = out
        lost = scenario.not_restorable
        if resume and lost:
            raise CheckpointError(f"the run cannot be resumed: {lost}")
        with ExitStack() as held:  # releases the folder's lock if the run is refused
            if out is not None and resume:
                files.refuse_other_run(out, scenario.to_toml())
                held.enter_context(locked(out))
                # another process may have ended it meanwhile
                files.refuse_other_run(out, scenario.to_toml())
            elif out is not None:
                files.refuse_unusable(out)
            self.simulation = Simulation(scenario, executor=executor)
            self.run: Run = self.simulation.installed
            if out is not None and not resume:
                files.make(out)
                held.enter_context(locked(out))
                files.refuse_unusable(out)  # another process may have used it meanwhile
                files.write_text(out / files.SCENARIO, scenario.to_toml())
            columns = [Column(metric.name, "", "a metric") for metric in self.run.metrics]
            self.recorder = Recorder(out, self.run.meters, columns)
            self.checkpointer: snapshot.Checkpointer | None = None
            if out is not None:
                origins = snapshot.Origins(self.run)
                if resume:
                    snapshot.resume(out, self.run, self.recorder, origins)
                    files.reopen(
                        out, self.recorder.parts, [name for name, *_ in self.run.meters.files()]
                    )
                files.write_network(out, self.run.network.layout())
                if lost is None:
                    self.checkpointer = snapshot.Checkpointer(
                        scenario.checkpoint, out, self.run, self.recorder, origins
                    )
            self.simulation.listen(self.recorder.take)
            if self.checkpointer is not None:
                self.simulation.listen(
                    self.checkpointer.watch,
                    kinds=("round",) if scenario.checkpoint.time is None else (),
                )
            if out is not None:
                self.simulation.listen(
                    Live(self.simulation, out, self._copy_to, live_every_s).watch,
                    kinds=("task-end",),
                )
            self._held = held.pop_all()

    def interrupt(self) -> None:
        """End the run after the current instant; a run with a folder is saved so that it can be
        resumed.
        """
        if self.checkpointer is not None:
            self.checkpointer.request()
        self.simulation.interrupt()

    async def execute(self) -> EndedRun:
        """Run to the end. An exception is raised again after the run folder is closed."""
        status = FAILED
        try:
            stopped = await self.simulation.run()
            status = "interrupted" if stopped == "interrupted" else "done"
        finally:
            try:
                result = await self._close(status)
            finally:
                self.over = True
                self._held.close()
                self.simulation.executor.close()
        return result

    async def _close(self, status: str) -> EndedRun:
        self.recorder.close()
        strategy = self.run.strategy
        evaluator = self.run.evaluator
        tensors = await self.run.model_tensors() if status != FAILED else {}
        summary = self._summary(status, models_digest(tensors))
        if status != FAILED and summary["accuracy"]["final"] is None:
            why = strategy.why_no_accuracy() or evaluator.why_no_accuracy(
                summary["rounds"], strategy.models()
            )
            summary["no_accuracy"] = why
        wrong = [
            name
            for name, model in tensors.items()
            if not all(bool((abs(one) < inf).all()) for one in model.values())
        ]
        if wrong:  # caused by the strategy: updates with such numbers never enter a model
            summary["not_finite"] = f"{', '.join(wrong)}{home_of(type(strategy))}"
        if status == "done" and self.scenario.evaluation.fine_tune_epochs:
            tuned = await evaluator.fine_tuned(strategy.models(), summary["rounds"], strategy.score)
            summary["accuracy"]["fine_tuned"] = tuned
        if self.out is not None:
            files.write_models(self.out, tensors)
            self._write_devices(self.out)
            available = self.run.availability_columns(summary["simulated_s"])
            parquet.write_columns(self.out / files.AVAILABILITY, available, AVAILABILITY)
            live.remove(self.out)
            not_needed = self.recorder.parts if status == "done" else []
            files.write_summary(
                self.out, summary | {"files_sha256": files.fingerprints(self.out, but=not_needed)}
            )
            # only now: without a summary, a killed run could still be resumed
            for part in not_needed:
                part.unlink()
        return EndedRun(summary, self.recorder.rounds, self.out)

    def _metrics(self) -> dict[str, Any]:
        """Last and best value of each metric, and whether the best is the most or the least."""
        found: dict[str, Any] = {}
        for metric in self.run.metrics:
            values = [
                row[metric.name] for row in self.recorder.rounds if row[metric.name] is not None
            ]
            best, name = (max, "most") if metric.more_is_better else (min, "least")
            told = (
                {"final": values[-1], "best": best(values)}
                if values
                else {"final": None, "best": None}
            )
            found[metric.name] = told | {"best_is": name}
        return {"metrics": found} if found else {}

    def _acts(self) -> dict[str, Any]:
        """The number of records of the world's processes, by kind."""
        acts = self.run.processes.acts
        return {"acts": dict(sorted(acts.items()))} if acts or self.scenario.world.processes else {}

    def _copy_to(self, folder: Path) -> None:
        self.recorder.copy_to(folder)
        self._write_devices(folder)
        files.write_text(folder / files.SUMMARY, files.summary_text(self._summary(RUNNING)))

    def _write_devices(self, out: Path) -> None:
        parquet.write_meters(out, self.run.meters)
        parquet.write_devices(out, self.run.device_columns(), self.run.meters)

    def _summary(self, status: str, models_sha256: str | None = None) -> dict[str, Any]:
        recorder = self.recorder
        accuracies = [row["accuracy"] for row in recorder.rounds if row["accuracy"] is not None]
        return {
            "fedsim": __version__,
            "name": self.scenario.name,
            "seed": self.scenario.seed,
            "strategy": self.scenario.strategy.kind,
            "status": status,
            "stopped": self._reason(status),
            "rounds": len(recorder.rounds),
            **({} if self.run.tells_all_devices else {"device_rows": ASKED}),
            "simulated_s": recorder.last_time,
            "accuracy": {
                "final": accuracies[-1] if accuracies else None,
                "best": max(accuracies) if accuracies else None,
            },
            **self._metrics(),
            "bytes": recorder.ledger.summary(),
            **recorder.meters.summary(),
            **self._acts(),
            **self.run.strategy.facts(),
            **({"estimates": guessed} if (guessed := self.run.estimates) else {}),
            **({"outside_of_rules": outside} if (outside := self.run.outside_of_rules) else {}),
            "events": recorder.chain.count,
            "events_sha256": recorder.chain.hexdigest(),
            "models_sha256": models_sha256,
            "wall_s": time.perf_counter() - self._started,
        }

    def _reason(self, status: str) -> str:
        """The entry ``stopped`` of the summary."""
        if status == RUNNING:
            return "it goes on"
        if status == FAILED:
            return "an error ended it"
        return self.simulation.stopped or "nothing left to happen"


def end_soon(job: Job, number: int) -> None:
    """End and save a run after its current instant; if it does not end, end the process; the
    last checkpoint remains.
    """
    job.interrupt()
    with suppress(RuntimeError):  # no event loop runs, so there is nothing to wait for
        loop = asyncio.get_running_loop()
        threading.Thread(target=_watch, args=(job, loop, number), daemon=True).start()


def _watch(job: Job, loop: asyncio.AbstractEventLoop, number: int) -> None:
    """End the process if the event loop hangs, or if training takes too long after a signal
    other than Ctrl-C.
    """
    turn = threading.Event()
    turn.set()
    begun = alive = time.monotonic()
    simulation = job.simulation
    while not job.over:
        now = time.monotonic()
        if turn.is_set() or simulation.working:
            alive = now
            turn.clear()
            with suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(turn.set)
        stuck = now - alive > _PATIENCE_S
        is_late = number != signal.SIGINT and now - begun > _TRAINING_S
        # Saving and writing results may take long; training after the end of the run may not.
        writes = simulation.settled and (stuck or simulation.stopped is None)
        if (stuck or is_late) and not writes:
            say(
                "fedsim: this instant takes too long; ended within it, the last checkpoint is "
                "what remains",
                err=True,
            )
            end_at_once()
        time.sleep(_LOOK_S)
