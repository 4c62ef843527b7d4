"""Forecasts of a scenario before it is run: its cost in the simulated world, and on this machine.

Sizes, and times of devices alone on their links, need no simulation (``nominal_lines``). The cost
on this machine is extrapolated from a trial: the beginning of a run without learning, then a part
of its training.
"""

import asyncio
import math
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from typing_extensions import override

from fedsim.clock.executors import Executor, Inline
from fedsim.clock.simulation import Record, Simulation
from fedsim.common.arrays import Floats, Ints
from fedsim.common.notes import collected_notes
from fedsim.common.streams import Streams
from fedsim.common.training import Training
from fedsim.common.units import show_bytes, show_seconds
from fedsim.lab.terminal import outside_lines, share_done
from fedsim.learning import Learner
from fedsim.records import folder as files
from fedsim.records import parquet
from fedsim.records.recorder import Recorder
from fedsim.running.assembly import Run, assemble
from fedsim.strategies.round_params import RoundParams

if TYPE_CHECKING:
    from fedsim.learning.engine import Learning
    from fedsim.learning.refs import Ref
    from fedsim.running.scenario import Scenario

PATIENCE_S = 2.0
_PILOT_STEPS = 3
_SHOWN = 100_000  # sample of devices for estimates of large populations


def nominal_lines(run: Run) -> list[str]:
    """Facts of a run that has been built and not begun, and estimates of its times, in words."""
    dispatch = run.dispatch
    learner = run.learner
    scenario = run.scenario
    params = scenario.strategy
    stop = scenario.stop
    devices = scenario.population.devices
    step = 1 if run.tells_all_devices else devices // _SHOWN
    looked_at = range(0, devices, step)
    samples = run.samples[::step]
    epoch_s = run.population.epochs_s(slice(0, devices, step))
    down_bytes, up_bytes = (
        wire.model_bytes + learner.state_bytes for wire in (dispatch.down, dispatch.up)
    )

    def nominal(direction: Literal["down", "up"], count: float) -> Floats:
        return np.array(
            [
                run.network.nominal_s(device, direction, count, near=params.at_edges)
                for device in looked_at
            ]
        )

    down = nominal("down", down_bytes)
    up = nominal("up", up_bytes)
    lines = [
        f"{devices} devices with {int(run.samples.sum())} training samples "
        f"({int(run.samples.min())} to {int(run.samples.max())} a device, median "
        f"{int(np.median(samples))})",
        *([f"of these {len(looked_at)} were looked at for the times below"] if step > 1 else []),
        f"a model of {learner.parameters} parameters; {show_bytes(down_bytes)} down, "
        f"{show_bytes(up_bytes)} up",
        *(
            [f"and {show_bytes(base)} of frozen tensors, once to each device"]
            if (base := learner.base_bytes)
            else []
        ),
        f"alone on its link a device downloads in {_range(down)}, uploads in {_range(up)}",
        f"an epoch takes it {_range(epoch_s)}",
    ]
    if scenario.population.host is not None:
        lines.append("these and the times below are those of a device that has its host to itself")
    lines += [f"this {guessed}"] if (guessed := run.estimates) else []
    lines += run.rules
    lines += outside_lines(run.outside_of_rules, most=20)
    fitted = scenario.population.fitted_at_once
    here = run.at_once
    if fitted not in (None, here):  # the log that the world was fitted to had another number
        unknown = (
            "whether a link that they share carries so much"
            if here > fitted
            else "own links that a shared one hid"
        )
        lines.append(
            f"links were fitted to {fitted} clients at a time, and {here} work here: the log "
            f"does not tell {unknown}"
        )
    if isinstance(params, RoundParams) and stop.rounds is not None:
        limit = params.deadline_s(run.strategy.setting.mean_epoch_s)
        training = params.local_epochs * epoch_s
        bounded = (
            training if limit is None or not params.bounds_training else np.minimum(training, limit)
        )
        task_s = down + bounded + up
        task_s = task_s if limit is None or params.bounds_training else np.minimum(task_s, limit)
        lines += _round_lines(
            run, params, stop.rounds, task_s + dispatch.down.model_s + dispatch.up.model_s, samples
        )
    return lines + stop.notes


