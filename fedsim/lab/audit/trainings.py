"""Checks that trainings had the scenario's epochs, and lasted as samples and speed imply."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from fedsim.common.arrays import Floats
from fedsim.common.streams import Streams
from fedsim.common.training import Batching, LocalEpochs, LocalSteps, Training
from fedsim.common.units import TICK_S
from fedsim.lab.audit.evidence import Evidence, TomlTable
from fedsim.lab.audit.frames import NOTHING, report_rows, values_at_rows
from fedsim.lab.audit.strategies import (
    FULL_BATCHES,
    LONGER_EPOCHS,
    PLAIN_EPOCHS,
    SGD_STEPS,
    UNEVEN_EPOCHS,
)

_ROUNDING = 1e-6


def check_epoch_ends(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each training whose count of epochs contradicts the epochs' ends.

    The recorded ends of epochs (s) have to be in order, within the training, and at most as many
    as the epochs for which the client was asked. The count of epochs has to be the count of ends,
    or 0 if the update contains no epoch, for example because the training was cut off.
    """
    trainings = evidence.trainings
    count = trainings["epoch_ends"].map(len)
    epochs = trainings["epochs"]
    # a row per epoch, with the index of its training
    ends = trainings["epoch_ends"].explode().dropna().astype(np.float64)
    previous = ends.groupby(level=0).shift().fillna(trainings["start"])
    in_order = (previous <= ends) & (ends <= trainings["time"].reindex(ends.index))
    has_all = (epochs == count) | (epochs == 0)
    is_possible = has_all & (count <= trainings["requested"]) & (epochs >= 0)
    template = (
        "task {task} trained {epochs:g} of {requested:g} epochs, which are said to end at "
        "{epoch_ends}"
    )
    wrong = ~is_possible | trainings.index.isin(ends.index[~in_order])
    yield from report_rows(template, trainings, wrong)


