"""Forecasts of the cost of a scenario, in the simulated world and on this machine.

``nominal_lines`` computes sizes, and times of a device that shares its link with no other device,
without a simulation. The cost on this machine is extrapolated from a trial: the beginning of a run
without learning, then a part of its training.
"""

import asyncio
import gc
import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from fedsim.clock.executors import Executor, Inline
from fedsim.clock.simulation import Record, Simulation
from fedsim.common.arrays import Floats
from fedsim.common.machine import peak_memory, resident_memory
from fedsim.common.round_words import counted
from fedsim.common.streams import Streams
from fedsim.common.training import LocalSteps
from fedsim.common.units import show_bytes, show_seconds
from fedsim.lab.tally import Tally, UsedTraining
from fedsim.lab.terminal import extrapolation_lines, share_done
from fedsim.learning.scratch import MEMORY_BYTES
from fedsim.records import folder as files
from fedsim.records import parquet
from fedsim.records.recorder import Recorder
from fedsim.running.assembly import Run, assemble
from fedsim.strategies.round_params import RoundParams

if TYPE_CHECKING:
    from fedsim.lab.planned_models import CheckpointedModels, PlannedSaving
    from fedsim.learning.data.federated import Pool
    from fedsim.learning.engine import Learning
    from fedsim.running.scenario import Scenario

PATIENCE_S = 2.0
# A trial stops after ``PATIENCE_S`` (real time). Until the end of its first round, the limit is
# longer by this factor, as a forecast needs at least one whole round.
_FIRST_ROUND_FACTOR = 30
_PILOT_STEPS = 3  # SGD steps from which the time of a step is guessed
# approximate count of devices that are sampled for estimates, if a population is too large to list
_SAMPLED = 100_000


def load_learning() -> None:
    """Load all modules that learning needs, such as torch."""
    import fedsim.learning.engine  # noqa: F401


def nominal_lines(run: Run) -> list[str]:
    """Return text lines on a run that has not begun: its sizes, and estimates of its times.

    The estimates come from formulas, without a simulation.
    """
    scenario = run.scenario
    params = scenario.strategy
    times = _estimate_times(run)
    lines = _size_lines(run, times)
    lines.append(
        f"alone on its link a device downloads in {_median_and_range(times.download_s)}, "
        f"uploads in {_median_and_range(times.upload_s)}"
    )
    if run.network.traces is not None:
        lines.append("links follow traces, whose means these times and the times below assume")
    lines.append(f"an epoch takes it {_median_and_range(times.epoch_s)}")
    if scenario.population.host is not None:
        lines.append("these and the times below are those of a device that has its host to itself")
    if run.estimates:  # text about hardware for which there are no measurements
        lines.append(f"this {run.estimates}")
    lines += run.rules
    lines += extrapolation_lines(run.outside_of_rules, most=20)
    lines += _fitting_lines(run)
    # rounds are estimated only if the strategy has rounds, and their count is planned
    if isinstance(params, RoundParams) and scenario.stop.rounds is not None:
        lines += _round_lines(run, params, scenario.stop.rounds, times)
    return lines + scenario.stop.notes


class _EstimatedTimes(NamedTuple):
    """Estimated times of devices that have no other traffic or work; float64 [devices] each.

    Attributes:
        devices: IDs of the devices. In a population too large to list, they are a sample.
        download_s: time to download a model (s).
        epoch_s: time of an epoch (s).
        upload_s: time to upload a model (s).
    """

    devices: range
    download_s: Floats
    epoch_s: Floats
    upload_s: Floats

    @property
    def as_slice(self) -> slice:
        """Slice of an array with a value for each device of the population."""
        return slice(self.devices.start, self.devices.stop, self.devices.step)


def _estimate_times(run: Run) -> _EstimatedTimes:
    """Return the times of each device; of every n-th device if there are too many to list."""
    count = run.scenario.population.devices
    stride = 1 if run.lists_all_devices else count // _SAMPLED
    devices = range(0, count, stride)
    down_bytes, up_bytes = _message_bytes(run)
    return _EstimatedTimes(
        devices=devices,
        download_s=_transfers_s(run, devices, "down", down_bytes),
        epoch_s=run.population.epochs_s(slice(0, count, stride)),
        upload_s=_transfers_s(run, devices, "up", up_bytes),
    )