def data_lines(run: Run) -> list[str]:
    """Samples as they were understood, in words; none if no data are read."""
    if run.data is None:
        return []
    pool = run.data.pool
    train = np.unique(np.concatenate([shard.train for shard in run.data.shards]))
    test = np.unique(np.concatenate([shard.test for shard in run.data.shards]))
    samples = [f"{len(train)} samples for training, {len(test)} for tests"]
    if pool.vocabulary:
        samples.append(f"each is {pool.shape[0]} tokens of {pool.vocabulary}")
    elif len(pool.shape) == 3:
        channels, height, width = pool.shape
        plural = "" if channels == 1 else "s"
        samples.append(
            f"each is an image of {channels} channel{plural}, {height} x {width} pixels "
            f"({pool.x.dtype})"
        )
    else:
        samples.append(f"each has {' x '.join(map(str, pool.shape))} features ({pool.x.dtype})")
    if pool.targets is not None:
        samples.append(f"targets are {pool.targets.dtype} of shape {pool.targets.shape[1:]}")
    if pool.labelled:
        held = np.count_nonzero(np.bincount(pool.y[train], minlength=pool.classes))
        missing = (
            ""
            if held == pool.classes
            else f", of which {pool.classes - held} have no training sample"
        )
        samples.append(f"{pool.classes} classes{missing}")
    return [f"data: {'; '.join(samples)}"]


def _round_lines(
    run: Run, params: RoundParams, rounds: int, task_s: Floats, samples: Ints
) -> list[str]:
    scenario = run.scenario
    learner = run.learner
    dispatch = run.dispatch
    asked = params.cohort_size(scenario.population.devices)
    round_s = expected_maximum(task_s, min(asked, len(task_s))) * params.turns
    trained = asked * params.turns
    apart_s = round_s if params.every is None else math.ceil(round_s / params.every) * params.every
    messages = trained + (min(asked, scenario.network.edge_servers) if params.at_edges else 0)
    traffic = messages * (
        dispatch.down.model_bytes + dispatch.up.model_bytes + 2 * learner.state_bytes
    )
    once = learner.base_bytes * min(scenario.population.devices, rounds * messages)
    steps = (
        np.mean([scenario.training.batching.count(count) for count in samples.tolist()])
        * params.local_epochs
        * trained
    )
    gigaflops = run.samples.mean() * params.local_epochs * trained * learner.flops_per_sample / 1e9
    return [
        f"a round asks {asked}: at most {show_bytes(traffic)}, about {show_seconds(round_s)} "
        "of simulated time, "
        f"{steps:.0f} steps of SGD ({gigaflops:.3g} GFLOP)",
        f"{rounds} rounds: at most {show_bytes(rounds * traffic + once)}, "
        f"about {show_seconds(rounds * apart_s)} of simulated time",
    ]


def expected_maximum(values: Floats, drawn: int) -> float:
    """The mean of the largest of ``drawn`` values, drawn uniformly without replacement out of
    ``values``.

    All of them lie among the i smallest with probability C(i, drawn) / C(n, drawn).
    """
    from scipy.special import gammaln

    n = len(values)
    smallest = np.arange(drawn, n + 1)
    log_share = (
        gammaln(smallest + 1)
        - gammaln(smallest - drawn + 1)
        - gammaln(n + 1)
        + gammaln(n - drawn + 1)
    )
    return float(np.diff(np.exp(log_share), prepend=0.0) @ np.sort(values)[drawn - 1 :])


def _range(seconds: Floats) -> str:
    low, middle, high = (
        show_seconds(float(value)) for value in (seconds.min(), np.median(seconds), seconds.max())
    )
    return f"{middle} (median; {low} to {high})"


# a device and its local training, whose result a run would have used
UsedTraining = tuple[int, Training]