def check_requested_epochs(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each training whose requested count of epochs is not the scenario's.

    Only strategies that always ask for ``local_epochs`` are checked, and only trainings in rounds:
    profiling before a selection may have another count.
    """
    strategy = evidence.run.scenario["strategy"]
    if strategy["kind"] not in PLAIN_EPOCHS:
        return
    trainings = evidence.trainings
    of_rounds = evidence.events["round"].loc[trainings.index] != NOTHING
    trainings = trainings[of_rounds]
    expected = np.full(len(trainings), float(strategy["local_epochs"]))
    epochs = _local_setting(evidence, "local_epochs", trainings)
    steps = _local_setting(evidence, "local_steps", trainings)
    expected = np.where(np.isnan(epochs), expected, epochs)
    # a device with a set count of SGD steps is asked for one epoch
    expected = np.where(np.isnan(steps), expected, 1.0)
    trainings = trainings.assign(expected=expected)
    template = "task {task} was asked for {requested:g} epochs, by the scenario for {expected:g}"
    yield from report_rows(template, trainings, trainings["requested"] != trainings["expected"])


def check_trained_layers(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each training that trained only the last layers, if that was not allowed.

    The scenario may allow it for devices with too little memory (``fewer-layers``).
    """
    trainings = evidence.trainings
    layers = trainings["layers"]
    is_possible = (layers >= 1) & (layers % 1 == 0)
    rule = evidence.run.scenario["population"].get("short_of_memory")
    if rule != "fewer-layers":
        is_possible &= False
    template = "task {task} trained its last {layers:g} layers, which the scenario does not allow"
    yield from report_rows(template, trainings, layers.notna() & ~is_possible)


def check_durations(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each device whose last training had a wrong duration.

    The expected duration of an epoch is the count of samples over the device's speed, times a
    random factor (jitter) that is drawn at the epoch's begin.

    - If devices have slow phases, in which their speed has a factor below 1, a training may take up
      to 1 / factor as long.
    - The cost of an epoch is unknown to the check if it is computed from the model's operations, or
      if the strategy does more in an epoch than train on the samples (MOON). The median ratio of
      measured and expected durations is then taken as a factor of all expected durations. With
      slow phases in addition, nothing is checked.
    """
    scenario = evidence.run.scenario
    population = scenario["population"]
    if not _follows_from_speed(scenario):
        return
    trainings = _last_trainings(evidence)
    devices = evidence.devices
    rows = evidence.row_of(trainings["device"])
    samples = values_at_rows(devices["samples"], rows) * _passes_per_epoch(evidence, trainings)
    epoch_s = samples / values_at_rows(devices["speed"], rows)
    jitter = _EpochJitter(Streams(scenario["seed"]), population["jitter"]["value"])
    ratios = np.empty(len(trainings))
    for index, training in enumerate(trainings.itertuples()):
        ratios[index] = _duration_ratio(training, epoch_s[index], jitter)
    slow_factor = population.get("slow_phases", {"factor": 1.0})["factor"]
    usual = 1.0  # the ratio of a training without slow phases
    slack = _ROUNDING
    if "reference_flops" in population or scenario["strategy"]["kind"] in LONGER_EPOCHS:
        usual = _median_ratio(ratios, slow_factor)
        if usual != 1.0:  # an estimate from the trainings, so more tolerance
            slack = 1e-4
    least = usual * (1 - slack)
    # a slow phase multiplies the speed by a factor of at most 1, which lengthens the training
    most = usual / slow_factor * (1 + slack)
    # comparisons with NaN are false: an unknown ratio is not wrong
    wrong = (ratios < least) | (ratios > most)
    template = (
        "device {device}: its last training took {ratio:.6g} times as long as its samples over its "
        "speed"
    )
    yield from report_rows(template, trainings.assign(ratio=ratios / usual), wrong)


def _local_setting(evidence: Evidence, name: str, trainings: pd.DataFrame) -> Floats:
    """Return each training's value of a setting that may differ by device, such as epochs.

    The scenario's section ``population.local`` gives devices such settings.

    Args:
        evidence: the run folder.
        name: column of ``devices.parquet`` with the setting.
        trainings: rows of ``Evidence.trainings``.

    Returns:
        Values, NaN if the run has no such column; float64 [trainings].
    """
    if name not in evidence.devices:
        return np.full(len(trainings), np.nan)
    return values_at_rows(evidence.devices[name], evidence.row_of(trainings["device"]))


def _passes_per_epoch(evidence: Evidence, trainings: pd.DataFrame) -> Floats:
    """Return how many passes over a device's samples an epoch of each training makes.

    An epoch is one pass, or slightly less if its incomplete last batch is dropped. A training of a
    fixed count of SGD steps counts as one epoch, which may be any fraction or multiple of a pass.

    Args:
        evidence: the run folder.
        trainings: rows of ``Evidence.trainings``.

    Returns:
        Counts of passes; float64 [trainings].
    """
    scenario = evidence.run.scenario
    strategy = scenario["strategy"]
    training = scenario["training"]
    strategy_steps = strategy.get(SGD_STEPS.get(strategy["kind"], ""))
    # settings of single devices; NaN for a device without such a setting
    own_steps = _local_setting(evidence, "local_steps", trainings)
    own_sizes = _local_setting(evidence, "batch_size", trainings)
    samples = values_at_rows(evidence.devices["samples"], evidence.row_of(trainings["device"]))
    passes = np.ones(len(trainings))
    for row, sample_count in enumerate(samples.tolist()):
        steps = strategy_steps if math.isnan(own_steps[row]) else int(own_steps[row])
        amount = LocalEpochs(1) if steps is None else LocalSteps(steps)
        size = training["batch_size"] if math.isnan(own_sizes[row]) else int(own_sizes[row])
        batching = Batching(size, training["last_batch"])
        samples_per_epoch = Training(None, amount).samples_an_epoch(int(sample_count), batching)
        passes[row] = samples_per_epoch / sample_count
    return passes


def _follows_from_speed(scenario: TomlTable) -> bool:
    """Whether durations of trainings follow from the samples, speeds and jitter of a scenario.

    They do not, for example, if a user's own trainer may stop early.
    """
    population = scenario["population"]
    strategy = scenario["strategy"]
    if "device" in population:
        return False
    if population.get("capacity", {}).get("kind", "fedscale") != "fedscale":
        return False
    if strategy["kind"] in UNEVEN_EPOCHS or strategy.get("local_steps"):
        return False
    if "steps" in strategy.get("moment", {}):  # a warm-up counted in SGD steps, not in epochs
        return False
    if strategy["kind"] in FULL_BATCHES and scenario["training"]["last_batch"] == "drop":
        return False
    # a user's own trainer may stop early
    if ":" in strategy["kind"] or ":" in scenario.get("training", {}).get("kind", ""):
        return False
    return bool(population["jitter"]["kind"] == "constant")


def _last_trainings(evidence: Evidence) -> pd.DataFrame:
    """Return each device's last training, if its duration can be compared with the device's speed.

    Trainings without an ended epoch, or on a part of the samples, do not count. The last training
    has to begin after the last shift of the device's data. Devices that a process slowed down are
    left out.

    Returns:
        Rows of ``Evidence.trainings``, sorted by device.
    """
    events = evidence.events
    trainings = evidence.trainings
    trainings = trainings[trainings["epoch_ends"].map(bool) & ~trainings["is_partial"]]
    trainings = trainings.drop_duplicates("device", keep="last").sort_values("device")
    shifts = events[events["kind"] == "shift"].groupby("device")["time"].last()
    last_shift = shifts.reindex(trainings["device"]).fillna(-1.0)
    is_after = trainings["start"].to_numpy() > last_shift.to_numpy()
    is_paced = trainings["device"].isin(events["device"][events["kind"] == "pace"])
    return trainings[is_after & ~is_paced.to_numpy()]


class _EpochJitter:
    """Random factors on the duration of epochs, drawn again as the run has drawn them.

    A factor is lognormal with mean 1, and depends on the device and on the begin of the epoch.

    Args:
        streams: the scenario's random streams.
        variation: coefficient of variation of the factors.
    """

    def __init__(self, streams: Streams, variation: float) -> None:
        self._streams = streams
        self._sigma = math.sqrt(math.log1p(variation**2))

    def sum_of_epochs(self, device: int, begins: list[float]) -> float:
        """Return the sum of the random factors on the duration of a device's epochs.

        Args:
            device: device ID.
            begins: begins of the epochs (s); factors are drawn by device and begin.
        """
        if not self._sigma:
            return len(begins)
        factors = []
        for time in begins:
            normal = self._streams.normal("world/jitter", device, int(time / TICK_S))
            factors.append(math.exp(self._sigma * normal - self._sigma**2 / 2))
        return math.fsum(factors)


def _duration_ratio(training: Any, epoch_s: float, jitter: _EpochJitter) -> float:
    """Return the ratio of the duration of a training's finished epochs to the expected duration.

    Args:
        training: row of ``Evidence.trainings``.
        epoch_s: expected duration of an epoch, by samples and speed (s).
        jitter: random factors on the expected durations.

    Returns:
        The ratio; NaN if the expected duration is 0 or infinite, if the epochs took too few clock
        ticks, or if the core time on a shared host includes an epoch that was cut off.
    """
    times = [training.start, *training.epoch_ends]
    epoch_starts = times[:-1]
    last_end = times[-1]
    seconds = last_end - training.start
    is_on_shared_host = not math.isnan(training.core_s)
    if is_on_shared_host:  # the core time counts, which is recorded only for a whole training
        is_whole = last_end == training.time
        seconds = training.core_s if is_whole else math.nan
    shortest_s = 1e4 * TICK_S * len(training.epoch_ends)  # shorter times are too coarse to compare
    is_comparable = 0 < epoch_s < math.inf and seconds > shortest_s  # False for NaN
    if not is_comparable:
        return math.nan
    return float(seconds / (epoch_s * jitter.sum_of_epochs(training.device, epoch_starts)))


def _median_ratio(ratios: Floats, slow_factor: float) -> float:
    """Return the median ratio of a training's duration to the duration that its speed implies.

    NaN if devices have slow phases, or if all ratios are NaN.

    Args:
        ratios: ratio of each training; float64 [trainings].
        slow_factor: factor on the speed in slow phases; 1 if there are none.
    """
    if slow_factor != 1.0 or np.isnan(ratios).all():
        return math.nan
    return float(np.nanmedian(ratios))
