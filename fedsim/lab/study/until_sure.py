"""The table ``[until_sure]`` of a study: the certainty to reach, and the greatest cost."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from fedsim.common.spec import Spec
from fedsim.common.units import PositiveSeconds
from fedsim.lab.compare.sure import LEAST_SEEDS

SEEDS_OF_BUDGET = 10
"""Default of ``most_runs``, per line."""


def _read_share(value: object) -> object:
    """Convert a percentage such as ``5 %`` to a share (0.05); other values are unchanged."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    is_percentage = text.endswith("%")
    try:
        share = float(text.removesuffix("%"))
    except ValueError:
        raise ValueError(f"{value!r} is no share; allowed are such as '5 %' and 0.05") from None
    return share / 100 if is_percentage else share


ShareOrPercent = Annotated[
    float, BeforeValidator(_read_share, json_schema_input_type=float | str), Field(ge=0, lt=1)
]
"""Number from 0 to 1, or a percentage as text."""


class UntilSure(Spec):
    """Table ``[until_sure]`` of a study: how seeds are added until one variant is surely best.

    Only variants that may still be the best get more seeds.

    Attributes:
        within: greatest difference of two variants that does not matter (indifference zone): a
            share of a cost such as ``"5 %"``, or a difference of accuracies or metrics such as
            0.01; by default 5 % or 0.01.
        error: greatest probability of a wrong decision: the best variant is dropped (gets no more
            seeds), or a variant is named as the best that is worse by more than ``within``.
        most_runs: greatest count of runs of the study, including the runs with its first seeds; by
            default ten for each variant.
        most_time: greatest sum of the real times of all runs. Seeds are added only if the rest of
            this time suffices for their runs. A new run is assumed to last as long as the longest
            run of its variant. The first seeds are always run.
    """

    within: ShareOrPercent | None = None
    error: ShareOrPercent = Field(default=0.05, gt=0, le=0.5)
    most_runs: int | None = Field(default=None, ge=1)
    most_time: PositiveSeconds | None = None

    def first_seeds(self, seeds: list[int]) -> list[int]:
        """Return the seeds that all variants run before the first decision on the best variant.

        They are the study's seeds. If the study has fewer than five seeds, the next whole numbers
        are added until there are five.

        Args:
            seeds: the study's seeds.
        """
        return [*seeds, *next_seeds(seeds, LEAST_SEEDS - len(seeds))]


def next_seeds(seeds: list[int], count: int) -> list[int]:
    """Return the ``count`` whole numbers after the greatest of ``seeds``; none if ``count`` < 1."""
    first = max(seeds) + 1
    return [*range(first, first + max(0, count))]
