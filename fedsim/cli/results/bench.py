"""Result of ``fedsim bench``."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from fedsim.cli.results.parts import ResultEntries, VerbResult
from fedsim.lab.bench import BoardLine, places


class BenchLineResult(ResultEntries):
    """Rank and costs of a strategy in one of the bench's fixed scenarios (worlds), over all seeds.

    Costs are counted up to the target accuracy, and null if a seed missed the target.
    """

    strategy: str
    """Name of the strategy."""
    world: str
    """Name of the fixed scenario, without the strategy."""
    place: int | None
    """Rank among the published and the new results, from 1; null if a seed missed the target."""
    seeds: int
    """Count of seeds."""
    reached: int
    """Count of seeds that reached the target."""
    time_s: float | None
    """Mean simulated time to the target (s)."""
    time_low: float | None
    """Lower end of the 95 % interval of ``time_s`` (s)."""
    time_high: float | None
    """Upper end of the 95 % interval of ``time_s`` (s)."""
    bytes: float | None
    """Traffic until the target, sent and received (bytes)."""
    joules: float | None
    """Energy until the target (J)."""
    accuracy: float | None
    """Test accuracy at the end, 0 to 1."""
    file: str
    """Digest of the world's file."""
    version: str
    """Version of fedsim."""


class BenchResult(VerbResult):
    """JSON output of ``fedsim bench``, which runs strategies in fixed scenarios (worlds).

    It has the rank and the costs of each strategy in each world, and the folder of the runs.
    """

    verb: Literal["bench"] = "bench"
    folder: str
    """Folder of the study that holds the runs."""
    lines: list[BenchLineResult]
    """Results, one for each strategy and world."""
    changed: list[str]
    """Names of the scenarios' tables that differ from the published ones. If there are any, ranks
    mean nothing."""
    kept: str | None
    """File of the board into which the new results were written; null without ``--keep``."""

    @classmethod
    def of(
        cls,
        folder: Path,
        lines: Sequence[BoardLine],
        board: Sequence[BoardLine],
        changed: list[str],
        kept: Path | None,
    ) -> "BenchResult":
        """Return the JSON output of ``fedsim bench``, with the ranks of the new results.

        Args:
            folder: folder of the study that holds the runs.
            lines: new results, one per strategy and scenario.
            board: published results, among which the new results are ranked.
            changed: names of the scenarios' tables that differ from the published scenarios.
            kept: board file into which the new results were written; None if there is none.
        """
        by_name = {(line.strategy, line.world): line for line in (*board, *lines)}
        ranks = places([*by_name.values()])
        results = [
            BenchLineResult(**asdict(line), place=ranks.get((line.strategy, line.world)))
            for line in lines
        ]
        board_path = None if kept is None else str(kept)
        return cls(folder=str(folder), lines=results, changed=changed, kept=board_path)