def _message_bytes(run: Run) -> tuple[float, float]:
    """Return the sizes (bytes) of two messages with a model: to a device, and from a device.

    They include the state of the trainer, such as momentum, if the state is sent with the model.
    """
    envelopes = run.dispatch.envelopes
    state_bytes = run.learner.state_bytes
    return envelopes.down.model_bytes + state_bytes, envelopes.up.model_bytes + state_bytes


def _size_lines(run: Run, times: _EstimatedTimes) -> list[str]:
    """Return text lines on the sizes of the population, the data and the model.

    Args:
        run: the run.
        times: the estimates of times, which may be of a sample of the devices.
    """
    learner = run.learner
    down_bytes, up_bytes = _message_bytes(run)
    samples = run.samples[times.as_slice]
    lines = [
        f"{counted(run.scenario.population.devices, 'device')} with {int(run.samples.sum())} "
        f"training samples ({int(run.samples.min())} to {int(run.samples.max())} a device, median "
        f"{int(np.median(samples))})"
    ]
    if times.devices.step > 1:
        lines.append(f"of these {len(times.devices)} were looked at for the times below")
    lines.append(
        f"a model of {learner.parameters} parameters; {show_bytes(down_bytes)} down, "
        f"{show_bytes(up_bytes)} up"
    )
    if learner.base_bytes:
        base = show_bytes(learner.base_bytes)
        lines.append(f"and {base} of frozen tensors, once to each device")
    return lines


def _transfers_s(run: Run, devices: range, direction: Literal["down", "up"], size: float) -> Floats:
    """Return the time (s) in which each device transfers a message without other traffic.

    Args:
        run: the run.
        devices: IDs of the devices.
        direction: ``down`` to the device, or ``up`` from it.
        size: size of the message (bytes).

    Returns:
        The times (s); float64 [devices].
    """
    near = run.scenario.strategy.traits.at_edges
    times = [run.network.nominal_s(device, direction, size, near=near) for device in devices]
    return np.array(times)


def _fitting_lines(run: Run) -> list[str]:
    """Return a warning if the links were fitted to a log with another count of active clients.

    Such a log is of a real deployment. It shows only what its clients could send together. With
    more or fewer clients at a time, limits may matter that the log cannot show.

    Args:
        run: a run that has not begun.

    Returns:
        Text lines; none if there is nothing to warn of.
    """
    fitted = run.scenario.population.fitted_at_once
    if fitted is None or fitted == run.at_once:
        return []
    unknown = "own links that a shared one hid"
    if run.at_once > fitted:
        unknown = "whether a link that they share carries so much"
    return [
        f"links were fitted to {counted(fitted, 'client')} at a time, and {run.at_once} work here: the log "
        f"does not tell {unknown}"
    ]


def _tasks_s(
    run: Run, params: RoundParams, download_s: Floats, training_s: Floats, upload_s: Floats
) -> Floats:
    """Return the time (s) that a task of each device is expected to take; float64 [devices].

    A deadline limits the training (if ``params.bounds_training``) or else the whole task. The times
    in which messages are encoded and decoded are added.

    Args:
        run: the run.
        params: parameters of its strategy.
        download_s, training_s, upload_s: times (s) of each device's download, training and upload.
    """
    limit = params.first_deadline_s(run.strategy.setting.mean_epoch_s)
    if limit is not None and params.bounds_training:
        training_s = np.minimum(training_s, limit)
    task_s = download_s + training_s + upload_s
    if limit is not None and not params.bounds_training:
        task_s = np.minimum(task_s, limit)
    return task_s + run.dispatch.envelopes.down.model_s + run.dispatch.envelopes.up.model_s


