"""Searches of a study: the values that its keys are tried with, the metric, and the methods that
propose the next values.

Each variant is searched by itself, at each point of the grid, with the same number of trials. A
trial is a point of the space; the mean of its runs over the study's seeds counts. Methods know the
rank of each trial alone, so that trials without a figure (the target was not reached, the run
failed) have a rank too. ``scenarios/studies/search.toml`` is an example.
"""

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    RootModel,
    Tag,
    field_validator,
    model_validator,
)
from typing_extensions import override

from fedsim.common.errors import ScenarioError
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.common.stop import MORE_IS_BETTER
from fedsim.common.streams import Streams
from fedsim.lab.compare.measures import (
    COST_GOALS,
    GOALS,
    WITHIN,
    Measure,
    goal_of,
    measures,
    of_metric,
)
from fedsim.lab.reading.targets import Target

Number = int | float
TrialResult = tuple[Mapping[str, Any], int]
"""A trial that is over: its values by key, and how many others are better."""

_FEW = 8  # trials that importances need
_DIGITS = 4  # of a value that is drawn: values go into names of folders
_TOGETHER = 4  # trials that Optuna proposes at a time; they are run side by side
_NUMBER_AND_UNIT = re.compile(
    r"\s*([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z/]+)\s*"
)


METRICS: Mapping[str, Measure] = {
    one.name.replace(" ", "_"): one
    for one in (
        *measures(),
        WITHIN,
        *(of_metric(which, name) for name in MORE_IS_BETTER for which in ("final", "best")),
    )
    if one.best is not None
}
"""Measures of whole runs, by the names that a search gives them."""
_NAMES = (*GOALS, *(f"{cost}_to_accuracy" for cost in COST_GOALS), *METRICS)


def measure_of(metric: str, targets: Sequence[float | str]) -> Measure | None:
    """The measure of a search's metric; None if it needs a target.

    Of several the highest accuracy counts, else the last.
    """
    accuracies = [one for one in targets if not isinstance(one, str)]
    goal = metric.removesuffix("_to_accuracy")
    aim = Target.read(max(accuracies, default=targets[-1])) if targets else None
    return goal_of(goal, aim) if goal in GOALS else METRICS[metric]


def _measured(said: Number | str) -> tuple[Number, str]:
    if not isinstance(said, str):
        return said, ""
    match = _NUMBER_AND_UNIT.fullmatch(said)
    with suppress(ValueError):
        if match is not None and math.isfinite(number := float(match[1])):
            return number, match[2]
    raise ValueError(f"{said!r} is no number with a unit, such as '90 s'")


class Range(Spec):
    """All numbers from one end to another: whole ones if both ends are, and quantities if these
    have a unit.

    Attributes:
        low, high: the ends: numbers, or quantities in the same unit.
        log: whether each factor is as likely as another, not each difference.
    """

    low: int | float | str
    high: int | float | str
    log: bool = False

    @model_validator(mode="after")
    def _is_one(self) -> "Range":
        (low, unit), (high, other) = _measured(self.low), _measured(self.high)
        if unit != other:
            raise ValueError(
                f"low is {self.low!r} and high is {self.high!r}; both must have the same unit"
            )
        if not low < high:
            raise ValueError(
                f"low is {self.low!r} and high is {self.high!r}; low must be below high"
            )
        if self.log and low <= 0:
            raise ValueError(f"low is {self.low!r}; with log = true it must be above 0")
        return self

    @property
    def ends(self) -> tuple[Number, Number]:
        return self.number(self.low), self.number(self.high)

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def extremes(self) -> list[Any]:
        """The values that are tried before the search begins."""
        return [self.low, self.high]

    def at(self, share: float) -> Number:
        """The number below which this share (0..1) of the range lies."""
        low, high = self.ends
        below, above = (low - 0.5, high + 0.5) if self.whole else (low, high)
        number = below * (above / below) ** share if self.log else below + share * (above - below)
        return min(max(math.floor(number + 0.5) if self.whole else number, low), high)

    def written(self, number: Number) -> Any:
        """A number as a scenario states it: in few digits, with the unit."""
        low, high = self.ends
        if not self.whole:
            number = min(max(float(f"{number:.{_DIGITS}g}"), low), high)
        return f"{number:.12g} {_measured(self.low)[1]}" if isinstance(self.low, str) else number

    def number(self, value: Any) -> Number:
        return _measured(value)[0]

    @property
    def distribution(self) -> Any:
        from optuna.distributions import FloatDistribution, IntDistribution

        low, high = self.ends
        return (
            IntDistribution(int(low), int(high), self.log)
            if self.whole
            else FloatDistribution(low, high, self.log)
        )


class OneOf(RootModel[Annotated[list[Any], Field(min_length=1)]]):
    """One of a list of values, which has its place for a number."""

    @field_validator("root")
    @classmethod
    def _differ(cls, values: list[Any]) -> list[Any]:
        if len({repr(value) for value in values}) < len(values):
            raise ValueError(f"{values} has one of them twice")
        return values

    @property
    def extremes(self) -> list[Any]:
        return self.root

    def at(self, share: float) -> int:
        return min(int(share * len(self.root)), len(self.root) - 1)

    def written(self, place: Number) -> Any:
        return self.root[int(place)]

    def number(self, value: Any) -> int:
        return self.root.index(value)

    @property
    def distribution(self) -> Any:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(range(len(self.root)))


