"""Forecast of what a study, or each of its shards, costs on this machine.

For some variants, the beginning of a run is carried out and measured, as ``fedsim check`` does for
a scenario. The cost of other runs is in proportion to their predicted work
(``shards.predicted_work``). Times are for a machine with nothing else to do.
"""

import gc
import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from fedsim.clock.executors import Inline
from fedsim.clock.worker_process import start
from fedsim.common.errors import DataError
from fedsim.common.machine import peak_memory
from fedsim.common.round_words import counted
from fedsim.common.units import show_bytes, show_seconds
from fedsim.lab.forecast import load_learning
from fedsim.lab.study.plan import PlannedRun
from fedsim.lab.study.shards import StudyShard, deal, predicted_work
from fedsim.lab.whole_forecast import CostHere, forecast_whole

_MOST_TRIED = 24  # greatest count of variants whose beginning is tried
_TRIAL_S = 0.5  # real time (s) for each part of a trial


@dataclass(frozen=True)
class RunCost:
    """Predicted cost of carrying out one run of a study.

    Attributes:
        real_s: real time (s).
        memory_bytes: peak memory of the worker process (bytes).
        disk_bytes: size of the run folder (bytes).
    """

    real_s: float
    memory_bytes: int
    disk_bytes: float


@dataclass(frozen=True)
class ShareCost:
    """Predicted cost of the runs of a study that one process carries out with its workers.

    Attributes:
        runs: count of the runs that are not done.
        untold: count of the runs among these whose cost could not be predicted. The other
            attributes do not include their cost.
        real_s: real time until the last run has ended (s).
        worker_s: sum of the real times of all workers (s).
        memory_bytes: peak memory of all processes together (bytes).
        disk_bytes: size of the run folders (bytes).
    """

    runs: int
    untold: int
    real_s: float
    worker_s: float
    memory_bytes: int
    disk_bytes: float


@dataclass(frozen=True)
class StudyForecast:
    """Predicted real time, memory and disk space of a study, or of each of its shards.

    A shard is the part of the runs that one call of ``fedsim study`` carries out, perhaps on another
    machine.

    Attributes:
        shares: cost of each shard, in their order; a study without shards has one entry.
        workers: count of worker processes of each shard.
        tried: count of the variants of which the beginning of one run was carried out, to measure
            its cost. The cost of other variants is derived from these.
        variants: count of the variants that have runs to do.
        start_s: real time that a worker process needs to start (s).
    """

    shares: list[ShareCost]
    workers: int
    tried: int
    variants: int
    start_s: float


def forecast_study(
    runs: Sequence[PlannedRun],
    is_done: Callable[[PlannedRun], bool],
    shards: int,
    workers: int,
) -> StudyForecast:
    """Carry out the beginnings of some runs here, and predict the cost of each shard of a study.

    Args:
        runs: the selected runs of the study, of all shards, in the study's order.
        is_done: whether a run is done, so that it costs nothing.
        shards: count of shards, to which the runs are dealt out.
        workers: count of workers of each shard.

    Raises:
        ScenarioError: a scenario is invalid.
        DataError: the data of a scenario cannot be read.
    """
    undone_runs = [run for run in runs if not is_done(run)]
    first_runs: dict[str, PlannedRun] = {}  # folder of a variant -> its first missing run
    for run in undone_runs:
        first_runs.setdefault(run.variant.folder, run)
    tried = _spread(list(first_runs.values()), _MOST_TRIED)  # one run of each of these variants
    own_bytes = peak_memory()  # this process stays in memory while its workers run
    start_s = _measure_start() if tried else 0.0
    costs = {run.variant.folder: _try_beginning(run) for run in tried}
    model = _CostModel(tried, costs)
    shares = []
    for shard_runs in deal(runs, shards):
        undone_of_shard = [run for run in shard_runs if not is_done(run)]
        cost = _cost_of_share(undone_of_shard, model.cost, workers, start_s)
        shares.append(replace(cost, memory_bytes=cost.memory_bytes + own_bytes))
    return StudyForecast(shares, workers, len(tried), len(first_runs), start_s)


