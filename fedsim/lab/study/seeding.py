"""Seeds of a study that are added for the variants that may still be the best.

Variants are compared within a world (devices, network and data that they share). All variants run
the first seeds. From the results, ``fedsim.lab.compare.sure`` decides for each world which variants
may be the best. These get more seeds, until the decision for each world is final, or the budget is
spent. The plan depends on nothing but the results, in the order of the seeds. If the process of a
study was killed, the study is planned again from the beginning. The finished runs then lead to the
seeds that were planned before.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedsim.common.errors import ScenarioError
from fedsim.common.round_words import counted
from fedsim.lab.compare.line_decision import LineDecision
from fedsim.lab.compare.lines import read_lines
from fedsim.lab.compare.measures import Values
from fedsim.lab.compare.sure import next_counts
from fedsim.lab.compare.table import Comparison
from fedsim.lab.reading.study_folder import IndexedSure, is_done
from fedsim.lab.study import folder as files
from fedsim.lab.study.plan import Study
from fedsim.lab.study.until_sure import SEEDS_OF_BUDGET, UntilSure, next_seeds
from fedsim.records.reading import RunFolder


class Seeding:
    """Plans more seeds for the variants of a study that may be the best, until the best is sure.

    All variants run the first seeds. ``grow`` then decides from the results, for each world
    (devices, network and data that variants share), which variants may be the best, and plans more
    seeds for them.

    Args:
        study: the study, to which planned runs are added.
        rule: the certainty to reach, and the budget.

    Attributes:
        most_runs: greatest count of runs of the study.
        worlds: for each world, the last decision on which of its variants is the best.

    Raises:
        ScenarioError: the first seeds take more runs than the budget has.
    """

    def __init__(self, study: Study, rule: UntilSure) -> None:
        self._study = study
        self._rule = rule
        spec = study.spec
        # reference scenarios, such as central training on all data, are not ranked, and get no
        # more seeds
        ranked = [variant for variant in study.variants if variant.name not in spec.references]
        first_seeds = rule.first_seeds(spec.seeds)  # begins with the study's own seeds
        study.add(ranked, first_seeds[len(spec.seeds) :])
        study.until_sure = IndexedSure(
            within=rule.within, error=rule.error, first=tuple(first_seeds), is_over=False
        )
        self._first_seeds = first_seeds
        self._cache: dict[Path, Values] = {}  # measures of each finished run, by its folder
        default_most_runs = max(SEEDS_OF_BUDGET * len(ranked), len(study.runs))
        self.most_runs = rule.most_runs or default_most_runs
        self.worlds: list[LineDecision] = []
        if self.most_runs < len(study.runs):
            raise ScenarioError(
                f"until_sure.most_runs is {self.most_runs}, but the first "
                f"{counted(len(first_seeds), 'seed')} of all lines take "
                f"{counted(len(study.runs), 'run')}; it must be as many or more"
            )

    @property
    def is_over(self) -> bool:
        """Whether no more seeds are added.

        That is so if the best variant of each world is decided, or if the budget is spent.
        """
        return self._study.until_sure is not None and self._study.until_sure.is_over

    def grow(self, path: Path) -> None:
        """Plan runs with more seeds for the variants that may still be the best.

        Nothing is planned while a planned run has not finished, or if ``is_over``.

        Args:
            path: the study's folder.
        """
        while not self.is_over and all(is_done(path / run.folder) for run in self._study.runs):
            self._update_decisions(path)
            if not self._plan_more(path):
                self._stop()
                self._update_decisions(path)

    def _stop(self) -> None:
        rule = self._study.until_sure
        assert rule is not None
        self._study.until_sure = rule.model_copy(update={"is_over": True})

    def _update_decisions(self, path: Path) -> None:
        lines = read_lines([path], index=files.index_of(self._study))
        comparison = Comparison(lines, cache=self._cache)
        self.worlds = []
        for answer in comparison.answers():
            if answer.rankings and answer.rankings[0].decision is not None:
                self.worlds.append(answer.rankings[0].decision)

    def _plan_more(self, path: Path) -> bool:
        """Plan more runs of the variants that may still be the best, world by world.

        A world is the devices, network and data that the compared variants share. Worlds whose best
        variant is decided are left out. Each world gets what earlier worlds have left of the
        budget.

        Args:
            path: the study's folder.

        Returns:
            Whether a run was planned.
        """
        wall_s = {run.folder: _wall_s(path / run.folder) for run in self._study.runs}
        left_s = math.inf  # rest of the budget of real time (s)
        if self._rule.most_time is not None:
            left_s = self._rule.most_time - math.fsum(wall_s.values())
        has_planned = False
        for world in self.worlds:
            if world.outcome.is_over:
                continue
            counts = {}  # index of the variant -> count of its seeds so far
            # index of the variant -> real time (s) of its longest run so far, which a further run
            # is expected to take
            cost_s = {}
            for variant_index in world.names:
                folders = self._run_folders_of(variant_index)
                counts[variant_index] = len(folders)
                cost_s[variant_index] = max(wall_s[folder] for folder in folders)
            target_counts = next_counts(world.outcome, counts)
            new_counts = self._fit_in_budget(target_counts, counts, cost_s, left_s)
            for variant_index, count in new_counts.items():
                left_s -= (count - counts[variant_index]) * cost_s[variant_index]
                self._plan_seeds(variant_index, counts[variant_index], count)
                has_planned = True
        return has_planned

    def _fit_in_budget(
        self,
        target_counts: Mapping[int, int],
        counts: Mapping[int, int],
        cost_s: Mapping[int, float],
        left_s: float,
    ) -> dict[int, int]:
        """Return how many seeds the variants that may be the best get within the budget.

        Args:
            target_counts: count of seeds that each of these variants should have, by index of the
                variant.
            counts: count of seeds that each variant has, by index.
            cost_s: expected real time of a run of each variant, by index (s).
            left_s: rest of the budget of real time (s).

        Returns:
            The new count of each variant that gets more seeds, by index; all counts are equal.
            Empty if the budget does not allow one more seed for each of the variants with the
            fewest seeds.
        """
        runs_left = self.most_runs - len(self._study.runs)
        least_count = min(counts[variant_index] for variant_index in target_counts) + 1
        # go from the greatest count down to the first count that the budget allows
        for count in range(max(target_counts.values()), least_count - 1, -1):
            growing = []  # variants that would get more seeds
            new_runs = 0
            costs_s = []
            for variant_index in target_counts:
                additional = count - counts[variant_index]
                if additional > 0:
                    growing.append(variant_index)
                    new_runs += additional
                    costs_s.append(additional * cost_s[variant_index])
            if new_runs <= runs_left and math.fsum(costs_s) <= left_s:
                return dict.fromkeys(growing, count)
        return {}

    def _run_folders_of(self, variant_index: int) -> list[Path]:
        variant = self._study.variants[variant_index]
        return [run.folder for run in self._study.runs_of[variant.folder]]

    def _plan_seeds(self, variant_index: int, old_count: int, new_count: int) -> None:
        """Plan runs of a variant until it has ``new_count`` seeds.

        Variants with equal scenarios share all runs, so all of them get these seeds.

        Args:
            variant_index: index of the variant in the study.
            old_count: count of seeds that it has.
            new_count: count of seeds that it gets.
        """
        folders = self._run_folders_of(variant_index)
        variants = []
        for index, variant in enumerate(self._study.variants):
            if self._run_folders_of(index) == folders:
                variants.append(variant)
        later_seeds = next_seeds(self._first_seeds, new_count - len(self._first_seeds))
        seeds = [*self._first_seeds, *later_seeds]
        self._study.add(variants, seeds[old_count:new_count])

    def lines_of_text(self) -> Iterator[str]:
        """Yield sentences on how many variants may still be the best, for the report to the user.

        There is one sentence for each world (devices, network and data that variants share) whose
        best variant is not decided yet.
        """
        for world in self.worlds:
            if not world.outcome.is_over:
                yield (
                    f"{len(world.outcome.contenders)} of {len(world.names)} lines may be the best "
                    f"after {counted(world.outcome.seeds, 'seed')}"
                )


def _wall_s(folder: Path) -> float:
    """Return the real time (s) of a finished run, from its summary."""
    return float(RunFolder(folder).summary.get("wall_s", 0.0))
