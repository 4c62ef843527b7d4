"""A trial: the beginning of a run without learning, for as long as there is patience."""

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedsim.executors.base import Executor
from fedsim.executors.inline import Inline
from fedsim.learning import Learner
from fedsim.output.progress import share_done
from fedsim.records import folder as files
from fedsim.records.recorder import Recorder
from fedsim.running.assembly import Run, assemble
from fedsim.simulation import Record, Simulation
from fedsim.streams import Streams
from fedsim.training import Training

if TYPE_CHECKING:
    from fedsim.learning.engine import Learning
    from fedsim.learning.refs import Ref
    from fedsim.scenario import Scenario


class Trained(NamedTuple):
    """A local training whose result a run would have used."""

    device: int
    training: Training


class Tally(Learner):
    """Learns nothing, and notes what would have been learnt and tested.

    Attributes:
        trainings: whose results were handed in.
        tests: how often the models would have been tested.
    """

    trainings: list[Trained]
    tests: int

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.trainings, self.tests = [], 0

    def train(self, training: Training, device: int, **others: Any) -> "Ref":
        """A name."""
        self.trainings.append(Trained(device, training))
        return super().train(training, device, **others)

    async def evaluate(self, models: "Mapping[str, tuple[Ref, Sequence[int] | None]]") -> None:
        """None: nothing was measured."""
        self.tests += 1


@dataclass
class Trial:
    """How far the beginning of a run came, and what that took.

    Attributes:
        run: what was begun.
        core: where the models of the run would be made; None without learning.
        build_s: real seconds until it could begin.
        real_s: real seconds that the simulation and its records took.
        share: how much of the run that was, 0..1.
        rounds, simulated_s: how far it came.
        events: records written.
        growing_bytes, fixed_bytes: on disk; what grows with the run, and what does not.
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
    _began: float = field(default=0.0, repr=False)

    @property
    def tally(self) -> Tally:
        """The learning that it would have taken."""
        learner = self.run.learner
        assert isinstance(learner, Tally)
        return learner

    @classmethod
    def built(cls, scenario: "Scenario", executor: Executor) -> "Trial":
        """Build the run, with the work to be done by ``executor``, and do not begin.

        Raises:
            ScenarioError, DataError: it cannot be run.
        """
        began = time.perf_counter()
        run = assemble(scenario, Simulation(executor=Inline()), Tally)
        core = _learning_core(run, executor) if scenario.learning == "on" else None
        return cls(run, core, time.perf_counter() - began)

    def go(self, patience_s: float) -> None:
        """Run for so many real seconds, or to the end, and write a run folder that is not kept."""
        with tempfile.TemporaryDirectory(prefix="fedsim-check-") as path:
            recorder = Recorder(Path(path), self.run.meters)
            simulation = self.run.simulation
            simulation.listen(recorder.take)
            self._began = time.perf_counter()
            simulation.listen(lambda record: self._watch(record, patience_s))
            self.stopped = asyncio.run(simulation.run())
            recorder.close()
            self.real_s = time.perf_counter() - self._began
            self.events = recorder.chain.count
            tables = [Path(path) / name for name in (files.EVENTS, files.TRANSFERS, files.ROUNDS)]
            self.growing_bytes = sum(table.stat().st_size for table in tables)
            files.write_devices(Path(path), self.run.device_columns(), self.run.meters)
            self.fixed_bytes = (Path(path) / files.DEVICES).stat().st_size
        stopped_early = self.stopped == "interrupted"
        self.share = share_done(self.run.scenario.stop, self.rounds, self.simulated_s) if stopped_early else 1.0

    def _watch(self, record: Record, patience_s: float) -> None:
        if record.kind == "round":
            self.rounds = record.fields["round"] + 1
        self.simulated_s = record.time
        if time.perf_counter() - self._began >= patience_s:
            self.run.simulation.interrupt()


def _learning_core(run: Run, executor: Executor) -> "Learning":
    from fedsim.learning.engine import Learning  # loads torch

    scenario = run.scenario
    assert run.data is not None
    return Learning(Simulation(executor=executor), scenario.model, scenario.training, run.data, Streams(scenario.seed))
