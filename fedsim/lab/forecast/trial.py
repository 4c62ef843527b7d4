"""A trial: the beginning of a run without learning, and then a part of what it would have learnt, measured."""

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from fedsim.executors.base import Executor
from fedsim.executors.inline import Inline
from fedsim.learning import Learner
from fedsim.output.progress import share_done
from fedsim.records import folder as files
from fedsim.records import parquet
from fedsim.records.recorder import Recorder
from fedsim.running.assembly import Run, assemble
from fedsim.simulation import Record, Simulation
from fedsim.streams import Streams
from fedsim.training import Training

if TYPE_CHECKING:
    from fedsim.learning.engine import Learning
    from fedsim.learning.refs import Ref
    from fedsim.scenario import Scenario

_PILOT_STEPS = 3


class UsedTraining(NamedTuple):
    """A local training whose result a run would have used."""

    device: int
    training: Training


class Tally(Learner):
    """Learns nothing, and notes the trainings whose results were handed in, and how often models would have been tested."""

    trainings: list[UsedTraining]
    tests: int

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.trainings, self.tests = [], 0

    @override
    def train(self, training: Training, device: int, **others: Any) -> "Ref":
        self.trainings.append(UsedTraining(device, training))
        return super().train(training, device, **others)

    @override
    async def evaluate(self, models: "Mapping[str, tuple[Ref, Sequence[int] | None]]") -> None:
        self.tests += 1


@dataclass
class Beginning:
    """The beginning of a run, and its cost.

    Attributes:
        run: the run.
        core: where its models would be made; None without learning.
        build_s: real seconds until it could begin.
        real_s: real seconds that the simulation and its records took.
        share: tried part of the run, 0..1.
        rounds, simulated_s: how far it came.
        events: records written.
        growing_bytes, fixed_bytes: on disk; the part that grows with the run, and the rest.
        stopped: why it ended.
    """

    run: Run
    core: "Learning | None"
    build_s: float
    real_s: float = 0.0
    share: float = 0.0
    rounds: int = 0
    simulated_s: float = 0.0
    events: int = 0
    growing_bytes: int = 0
    fixed_bytes: int = 0
    stopped: str = ""

    @property
    def tally(self) -> Tally:
        """The learning that it would have taken."""
        learner = self.run.learner
        assert isinstance(learner, Tally)
        return learner

    @classmethod
    def built(cls, scenario: "Scenario", executor: Executor) -> "Beginning":
        """Build the run, with the work to be done by ``executor``, and do not begin."""
        began, core = time.perf_counter(), None
        run = assemble(scenario, Simulation(executor=Inline()), Tally)
        if scenario.learning == "on":
            from fedsim.learning.engine import Learning  # loads torch

            assert run.data is not None
            streams = Streams(scenario.seed)
            parts = scenario.model, scenario.training, run.data, streams, scenario.data.own_folder(), scenario.objective
            core = Learning(Simulation(executor=executor), *parts)
        return cls(run, core, time.perf_counter() - began)

    def go(self, patience_s: float) -> None:
        """Run for so many real seconds, or to the end, and write a run folder that is not kept."""
        with tempfile.TemporaryDirectory(prefix="fedsim-check-") as name:
            path, simulation = Path(name), self.run.simulation
            recorder = Recorder(path, self.run.meters)
            simulation.listen(recorder.take)
            began = time.perf_counter()

            def watch(record: Record) -> None:
                if record.kind == "round":
                    self.rounds = record.fields["round"] + 1
                self.simulated_s = record.time
                if time.perf_counter() - began >= patience_s:
                    simulation.interrupt()

            simulation.listen(watch)
            self.stopped = asyncio.run(simulation.run())
            recorder.close()
            self.real_s = time.perf_counter() - began
            self.events = recorder.chain.count
            self.growing_bytes = sum((path / name).stat().st_size for name in (files.EVENTS, files.TRANSFERS, files.ROUNDS))
            parquet.write_devices(path, self.run.device_columns(), self.run.meters)
            self.fixed_bytes = (path / files.DEVICES).stat().st_size
        stopped_early = self.stopped == "interrupted"
        self.share = share_done(self.run.scenario.stop, self.rounds, self.simulated_s) if stopped_early else 1.0

    def steps_of(self, trained: UsedTraining) -> int:
        """Steps of SGD of a training."""
        return trained.training.sgd_steps(int(self.run.samples[trained.device]), self.run.scenario.training.batch_size)

    async def costs(self, core: "Learning", patience_s: float) -> tuple[float, float]:
        """Real seconds for a step of SGD of one device, and for a test of the models.

        Trains what would have been trained at once, or as much of it as fits into the patience (s), and tests twice.
        """
        trainings = [each for each in self._at_once() if self.steps_of(each)]
        step_s = await self._step_s(core, trainings, patience_s) if trainings else 0.0
        model, test_s = core.initial(), 0.0
        for _ in range(2):  # the first time, images are made that are kept for later
            began = time.perf_counter()
            await core.evaluate({"all": (model, None)})
            test_s = time.perf_counter() - began
            if test_s > patience_s:
                break
        return step_s, test_s

    def _at_once(self) -> list[UsedTraining]:
        """The trainings between two tests in the middle of the trial: they would have been trained together."""
        trainings, tests = self.tally.trainings, max(1, self.tally.tests)
        together = max(1, round(len(trainings) / tests))
        middle = max(0, (tests // 2) * together)
        return trainings[middle : middle + together] or trainings[-together:]

    async def _step_s(self, core: "Learning", trainings: list[UsedTraining], patience_s: float) -> float:
        await _train_s(core, trainings[:1], 1)  # work of the first time only is not to be counted
        pilot = min(_PILOT_STEPS, self.steps_of(trainings[0]))
        guess = await _train_s(core, trainings[:1], pilot) / pilot
        chosen, total = trainings[:1], self.steps_of(trainings[0])
        for training in trainings[1:]:
            if (total + self.steps_of(training)) * guess > patience_s:
                break
            total += self.steps_of(training)
            chosen.append(training)
        most = max(_PILOT_STEPS, int(patience_s / guess))
        if total > most:  # even one device is too much
            return await _train_s(core, chosen, most) / most
        return await _train_s(core, chosen, None) / total


async def _train_s(core: "Learning", trainings: list[UsedTraining], most_steps: int | None) -> float:
    """Real seconds that these trainings take from the initial model; each for so many steps, or all of its own."""
    start = core.initial()
    await core.value(start)
    began = time.perf_counter()
    updates = []
    for number, (device, training) in enumerate(trainings):
        whole = replace(training, start=start, anchor=None, linear=None)
        part = whole if most_steps is None else replace(whole, epochs=1, steps=most_steps)
        updates.append(core.train(part, device, key=number))
    await core.values(updates)
    return time.perf_counter() - began
