"""Shards of a study: shares of its runs, dealt out by their predicted work.

Processes that count the shards of a study alike deal them out alike, without a word to each other,
since the shares follow from the planned scenarios alone.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsim.common.errors import ScenarioError, shown
from fedsim.lab.study.plan import PlannedRun
from fedsim.running.scenario import Scenario

_FORM = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


@dataclass(frozen=True)
class StudyShard:
    """One share of a study.

    Attributes:
        number: of the share, from 1.
        count: number of shares.
    """

    number: int
    count: int

    @classmethod
    def read(cls, text: str) -> "StudyShard":
        """Read a text such as ``3/16``.

        Raises:
            ScenarioError: the text has another form, or there is no such share.

        Example:
            >>> StudyShard.read("3/16")
            StudyShard(number=3, count=16)
        """
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise ScenarioError(f"--shard is {shown(text)}; allowed is NUMBER/COUNT, such as 3/16")
        number = int(match[1])
        count = int(match[2])
        if not 1 <= number <= count:
            raise ScenarioError(
                f"--shard is {shown(text)}; allowed are 1/{max(count, 1)} to "
                f"{max(count, 1)}/{max(count, 1)}"
            )
        return cls(number, count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def predicted_work(scenario: Scenario) -> float:
    """The predicted work of a run: epochs of clients, each task counted as one more.

    Only ratios of these figures mean something: shares of a study are compared, whose runs have
    models and data of like size. A run without rounds to end it counts as one of 100 rounds.
    """
    params = scenario.strategy
    rounds = params.horizon(scenario.stop).rounds or 100
    clients = getattr(params, "clients_per_round", None) or scenario.population.devices
    epochs = getattr(params, "local_epochs", 1) if scenario.learning == "on" else 0
    return float(rounds * clients * (1 + epochs))


def deal(runs: Sequence[PlannedRun], count: int) -> list[list[PlannedRun]]:
    """Deal runs out to ``count`` shares of like predicted work.

    The run with the most work goes first, each to the share that has the least so far, of equal
    ones to the first (R. L. Graham, 1969: the fullest share has at most 4/3 of the least possible).

    Args:
        runs: of the study, in their order.
        count: number of shares.

    Returns:
        The runs of each share, in the order of the study.
    """
    works = [predicted_work(run.scenario) for run in runs]
    order = sorted(range(len(runs)), key=lambda place: (-works[place], place))
    loads = [0.0] * count
    shares: list[list[int]] = [[] for _ in range(count)]
    for place in order:
        lightest = loads.index(min(loads))
        loads[lightest] += works[place]
        shares[lightest].append(place)
    return [[runs[place] for place in sorted(share)] for share in shares]


def folders_of(shard: StudyShard, runs: Sequence[PlannedRun]) -> frozenset[Path]:
    """Folders of the runs that a shard carries out.

    Args:
        shard: the share.
        runs: all runs that are chosen, in the order of the study.
    """
    return frozenset(run.folder for run in deal(runs, shard.count)[shard.number - 1])