def data_lines(run: Run) -> list[str]:
    """Return a text line on the samples that the run reads; no line if it reads no data."""
    if run.data is None:
        return []
    pool = run.data.pool
    # distinct samples, as several devices may have the same sample
    train = np.unique(np.concatenate([shard.train for shard in run.data.shards]))
    test = np.unique(np.concatenate([shard.test for shard in run.data.shards]))
    facts = [f"{len(train)} samples for training, {len(test)} for tests", _describe_sample(pool)]
    if pool.targets is not None:
        facts.append(f"targets are {pool.targets.dtype} of shape {pool.targets.shape[1:]}")
    if pool.labelled:
        trained = np.count_nonzero(np.bincount(pool.y[train], minlength=pool.classes))
        classes = f"{pool.classes} classes"
        if trained < pool.classes:
            classes += f", of which {pool.classes - trained} have no training sample"
        facts.append(classes)
    return [f"data: {'; '.join(facts)}"]


def _describe_sample(pool: "Pool") -> str:
    """Return a text on the form of a sample: a text of tokens, an image, or features."""
    if pool.vocabulary:
        return f"each is {pool.shape[0]} tokens of {pool.vocabulary}"
    if len(pool.shape) == 3:
        channels, height, width = pool.shape
        plural = "" if channels == 1 else "s"
        return (
            f"each is an image of {channels} channel{plural}, {height} x {width} pixels "
            f"({pool.x.dtype})"
        )
    return f"each has {' x '.join(map(str, pool.shape))} features ({pool.x.dtype})"


def _round_lines(run: Run, params: RoundParams, rounds: int, times: _EstimatedTimes) -> list[str]:
    """Return two text lines with estimates of the cost of a round, and of all rounds.

    Args:
        run: the run.
        params: parameters of its strategy.
        rounds: count of planned rounds.
        times: estimated times of the devices, or of a sample of them.
    """
    scenario = run.scenario
    learner = run.learner
    envelopes = run.dispatch.envelopes
    devices = scenario.population.trainable
    cohort = params.cohort_size(devices)
    tasks = cohort * params.turns  # each client does ``turns`` tasks in a row
    # passes over its data that each device makes in a training
    passes = run.population.passes(times.as_slice, params.local_epochs)
    # time: a round ends with its slowest client
    task_s = _tasks_s(run, params, times.download_s, passes * times.epoch_s, times.upload_s)
    round_s = expected_maximum(task_s, min(cohort, len(task_s))) * params.turns
    interval_s = round_s  # time between the begins of two rounds (s)
    if params.every is not None:  # rounds begin only at multiples of ``every`` (s)
        interval_s = math.ceil(round_s / params.every) * params.every
    # bytes: each task has a pair of a download and an upload, both with the trainer's state
    message_pairs = tasks
    if params.traits.at_edges:  # the edge servers exchange models with the server, too
        message_pairs += min(cohort, scenario.network.edge_servers)
    pair_bytes = envelopes.down.model_bytes + envelopes.up.model_bytes + 2 * learner.state_bytes
    traffic = message_pairs * pair_bytes
    # the frozen tensors go to each device once, in its first download
    base_bytes = learner.base_bytes * min(devices, rounds * message_pairs)
    # computation
    samples = run.samples[times.as_slice]
    batches_per_pass = []
    for device, count in zip(times.devices, samples.tolist(), strict=True):
        batches_per_pass.append(run.population.batching_of(device).count(count))
    steps = np.mean(passes * batches_per_pass) * tasks
    gigaflops = np.mean(passes * samples) * tasks * learner.flops_per_sample / 1e9
    return [
        f"a round asks {cohort}: at most {show_bytes(traffic)}, about {show_seconds(round_s)} "
        "of simulated time, "
        f"{steps:.0f} steps of SGD ({gigaflops:.3g} GFLOP)",
        f"{counted(rounds, 'round')}: at most {show_bytes(rounds * traffic + base_bytes)}, "
        f"about {show_seconds(rounds * interval_s)} of simulated time",
    ]


