"""Peak memory and disk of a run, by the part of the scenario that needs them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fedsim.common.round_words import counted
from fedsim.common.units import show_bytes
from fedsim.lab.tally import LargestCall
from fedsim.learning.data.federated import FederatedData
from fedsim.learning.scratch import MEMORY_BYTES
from fedsim.learning.streaming import WAITING
from fedsim.running.assembly import Run
from fedsim.running.checkpoint import CheckpointSpec
from fedsim.running.checkpoint.apart import LEAST_BYTES

if TYPE_CHECKING:
    from fedsim.lab.forecast import Beginning
    from fedsim.lab.planned_models import CheckpointedModels

_LEAST_SHARE = 0.01  # least share of all memory at which a need is listed
# memory of a sum of models, in sizes of a model: its start, its accumulator in float64 (two), and
# its result
_MODELS_PER_SUM = 4
# memory that a function of all updates needs for each update, in sizes of a model: two copies of
# the update, and the order of the updates
_MODELS_PER_UPDATE = 3
_SAVES = 3  # checkpoints on disk while one is written: that one and the two before it


@dataclass(frozen=True)
class Need:
    """Memory and disk that a run needs, at the most, for one part of its scenario.

    Attributes:
        part: the part, such as ``personal models``.
        key: the key of the scenario on which it depends; "" if there is none.
        memory_bytes: memory (bytes).
        disk_bytes: size in the run folder (bytes).
        scratch_bytes: size in the folder for temporary files (bytes).
    """

    part: str
    key: str
    memory_bytes: float = 0.0
    disk_bytes: float = 0.0
    scratch_bytes: float = 0.0


class ModelCounts(NamedTuple):
    """Counts and sizes of a whole run's models, predicted from a trial of the run's beginning.

    Attributes:
        final_models: count of models that the run saves at its end.
        alive_bytes: size of the models that a checkpoint holds at the end (bytes).
        of_devices_bytes: part of ``alive_bytes`` that grows with the count of devices that have
            trained (bytes).
        memory_bytes: greatest size of the stored models in memory (bytes).
        scratch_bytes: greatest size of the temporary file with models (bytes).
        saved_bytes: greatest size of all checkpoints at a time (bytes); None if the trial had too
            few checkpoints to tell.
        kept_bytes: size of the checkpoints that the run keeps (bytes); None if the trial had too
            few checkpoints to tell.
        sent_states: count of the optimiser states that are stored with ``training.state = "sent"``:
            one for each model that exists at the end of the trial.
    """

    final_models: int
    alive_bytes: float
    of_devices_bytes: float
    memory_bytes: float
    scratch_bytes: float
    saved_bytes: float | None
    kept_bytes: float | None
    sent_states: int


def count_models(trial: "Beginning") -> ModelCounts:
    """Predict the count and sizes of models in a whole run, from a trial of its beginning.

    Args:
        trial: a trial of the run's beginning, which has ended.
    """
    run = trial.run
    devices = run.scenario.population.devices
    # first the counts and sizes at the end of the trial
    final_models = _plan_final_models(trial)
    present = trial.measure_present_models()
    of_devices_bytes = _growth_bytes(trial, present, final_models)
    # until the run's end, models of devices grow in proportion to the trained devices
    growth = _trained_growth(trial, present.trained)
    if growth is not None and final_models > 1:
        final_models = min(devices + 1, round(final_models * growth))
    declared = run.scenario.strategy.final_models(devices)
    if declared is not None:  # the strategy knows the count
        final_models = declared
    more_bytes = of_devices_bytes * ((growth or 1.0) - 1.0)
    memory_bytes, scratch_bytes = _split_storage(trial, more_bytes)
    saved_bytes, kept_bytes = _checkpoint_sizes(trial, more_bytes)
    return ModelCounts(
        final_models=final_models,
        alive_bytes=present.bytes + more_bytes,
        of_devices_bytes=of_devices_bytes * (growth or 1.0),
        memory_bytes=memory_bytes,
        scratch_bytes=scratch_bytes,
        saved_bytes=saved_bytes,
        kept_bytes=kept_bytes,
        sent_states=present.refs,
    )


def _plan_final_models(trial: "Beginning") -> int:
    """Let the trial make the models that the run writes at its end, and return their count.

    The models have no weights; they are made to count their memory. No reference to a model
    outlives the call, so that models without a further use are freed.
    """
    models = trial.run.strategy.models()
    if trial.rounds:
        trial.tally.plan([ref for ref, _ in models.values()])
    return len(models)


def _trained_growth(trial: "Beginning", trained: int) -> float | None:
    """Estimate by which factor the count of trained devices grows until the run's end.

    The devices of all trainings are taken to be drawn at random.

    Args:
        trial: a trial of the run's beginning, which has ended.
        trained: count of the devices that were trained in it.

    Returns:
        The factor, at least 1; None if the trial was the whole run, or trained no device.
    """
    if trial.share == 1.0 or not trained:
        return None
    devices = trial.run.scenario.population.devices
    trainings = len(trial.tally.trainings) / trial.share
    # t random trainings reach n (1 - exp(-t / n)) of n devices
    trained_at_end = -devices * math.expm1(-trainings / devices)
    return max(1.0, trained_at_end / trained)


def _split_storage(trial: "Beginning", more_bytes: float) -> tuple[float, float]:
    """Predict the greatest sizes (bytes) of a run's models in memory and in the temporary file.

    The temporary file stores the models that do not fit into the memory for models.

    Args:
        trial: a trial of the run's beginning, which has ended.
        more_bytes: size of the models that are added after the trial (bytes).
    """
    planned = trial.tally.planned
    assert planned is not None
    if not more_bytes:
        return float(planned.scratch.most_used_bytes), float(planned.scratch.peak_bytes)
    all_bytes = planned.scratch.most_held_bytes + more_bytes
    model_bytes = trial.run.learner.bytes
    whole_models = planned.memory_bytes // model_bytes
    memory_bytes = min(all_bytes, model_bytes * whole_models)
    return memory_bytes, all_bytes - memory_bytes


def _checkpoint_sizes(trial: "Beginning", more_bytes: float) -> tuple[float | None, float | None]:
    """Return the size of a run's checkpoints (bytes): the greatest at a time, and at the end.

    Both sizes are measured in the trial. They are None if the sizes of the whole run may differ,
    because the trial saved too few checkpoints, or models are added after the trial.

    Args:
        trial: a trial of the run's beginning, which has ended.
        more_bytes: size of the models that are added after the trial (bytes).
    """
    if trial.saving is None:
        return None, None
    links = trial.saving.links
    if trial.share == 1.0 or (links.saves >= _SAVES and not more_bytes):
        return links.peak_bytes, links.end_bytes
    return None, None


def _growth_bytes(trial: "Beginning", present: "CheckpointedModels", final_models: int) -> float:
    """Estimate the size of the present models that belong to single devices (bytes).

    Their size grows with the count of devices that have trained. The growth is measured between an
    earlier instant of the trial and its end. If there is no earlier instant, and there are several
    final models, each trained device is assumed to have one.

    Args:
        trial: a trial of the run's beginning, which has ended.
        present: the models that a checkpoint would contain now.
        final_models: count of models that the strategy has at the end of the trial.
    """
    for earlier in trial.models_after_rounds:
        if 0 < earlier.trained < present.trained:
            slope = (present.bytes - earlier.bytes) / (present.trained - earlier.trained)
            return max(0.0, slope * present.trained)
    if trial.share < 1.0 and final_models > 1:
        return min(present.bytes, trial.run.learner.bytes * present.trained)
    return 0.0


def data_need(data: FederatedData | None) -> Need:
    """Return the memory that data need: all samples, and the lists of each device's samples.

    Args:
        data: the data of all devices; None if the run reads none.
    """
    size = 0
    if data is not None:
        arrays = [data.pool.x, data.pool.y, data.pool.targets]
        for shard in data.shards:
            arrays += [shard.train, shard.test]
        size = sum(array.nbytes for array in arrays if array is not None)
    return Need("data", "data.source", float(size))


def model_needs(
    run: Run, counts: ModelCounts, largest_call: LargestCall, workers: int
) -> list[Need]:
    """Return the memory and temporary disk space that the models of a run need.

    Args:
        run: the run.
        counts: predicted counts and sizes of the models of the whole run.
        largest_call: function call that combines the most models.
        workers: count of workers.
    """
    model_bytes = run.learner.bytes
    results_bytes = WAITING * workers * model_bytes  # results in progress, or not yet used
    round_bytes = _MODELS_PER_SUM * model_bytes + results_bytes
    round_bytes += _MODELS_PER_UPDATE * _updates_in_memory(run, largest_call) * model_bytes
    part = "models that are in use"
    tested_bytes = 0.0
    if counts.final_models > 1:  # such as a model of each device
        part = "personal models"
        most_bytes = max(_memory_for_models(run), results_bytes)
        tested_bytes = min(counts.final_models * model_bytes, most_bytes)
    return [
        Need(
            part,
            "training.memory",
            memory_bytes=counts.memory_bytes,
            scratch_bytes=counts.scratch_bytes,
        ),
        Need("sums and results of a round", "strategy", round_bytes),
        Need("tests of personal models", "evaluation", tested_bytes),
        _cosines_need(run),
        _state_need(run, counts),
    ]


def _memory_for_models(run: Run) -> float:
    """Return the memory in which a run stores models; models beyond it are in a file (bytes)."""
    return run.scenario.training.memory or MEMORY_BYTES


def _updates_in_memory(run: Run, largest_call: LargestCall) -> int:
    """Return how many updates of a round are in memory in addition to the memory for models.

    The count is 0 if a round's updates fit into the memory for models, or are summed one by one.
    """
    cohort = run.at_once
    if run.learner.bytes * cohort <= _memory_for_models(run):
        return 0
    if not why_single_updates(run) and largest_call.models < cohort:
        return 0
    return max(cohort, largest_call.models)


def _cosines_need(run: Run) -> Need:
    """Return the memory for computing the cosines between the updates of a round.

    It is 0 unless ``evaluation.cosines`` is on. The updates are in memory twice, in float64.
    """
    memory_bytes = 0.0
    if run.scenario.evaluation.cosines:
        float64_bytes = 2 * run.learner.bytes
        memory_bytes = 2 * float64_bytes * run.at_once
    return Need("cosines between the updates of a round", "evaluation.cosines", memory_bytes)


def _state_need(run: Run, counts: ModelCounts) -> Need:
    """Return the memory for states of optimisers, such as momentum, that are kept between rounds.

    Args:
        run: the run.
        counts: predicted counts and sizes of the models of the whole run.
    """
    training = run.scenario.training
    holders = 0
    if training.state == "kept":
        holders = run.scenario.population.devices
    elif training.state == "sent":
        holders = counts.sent_states + run.at_once
    numbers = 0
    if holders:
        numbers = training.state_numbers({"": (int(run.learner.parameters),)})
    return Need("states of optimisers", "training.state", 4.0 * numbers * holders)


def saved_needs(run: Run, counts: ModelCounts, rounds: float) -> list[Need]:
    """Return the disk space that saved models and checkpoints need in the run folder.

    Args:
        run: the run.
        counts: predicted counts and sizes of the models of the whole run.
        rounds: count of rounds of the whole run.
    """
    scenario = run.scenario
    models_bytes = counts.final_models * run.learner.bytes
    best_bytes = models_bytes if scenario.evaluation.keep_best else 0.0
    checkpoints_bytes = counts.saved_bytes
    if checkpoints_bytes is None:
        checkpoints_bytes = _checkpoints_bytes(run, counts, rounds)
    return [
        Need("checkpoints", "checkpoint", disk_bytes=checkpoints_bytes),
        Need("final models", "strategy", disk_bytes=models_bytes),
        Need("best models", "evaluation.keep_best", disk_bytes=best_bytes),
    ]


def _checkpoints_bytes(run: Run, counts: ModelCounts, rounds: float) -> float:
    """Estimate the greatest size of all checkpoints at a time, if the trial saw too few (bytes).

    Args:
        run: the run.
        counts: predicted counts and sizes of the models of the whole run.
        rounds: count of rounds of the whole run.
    """
    scenario = run.scenario
    all_saves = _count_saves(scenario.checkpoint, rounds, scenario.stop.simulated_time)
    saves = min(_SAVES, all_saves)
    if not saves:
        return 0.0
    changed_bytes = counts.alive_bytes
    if run.learner.bytes >= LEAST_BYTES:
        # checkpoints share the files of models that have not changed
        devices = scenario.population.devices
        trained_share = 1.0
        if run.at_once < devices:
            # t random trainings between two checkpoints reach 1 - exp(-t / n) of n devices
            trained_share = -math.expm1(-run.at_once * rounds / all_saves / devices)
        changed_bytes -= (1.0 - trained_share) * counts.of_devices_bytes
    return counts.alive_bytes + (saves - 1) * changed_bytes


def _count_saves(spec: CheckpointSpec, rounds: float, end_s: float | None) -> int:
    """Return how often a run saves checkpoints.

    Args:
        spec: the keys of ``[checkpoint]``.
        rounds: count of the run's rounds.
        end_s: simulated time of the run's end (s); None if it is unknown.
    """
    saves = int(spec.last)
    if spec.rounds is not None:
        saves += int(rounds // spec.rounds)
    if spec.time is not None:
        saves += _SAVES if end_s is None else int(end_s // spec.time)
    return saves


def need_lines(needs: Sequence[Need]) -> list[str]:
    """Return text lines on memory, run folder and temporary files: which parts need most of each.

    Args:
        needs: memory and disk by part of the scenario.
    """
    lines = []
    storages: dict[str, Callable[[Need], float]] = {
        "memory": lambda need: need.memory_bytes,
        "the run folder": lambda need: need.disk_bytes,
        "the folder for temporary files (TMPDIR)": lambda need: need.scratch_bytes,
    }
    for storage, size_of in storages.items():
        least_bytes = _LEAST_SHARE * sum(map(size_of, needs))  # smaller parts are left out
        parts = []
        for need in sorted(needs, key=size_of, reverse=True):
            size = size_of(need)
            if size > least_bytes:
                key = f" ({need.key})" if need.key else ""
                parts.append(f"{show_bytes(size)} {need.part}{key}")
        if parts:
            lines.append(f"of {storage}: {', '.join(parts)}")
    return lines


def updates_in_memory_lines(run: Run, largest_call: LargestCall) -> list[str]:
    """Return a text line for the user if a round needs all its updates in memory at once.

    The line states how many updates that are, and why: which part of the scenario needs them, or
    which function of the strategy takes them together.

    Args:
        run: the run.
        largest_call: function call that combines the most models.

    Returns:
        The line in a list; an empty list if updates are not all needed, or fit into the memory for
        models.
    """
    updates = _updates_in_memory(run, largest_call)
    if not updates:
        return []
    reason = why_single_updates(run)
    if not reason:
        models = counted(largest_call.models, "model")
        reason = f"{largest_call.function} takes {models} together"
    return [f"a round has {counted(updates, 'update')} in memory at once: {reason}"]


def unforeseen_lines(run: Run) -> list[str]:
    """Return a text line with the reason why models may turn out larger or smaller than predicted.

    Sizes of models are predicted from a trial, in which the beginning of the run is carried out
    without weights. Some strategies decide by weights which models they make, such as models of
    groups. The trial lacks these models. Such a strategy declares the reason.

    Args:
        run: the run.

    Returns:
        The line in a list; an empty list if the strategy declares no reason.
    """
    reason = run.scenario.strategy.unforeseen
    return [f"sizes of models are of a trial without weights, in which {reason}"] if reason else []


def why_single_updates(run: Run) -> str:
    """Return why the server needs single updates of a round, not only their sum, as text.

    Aggregation, selection and strategy may declare a reason. If several do, the first in this order
    counts. Only the first clause of the reason is returned; an empty text if there is none.
    """
    params = run.scenario.strategy
    aggregation = params.aggregated_by
    reason = None if aggregation is None else aggregation.why_single_updates
    if not reason and params.selected_by is not None:
        reason = params.selected_by.why_single_updates
    reason = reason or params.why_not.sum_alone or ""
    return reason.partition(";")[0]