def _spread(runs: list[PlannedRun], most: int) -> list[PlannedRun]:
    """Return at most ``most`` of the runs, spread evenly over the list."""
    if len(runs) <= most:
        return runs
    indices = [position * len(runs) // most for position in range(most)]
    return [runs[index] for index in indices]


def _measure_start() -> float:
    """Measure the real time (s) in which a worker process starts and imports all that it needs."""
    start_time = time.perf_counter()
    start("fedsim.lab.study.costs", "load_worker").wait()
    return time.perf_counter() - start_time


def load_worker() -> None:
    """Import all modules that a worker process needs.

    A process that only calls this function shows how long a worker takes to start.
    """
    import fedsim.lab.study.worker  # noqa: F401

    load_learning()


def _try_beginning(run: PlannedRun) -> CostHere | None:
    """Run the beginning of a run, and return the predicted cost of the whole run on this machine.

    Returns None if no round ended within the trial. Raises ``DataError`` if the run's data cannot
    be read.
    """
    if run.scenario.learning == "on":
        load_learning()  # loaded now, so that loading takes no time of the trial
    try:
        cost = forecast_whole(run.scenario, Inline(), _TRIAL_S).cost
    except DataError as error:
        hint = "; --no-trial lists the runs without their cost"
        raise DataError(f"variant {run.variant.label!r}: {error}{hint}") from None
    gc.collect()  # objects of a run refer to each other in cycles
    return cost


class _CostModel:
    """Predicts the cost of any run of a study from the runs whose beginnings were tried.

    Args:
        tried: the runs that were tried.
        costs: cost of each run in ``tried``, by the folder of its variant; None if it is unknown.
    """

    def __init__(self, tried: list[PlannedRun], costs: Mapping[str, CostHere | None]) -> None:
        self._costs = costs
        # kind of strategy -> for each tried run: real time (s) and disk space (bytes), both divided
        # by the run's predicted work
        self._rates: dict[str, list[tuple[float, float]]] = {}
        self._memory_bytes = 0  # peak memory of the tried run that needs most
        for run in tried:
            cost = costs[run.variant.folder]
            if cost is None:
                continue
            work = predicted_work(run.scenario)
            rate = (cost.real_s / work, cost.disk_bytes / work)
            self._rates.setdefault(run.scenario.strategy.kind, []).append(rate)
            self._memory_bytes = max(self._memory_bytes, cost.memory_bytes)

    def cost(self, run: PlannedRun) -> RunCost | None:
        """Return the predicted cost of a run; None if it is unknown.

        If no run of the variant was tried, time and disk are the run's predicted work (count of
        tasks and epochs) times the median cost per unit of work of the tried runs with the same
        strategy, or of all tried runs if none has this strategy. The memory of any run is the peak
        memory of the tried run that needs most.
        """
        folder = run.variant.folder
        if folder in self._costs:
            cost = self._costs[folder]
            if cost is None:
                return None
            return RunCost(cost.real_s, self._memory_bytes, cost.disk_bytes)
        rates = self._rates.get(run.scenario.strategy.kind)
        if rates is None:  # no run with this kind of strategy was tried
            rates = [rate for kind_rates in self._rates.values() for rate in kind_rates]
        if not rates:
            return None
        work = predicted_work(run.scenario)
        real_s = work * median(seconds for seconds, _ in rates)
        disk_bytes = work * median(size for _, size in rates)
        return RunCost(real_s, self._memory_bytes, disk_bytes)


def _cost_of_share(
    runs: Sequence[PlannedRun],
    cost_of: Callable[[PlannedRun], RunCost | None],
    workers: int,
    start_s: float,
) -> ShareCost:
    """Return the predicted cost of runs that several worker processes carry out.

    Each worker takes the next run in the list when it is free.

    Args:
        runs: the runs that are not done.
        cost_of: returns the cost of a run; None if it is unknown.
        workers: count of workers.
        start_s: real time in which a worker starts (s).
    """
    costs = [cost for run in runs if (cost := cost_of(run)) is not None]
    busy_workers = min(workers, len(costs))
    free_at = [start_s] * busy_workers
    for cost in costs:  # the worker that is free first takes the next run
        heapq.heappush(free_at, heapq.heappop(free_at) + cost.real_s)
    most_bytes = max((cost.memory_bytes for cost in costs), default=0)
    return ShareCost(
        runs=len(runs),
        untold=len(runs) - len(costs),
        real_s=max(free_at, default=0.0),
        worker_s=sum(cost.real_s for cost in costs) + busy_workers * start_s,
        memory_bytes=most_bytes * busy_workers,
        disk_bytes=sum(cost.disk_bytes for cost in costs),
    )


def forecast_lines(forecast: StudyForecast, shard: StudyShard | None) -> list[str]:
    """Return lines of text on the predicted cost of a study, or of a shard and of all shards.

    Args:
        forecast: the forecast.
        shard: the shard; None for a study without shards.
    """
    cost = forecast.shares[0]
    name = "the study"
    if shard is not None:
        cost = forecast.shares[shard.number - 1]  # shards are numbered from 1
        name = f"shard {shard}"
    lines = [_describe(cost, name, forecast.workers)]
    if 0 < cost.untold < cost.runs:
        lines.append(f"that leaves out {counted(cost.untold, 'run')}, whose cost cannot be told")
    if shard is not None:
        lines.append(_describe_range(forecast.shares))
    if forecast.tried < forecast.variants:
        lines.append(
            f"the beginnings of {forecast.tried} of {forecast.variants} variants were tried; the "
            "others cost in proportion to rounds, clients and epochs"
        )
    return lines


def _describe(cost: ShareCost, name: str, workers: int) -> str:
    """Return a sentence on the predicted cost of a study or a shard, called ``name``."""
    if not cost.runs:
        return f"nothing is left to do of {name}"
    if cost.untold == cost.runs:
        return f"the cost of {name}, {counted(cost.runs, 'run')}, cannot be told"
    at_a_time = min(workers, cost.runs)
    plural = "" if at_a_time == 1 else "s"
    return (
        f"here {name} takes about {show_seconds(cost.real_s)} with {at_a_time} run{plural} at a "
        f"time; it needs about {show_bytes(cost.memory_bytes)} of memory and "
        f"{show_bytes(cost.disk_bytes)} on disk"
    )


def _describe_range(shares: Sequence[ShareCost]) -> str:
    times = [share.real_s for share in shares]
    disk_bytes = sum(share.disk_bytes for share in shares)
    return (
        f"the {len(shares)} shards take {show_seconds(min(times))} to {show_seconds(max(times))}, "
        f"and together {show_bytes(disk_bytes)} on disk"
    )