def expected_maximum(values: Floats, drawn: int) -> float:
    """Return the expected maximum of a sample drawn uniformly without replacement.

    The maximum is among the i smallest of the n values if all drawn values are among them. The
    probability of this is C(i, drawn) / C(n, drawn), where C(n, k) counts the ways to choose k of n
    values.

    Args:
        values: the values to draw from, float64 [n].
        drawn: size of the sample, 1 to n.
    """
    from scipy.special import gammaln

    n = len(values)
    i = np.arange(drawn, n + 1)
    # log(C(i, drawn) / C(n, drawn)) by log k! = gammaln(k + 1); drawn! cancels
    log_probability = gammaln(i + 1) - gammaln(i - drawn + 1)
    log_probability = log_probability - gammaln(n + 1) + gammaln(n - drawn + 1)
    probability_of_maximum = np.diff(np.exp(log_probability), prepend=0.0)
    return float(probability_of_maximum @ np.sort(values)[drawn - 1 :])


def _median_and_range(seconds: Floats) -> str:
    low = show_seconds(float(seconds.min()))
    middle = show_seconds(float(np.median(seconds)))
    high = show_seconds(float(seconds.max()))
    return f"{middle} (median; {low} to {high})"


class Beginning:
    """Trial: runs the beginning of a run, to measure what the whole run would cost on this machine.

    Args:
        scenario: scenario of the run.
        executor: executor that computes the learning.

    Attributes:
        run: the run, built without learning.
        tally: learner of the run, which counts trainings and tests.
        core: learning that trains and tests real models, to measure its time; None if
            ``learning = "off"``.
        workers: count of workers of the executor.
        build_s: real time (s) until the run could begin.
        real_s: real time (s) of the simulation and its records.
        share: part of the run that was tried, 0..1.
        simulated_s, rounds: simulated time (s) and rounds that the trial reached.
        events: count of records.
        growing_bytes: size on disk (bytes) of the tables of events, transfers and rounds, which
            grow with the run.
        fixed_bytes: size on disk (bytes) of the table of devices, which does not grow.
        stopped: the reason why the trial ended.
        saving: plans checkpoints; None if the run has no learning or cannot be resumed.
        models_after_rounds: count and size of the models that a checkpoint would contain after
            rounds 1, 2, 4, 8, ...
        resident_bytes: memory of the process (bytes) after trainings and tests.
        peak_bytes: peak memory of the process (bytes).
    """

    core: "Learning | None" = None
    saving: "PlannedSaving | None" = None
    real_s = 0.0
    share = 0.0
    simulated_s = 0.0
    rounds = 0
    events = 0
    growing_bytes = 0
    fixed_bytes = 0
    stopped = ""
    resident_bytes = 0
    peak_bytes = 0

    def __init__(self, scenario: "Scenario", executor: Executor) -> None:
        start = time.perf_counter()
        self.models_after_rounds: list[CheckpointedModels] = []
        # the tally counts trainings instead of carrying them out
        self.run = assemble(scenario, Simulation(executor=Inline()), Tally)
        assert isinstance(self.run.learner, Tally)
        self.tally = self.run.learner
        self.workers = executor.workers
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
            # a separate simulation, of which only the executor is used
            self.core = Learning(Simulation(executor=executor), *parts)
            self.run.check_sizes(self.core)
            self._plan_models()
        self.build_s = time.perf_counter() - start

    def _plan_models(self) -> None:
        """Prepare the trial to count memory and disk of models and checkpoints, without weights."""
        from fedsim.lab.planned_models import PlannedComputing, PlannedSaving  # loads torch

        scenario = self.run.scenario
        memory_bytes = scenario.training.memory or MEMORY_BYTES
        parameters = int(self.tally.parameters)
        self.tally.planned = PlannedComputing(parameters, memory_bytes, self.workers)
        if scenario.not_restorable is None:
            self.saving = PlannedSaving(scenario.checkpoint, self.run)

    def measure_present_models(self) -> "CheckpointedModels":
        """Return count and size of the models that a checkpoint of the trial would contain now."""
        from fedsim.lab.planned_models import CheckpointedModels

        trained_devices = {device for device, _ in self.tally.trainings}
        return CheckpointedModels.of(self.run, len(trained_devices))

    def _note_progress(self, record: Record) -> None:
        """Store how far the trial is and, after some rounds, count the models that exist.

        Args:
            record: the newest record of the run.
        """
        self.simulated_s = record.time
        if record.kind != "round":
            return
        self.rounds = record.fields["round"] + 1
        # models are measured rarely, as this takes long if there are many
        is_power_of_two = self.rounds & (self.rounds - 1) == 0
        if self.core is not None and is_power_of_two:
            self.run.simulation.between_instants(self._record_models)

    def _record_models(self) -> None:
        self.models_after_rounds.append(self.measure_present_models())

    @property
    def reason_without_round(self) -> str | None:
        """Reason why the run ended, if the trial reached the run's end and no round was finished.

        None if a round was finished, or if the trial stopped before the run's end.
        """
        return self.stopped if self.share == 1.0 and not self.rounds else None

    def go(self, patience_s: float) -> None:
        """Run the beginning of the run, and set attributes that describe it, such as ``real_s``.

        The tables of the run are written to a temporary folder.

        Args:
            patience_s: real time (s) after which the run is stopped. If no round has ended by
                then, the run is stopped at the end of its first round, and after 30 times
                ``patience_s`` at the latest.
        """
        with tempfile.TemporaryDirectory(prefix="fedsim-check-") as name:
            path = Path(name)
            simulation = self.run.simulation
            recorder = Recorder(path, self.run.meters)
            simulation.listen(recorder.take)
            start = time.perf_counter()

            def interrupt_in_time(record: Record) -> None:
                self._note_progress(record)
                limit_s = patience_s if self.rounds else _FIRST_ROUND_FACTOR * patience_s
                if time.perf_counter() - start >= limit_s:
                    simulation.interrupt()

            simulation.listen(interrupt_in_time)
            if self.saving is not None:
                simulation.listen(self.saving.watch)
            self.stopped = asyncio.run(simulation.run())
            recorder.close()
            self.real_s = time.perf_counter() - start
            self.events = recorder.fingerprint().count
            growing_tables = (files.EVENTS, files.TRANSFERS, files.ROUNDS)
            self.growing_bytes = sum((path / table).stat().st_size for table in growing_tables)
            parquet.write_devices(path, self.run.device_columns(), self.run.meters)
            self.fixed_bytes = (path / files.DEVICES).stat().st_size
        self.share = 1.0
        if self.stopped == "interrupted":
            self.share = share_done(self.run.scenario.stop, self.rounds, self.simulated_s)

    def steps_of(self, used: UsedTraining) -> int:
        """Return the count of SGD steps of a training.

        Args:
            used: the device's ID, and its training.
        """
        device, training = used
        samples = int(self.run.samples[device])
        return training.sgd_steps(samples, self.run.scenario.training.batching)

    async def costs(self, core: "Learning", patience_s: float) -> tuple[float, float]:
        """Measure the real time of SGD steps and of tests.

        For the steps, trainings between two tests in the middle of the trial are computed with real
        models. For the tests, the initial model is tested twice, because the first test takes
        longer.

        Args:
            core: learning that trains and tests real models.
            patience_s: real time (s) that the trainings may take. If the first test takes longer,
                there is no second test.

        Returns:
            Real time (s) of an SGD step of a single device, and of a test of the models.
        """
        # trainings in the middle of the trial are taken, as its first trainings may differ
        tests = max(1, self.tally.tests)
        per_test = max(1, round(len(self.tally.trainings) / tests))
        middle = tests // 2 * per_test
        between_tests = self.tally.trainings[middle : middle + per_test]
        if not between_tests:  # by the rounding, the slice may begin after the last training
            between_tests = self.tally.trainings[-per_test:]
        trainings = [training for training in between_tests if self.steps_of(training)]
        step_s = 0.0
        if trainings:
            step_s = await self._step_s(core, trainings, patience_s)
        model = core.initial()
        test_s = 0.0
        for _ in range(2):  # the first test also makes the test images, which later tests reuse
            start = time.perf_counter()
            await core.evaluate({"all": (model, None)})
            test_s = time.perf_counter() - start
            if test_s > patience_s:
                break
        return step_s, test_s

    async def _step_s(
        self, core: "Learning", trainings: list[UsedTraining], patience_s: float
    ) -> float:
        """Measure the real time (s) of an SGD step, by some trainings.

        Args:
            core: learning that trains and tests real models.
            trainings: the trainings to choose from, each with a device's ID. As many are computed
                as fit into ``patience_s``. If the first training takes longer, only a part of its
                steps is computed.
            patience_s: real time for the trainings (s).
        """
        first = trainings[:1]
        first_steps = self.steps_of(first[0])
        await _train_s(core, first, most_steps=1)  # warm-up: the first training does extra work
        pilot_steps = min(_PILOT_STEPS, first_steps)
        step_guess_s = await _train_s(core, first, pilot_steps) / pilot_steps
        most_steps = max(_PILOT_STEPS, int(patience_s / step_guess_s))
        if first_steps > most_steps:  # a single device takes longer than the patience
            return await _train_s(core, first, most_steps) / most_steps
        total_steps = np.cumsum([self.steps_of(training) for training in trainings])
        fitting = int(np.searchsorted(total_steps * step_guess_s, patience_s, side="right"))
        count = max(1, fitting)
        real_s = await _train_s(core, trainings[:count], most_steps=None)
        return real_s / float(total_steps[count - 1])