class Tally(Learner):
    """Learns nothing; records the trainings whose results were used, and the number of tests of
    models.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.trainings: list[UsedTraining] = []
        self.tests = 0

    @override
    def train(self, training: Training, device: int, **others: Any) -> "Ref":
        self.trainings.append((device, training))
        return super().train(training, device, **others)

    @override
    async def evaluate(self, models: "Mapping[str, tuple[Ref, Sequence[int] | None]]") -> None:
        self.tests += 1


class Beginning:
    """The beginning of a run whose learning ``executor`` computes, and its measured cost."""

    core: "Learning | None" = None  # the learning engine; None without learning
    real_s = 0.0  # real seconds that the simulation and its records took
    share = 0.0  # tried part of the run, 0..1
    # reached within the trial
    simulated_s = 0.0
    rounds = 0
    # records written; the part on disk that grows with the run, and the rest
    events = growing_bytes = fixed_bytes = 0
    stopped = ""  # why it ended

    def __init__(self, scenario: "Scenario", executor: Executor) -> None:
        began = time.perf_counter()
        self.run = assemble(scenario, Simulation(executor=Inline()), Tally)
        assert isinstance(self.run.learner, Tally)
        self.tally = self.run.learner
        if scenario.learning == "on":
            from fedsim.learning.engine import Learning  # loads torch

            assert self.run.data is not None
            streams = Streams(scenario.seed)
            parts = (
                scenario.model,
                scenario.training,
                self.run.data,
                streams,
                scenario.data.own_folder(),
                scenario.objective,
            )
            self.core = Learning(Simulation(executor=executor), *parts)
            self.run.check_sizes(self.core)
        self.build_s = time.perf_counter() - began  # real seconds until it could begin

    @property
    def futile(self) -> str | None:
        """Why the run ends, if it does so within the trial and without a single round."""
        return self.stopped if self.share == 1.0 and not self.rounds else None

    def go(self, patience_s: float) -> None:
        """Run for ``patience_s`` real seconds, or to the end, and write a run folder that is not
        kept.
        """
        with tempfile.TemporaryDirectory(prefix="fedsim-check-") as name:
            path = Path(name)
            simulation = self.run.simulation
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
            self.growing_bytes = sum(
                (path / name).stat().st_size
                for name in (files.EVENTS, files.TRANSFERS, files.ROUNDS)
            )
            parquet.write_devices(path, self.run.device_columns(), self.run.meters)
            self.fixed_bytes = (path / files.DEVICES).stat().st_size
        stopped_early = self.stopped == "interrupted"
        self.share = (
            share_done(self.run.scenario.stop, self.rounds, self.simulated_s)
            if stopped_early
            else 1.0
        )

    def steps_of(self, trained: UsedTraining) -> int:
        device, training = trained
        return training.sgd_steps(
            int(self.run.samples[device]), self.run.scenario.training.batching
        )

    async def costs(self, core: "Learning", patience_s: float) -> tuple[float, float]:
        """Real seconds for a step of SGD of one device, and for a test of the models.

        Trains the devices between two tests in the middle of the trial, as many as fit into the
        patience (s), and tests twice.
        """
        tests = max(1, self.tally.tests)
        together = max(1, round(len(self.tally.trainings) / tests))
        middle = tests // 2 * together
        at_once = (
            self.tally.trainings[middle : middle + together] or self.tally.trainings[-together:]
        )
        trainings = [each for each in at_once if self.steps_of(each)]
        step_s = await self._step_s(core, trainings, patience_s) if trainings else 0.0
        model = core.initial()
        test_s = 0.0
        for _ in range(2):  # the first time, images are made that are kept for later
            began = time.perf_counter()
            await core.evaluate({"all": (model, None)})
            test_s = time.perf_counter() - began
            if test_s > patience_s:
                break
        return step_s, test_s

    async def _step_s(
        self, core: "Learning", trainings: list[UsedTraining], patience_s: float
    ) -> float:
        first = trainings[:1]
        await _train_s(core, first, 1)  # work of the first time only is not to be counted
        pilot = min(_PILOT_STEPS, self.steps_of(first[0]))
        guess = await _train_s(core, first, pilot) / pilot
        most = max(_PILOT_STEPS, int(patience_s / guess))
        if self.steps_of(first[0]) > most:  # even one device is too much
            return await _train_s(core, first, most) / most
        totals = np.cumsum([self.steps_of(each) for each in trainings])
        chosen = max(1, int(np.searchsorted(totals * guess, patience_s, side="right")))
        return await _train_s(core, trainings[:chosen], None) / float(totals[chosen - 1])


async def _train_s(
    core: "Learning", trainings: list[UsedTraining], most_steps: int | None
) -> float:
    """Real seconds that the trainings take from the initial model, each for ``most_steps`` steps
    or all of its own.
    """
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


def forecast_lines(
    scenario: "Scenario", executor: Executor, patience_s: float = PATIENCE_S
) -> list[str]:
    """Build the scenario, try its beginning with ``executor``, and describe its cost.

    ``patience_s``: real seconds for each part of the trial; 0 for no trial. ``ScenarioError``,
    ``DataError``: it cannot be run.
    """
    if scenario.strategy.brings_learning:
        Simulation(scenario, executor=executor)  # refuses invalid scenarios
        about = f"what they compute, send and learn is for {scenario.strategy.called} to say"
        return [
            f"{scenario.population.devices} devices; {about}",
            *scenario.stop.notes,
            *scenario.strategy.notes,
        ]
    with collected_notes() as notes:
        trial = Beginning(scenario, executor)
    lines = [*data_lines(trial.run), *notes, *nominal_lines(trial.run)]
    if not patience_s:
        return lines
    found = forecast(trial, patience_s)
    if not trial.share:
        return [
            *lines,
            "what a run takes here cannot be told: not one round ended within the trial",
        ]
    parts = [f"{show_seconds(found['simulation_s'])} to simulate {found['events']:.0f} events"]
    if scenario.learning == "on":
        parts.append(
            f"{show_seconds(found['training_s'])} for {found['trained_steps']:.0f} steps of SGD"
        )
        parts.append(f"{show_seconds(found['testing_s'])} for {found['tests']:.0f} tests")
    most = "at most " if scenario.stop.accuracy is not None else ""
    real_s = trial.build_s + found["simulation_s"] + found["training_s"] + found["testing_s"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    lines.append(f"here a run takes {most}about {show_seconds(real_s)}: {', '.join(parts)}")
    lines.append(
        f"it needs about {show_bytes(peak)} of memory and {show_bytes(found['disk_bytes'])} on disk"
    )
    if trial.futile is not None:
        lines.append(
            f"it makes not one round ({trial.futile}): devices, deadline and strategy do not "
            "go together"
        )
    return lines


def forecast(trial: Beginning, patience_s: float = PATIENCE_S) -> dict[str, float]:
    """Try a run that has been built, and extrapolate to its whole: real seconds, counts, and
    bytes of the run folder.

    Other computations of a strategy than training, such as a clustering, and checkpoints are not
    counted.
    """
    trial.go(patience_s)
    run = trial.run
    tally = trial.tally
    scenario = trial.run.scenario
    times = 1 / trial.share if trial.share else 0.0
    step_s, test_s = (
        (0.0, 0.0) if trial.core is None else asyncio.run(trial.costs(trial.core, patience_s))
    )
    tests = times * tally.tests
    steps = times * sum(map(trial.steps_of, tally.trainings))
    # the trial may end before the first test
    if trial.share < 1.0 and scenario.stop.rounds is not None:
        tests = max(tests, scenario.evaluation.tests(scenario.stop.rounds))
    models = 0.0 if trial.core is None else len(run.strategy.models()) * run.learner.bytes
    seconds = {
        "simulation_s": trial.real_s * times,
        "training_s": steps * step_s,
        "testing_s": tests * test_s,
    }
    counts = {"events": trial.events * times, "trained_steps": steps, "tests": tests}
    return (
        seconds | counts | {"disk_bytes": trial.growing_bytes * times + trial.fixed_bytes + models}
    )
