"""Shards of a study: shares of its runs with about equal predicted work.

The planned scenarios and the count of shards determine the shares, so that processes need no
communication to agree on them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsim.common.errors import ScenarioError, show_value
from fedsim.lab.study.plan import PlannedRun
from fedsim.running.scenario import Scenario
from fedsim.strategies.asynchronous import AsynchronousParams
from fedsim.strategies.params import StrategyParams

_STEPS_OF_EPOCH = 10.0
_FORM = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


@dataclass(frozen=True)
class StudyShard:
    """Share of a study's runs that one process carries out, such as one of several machines.

    Attributes:
        number: index of the share, from 1.
        count: count of shares.
    """

    number: int
    count: int

    @classmethod
    def read(cls, text: str) -> "StudyShard":
        """Parse a text ``NUMBER/COUNT``, such as ``3/16``.

        Raises:
            ScenarioError: the text has another form, or the number is not from 1 to the count.

        Example:
            >>> StudyShard.read("3/16")
            StudyShard(number=3, count=16)
        """
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise ScenarioError(
                f"--shard is {show_value(text)}; allowed is NUMBER/COUNT, such as 3/16"
            )
        number = int(match[1])
        count = int(match[2])
        if not 1 <= number <= count:
            raise ScenarioError(
                f"--shard is {show_value(text)}; allowed are 1/{max(count, 1)} to "
                f"{max(count, 1)}/{max(count, 1)}"
            )
        return cls(number, count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def predicted_work(scenario: Scenario) -> float:
    """Return the predicted work of a run, to split runs into even shares.

    The work is tasks x (1 + local epochs), with the tasks of all rounds. Only ratios between runs of
    a study are meaningful. A run without a limit of rounds counts as 100 rounds. A round of an
    asynchronous strategy has one task for each update of the round (``updates_of_round``). If the
    strategy sets local steps instead of epochs, ten steps count as an epoch, because the true number
    of steps in an epoch depends on the data, which are not read.
    """
    params = scenario.strategy
    rounds = params.horizon(scenario.stop).rounds or 100
    clients = getattr(params, "clients_per_round", None) or scenario.population.devices
    if isinstance(params, AsynchronousParams):
        clients = params.updates_of_round
    epochs = _expected_epochs(params) if scenario.learning == "on" else 0.0
    return float(rounds * clients * (1 + epochs))


def _expected_epochs(params: StrategyParams) -> float:
    """Return how many local epochs one task of a client is expected to train."""
    steps = params.expected_steps
    if steps is not None:
        return steps / _STEPS_OF_EPOCH
    return float(getattr(params, "local_epochs", None) or 1)


def work_of_share(runs: Sequence[PlannedRun], all_runs: Sequence[PlannedRun]) -> float:
    """Return the fraction (0..1) of a study's predicted work that some of its runs make up."""
    work = sum(predicted_work(run.scenario) for run in runs)
    total_work = sum(predicted_work(run.scenario) for run in all_runs)
    return work / total_work if total_work else 0.0


def deal(runs: Sequence[PlannedRun], count: int) -> list[list[PlannedRun]]:
    """Split the runs of a study into shares of about equal predicted work.

    Runs are assigned in order of decreasing work, each to the share with the least work so far (R.
    L. Graham, 1969: the greatest share has at most 4/3 of the optimal work).

    Args:
        runs: runs of the study, in their order.
        count: count of shares.

    Returns:
        The runs of each share, in the order of the study.
    """
    works = [predicted_work(run.scenario) for run in runs]
    heaviest_first = sorted(range(len(runs)), key=lambda run_index: (-works[run_index], run_index))
    work_of_shares = [0.0] * count
    shares: list[list[int]] = [[] for _ in range(count)]
    for run_index in heaviest_first:
        lightest = work_of_shares.index(min(work_of_shares))
        work_of_shares[lightest] += works[run_index]
        shares[lightest].append(run_index)
    return [[runs[run_index] for run_index in sorted(share)] for share in shares]


def folders_of(shard: StudyShard, runs: Sequence[PlannedRun]) -> frozenset[Path]:
    """Return the folders of the runs that belong to one share of a study.

    Args:
        shard: the share.
        runs: all selected runs, in the order of the study.
    """
    return frozenset(run.folder for run in deal(runs, shard.count)[shard.number - 1])