async def _train_s(
    core: "Learning", trainings: list[UsedTraining], most_steps: int | None
) -> float:
    """Compute trainings that start from the initial model, and return the real time of all (s).

    Args:
        core: learning that trains and tests real models.
        trainings: pairs of a device ID and a training.
        most_steps: count of SGD steps to make in each training; None for whole trainings.
    """
    model = core.initial()
    await core.value(model)
    start = time.perf_counter()
    updates = []
    for number, (device, training) in enumerate(trainings):
        # the trial has noted trainings without the models from which they start
        training = replace(training, start=model)
        if training.contrast is not None:
            training = replace(training, contrast=replace(training.contrast, previous=model))
        if most_steps is not None:
            training = replace(training, amount=LocalSteps(most_steps))
        updates.append(core.train(training, device, key=number))
    await core.values(updates)
    return time.perf_counter() - start


def forecast(trial: Beginning, patience_s: float = PATIENCE_S) -> dict[str, float]:
    """Carry out the beginning of a run, and extrapolate its cost to the whole run.

    Checkpoints are not counted, nor a strategy's computations besides training, such as a
    clustering.

    Args:
        trial: a trial of the run's beginning that has been built and not begun.
        patience_s: real time (s) for each part of the trial.

    Returns:
        Real times ``simulation_s``, ``training_s`` and ``testing_s`` (s), the numbers of
        ``events``, ``trained_steps`` and ``tests``, and the size ``records_bytes`` of the tables.
    """
    trial.go(patience_s)
    run = trial.run
    scenario = run.scenario
    factor = 1 / trial.share if trial.share else 0.0  # length of the whole run over the trial's
    step_s = 0.0
    test_s = 0.0
    if trial.core is not None:
        step_s, test_s = asyncio.run(trial.costs(trial.core, patience_s))
    gc.collect()
    trial.peak_bytes = peak_memory()
    trial.resident_bytes = trial.peak_bytes
    if trial.core is not None:  # the memory of trainings is freed by now, and counted separately
        trial.resident_bytes = resident_memory()
    tests = factor * trial.tally.tests
    steps = factor * sum(map(trial.steps_of, trial.tally.trainings))
    # a trial may end before the first test; then the scenario tells the count of tests
    if trial.share < 1.0 and scenario.stop.rounds is not None:
        tests = max(tests, scenario.evaluation.tests(scenario.stop.rounds))
    return {
        "simulation_s": trial.real_s * factor,
        "training_s": steps * step_s,
        "testing_s": tests * test_s,
        "events": trial.events * factor,
        "trained_steps": steps,
        "tests": tests,
        "records_bytes": trial.growing_bytes * factor + trial.fixed_bytes,
    }