def _dotted(space: Any, prefix: str = "") -> Any:
    """A space whose keys are dotted, down to its ranges and lists."""
    if not isinstance(space, Mapping):
        return space
    found: dict[str, Any] = {}
    for key, said in space.items():
        is_range = isinstance(said, Mapping) and {"low", "high"} & set(said)
        found |= (
            _dotted(said, f"{prefix}{key}.")
            if isinstance(said, Mapping) and not is_range
            else {prefix + key: said}
        )
    return found


def _which(said: Any) -> str:
    return "~choice" if isinstance(said, list | OneOf) else "~range"


Space = Annotated[
    dict[
        str,
        Annotated[
            Annotated[OneOf, Tag("~choice")] | Annotated[Range, Tag("~range")],
            Discriminator(_which),
        ],
    ],
    BeforeValidator(_dotted, json_schema_input_type=dict[str, Any]),
]
"""Dotted key -> the values that it is tried with."""


class Search(Spec):
    """The method by which a study's trials are made."""

    kind: str
    trials: int = Field(default=40, ge=1, le=10_000)
    """of each variant at each point of the grid."""
    metric: Literal[_NAMES]  # type: ignore[valid-type]
    """a goal of studies, also with ``_to_accuracy`` where it is a cost to the target, or one of
    ``METRICS``.
    """
    space: Space = Field(default={})
    """dotted key of a scenario, or the name of one of the study's sets -> a range, or a list of
    values.
    """
    variants: dict[str, Space] = Field(default={})
    """by name, the keys that one of them is searched over besides."""
    seed: int = Field(default=0, ge=0)
    """of the draws."""
    prune: bool = False
    """whether a trial that is worse than the median after some of the seeds is spared the
    others.
    """

    def space_of(self, variant: str) -> Space:
        return self.space | self.variants.get(variant, {})

    @property
    def batch(self) -> int:
        return self.trials

    def ask(
        self, line: str, space: Space, told: Sequence[TrialResult], count: int
    ) -> list[dict[str, Any]]:
        """The values of the next ``count`` trials of a ``line`` (a variant's label), determined
        by its trials until now.
        """
        raise NotImplementedError


class RandomSearch(Search):
    """Values drawn at random, each trial independent of the others."""

    kind: Literal["random"] = "random"

    @override
    def ask(
        self, line: str, space: Space, told: Sequence[TrialResult], count: int
    ) -> list[dict[str, Any]]:
        streams = Streams(self.seed)
        numbers = range(len(told), len(told) + count)
        draws = [
            {key: streams.uniform(f"search/{line}/{key}", number) for key in space}
            for number in numbers
        ]
        return [
            {key: space[key].written(space[key].at(share)) for key, share in shares.items()}
            for shares in draws
        ]


class OptunaSearch(Search):
    """Optuna's tree-structured Parzen estimator: values like those of the trials that were best
    (needs the extra search).
    """

    kind: Literal["optuna"] = "optuna"

    @property
    @override
    def batch(self) -> int:
        return _TOGETHER

    @override
    def ask(
        self, line: str, space: Space, told: Sequence[TrialResult], count: int
    ) -> list[dict[str, Any]]:
        try:
            import optuna
        except ImportError as error:
            how = "pip install 'optuna>=4' installs it, and search.kind = 'random' needs nothing"
            raise ScenarioError(
                f"search.kind is 'optuna', but Optuna cannot be imported ({error}); {how}"
            ) from None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            seed = Streams(self.seed).word(f"search/{line}", len(told)) % 2**32
            sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        study, distributions = _in_optuna(space, told, sampler)
        asked = [study.ask(distributions).params for _ in range(count)]
        return [
            {key: space[key].written(number) for key, number in params.items()} for params in asked
        ]


def importances(space: Space, told: Sequence[TrialResult]) -> dict[str, float]:
    """The share of each key in how trials rank (0..1), the most first; empty without Optuna, or
    with too little to tell.

    Source: F. Hutter, H. Hoos and K. Leyton-Brown, "An efficient approach for assessing
    hyperparameter importance", ICML 2014.
    """
    if find_spec("optuna") is None or len(space) < 2 or len(told) < _FEW:
        return {}
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    study, _ = _in_optuna(space, told, None)
    return dict(get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0)))


def _in_optuna(
    space: Space, told: Sequence[TrialResult], sampler: Any
) -> tuple[Any, dict[str, Any]]:
    import optuna

    optuna.logging.disable_default_handler()
    study = optuna.create_study(sampler=sampler)
    distributions = {key: one.distribution for key, one in space.items()}
    for values, place in told:
        params = {key: space[key].number(value) for key, value in values.items()}
        study.add_trial(
            optuna.trial.create_trial(
                params=params, distributions=distributions, value=float(place)
            )
        )
    return study, distributions


SEARCHES = Registry.of("search", RandomSearch, OptunaSearch)
AnySearch = Annotated[RandomSearch | OptunaSearch, SEARCHES]
