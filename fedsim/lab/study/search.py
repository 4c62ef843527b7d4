"""Searches of a study: the space of values, the metric, and the methods that propose values.

Each variant is searched separately, at each point of the grid, with the same number of trials. A
trial is a point of the space: one value of each searched key. The result of a trial is the mean of
the metric over runs with the study's seeds. Search methods know only the rank of each trial, so
that trials without a result, such as failed trials, can be ranked, too.
``scenarios/studies/search.toml`` is an example.
"""

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
from fedsim.common.kind_field import KindField
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

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

Number = int | float
TrialResult = tuple[Mapping[str, object], int]
"""A finished trial: its values by key, and the number of better trials."""

_LEAST_TRIALS = 8  # count of trials below which the importance of keys is not computed
_DIGITS = 4  # significant digits of drawn values; few, as names of folders have the values
_TRIALS_AT_A_TIME = 4  # count of trials that Optuna proposes at a time, to run in parallel
_NUMBER_AND_UNIT = re.compile(
    r"\s*([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z/]+)\s*"
)


def _list_metrics() -> dict[str, Measure]:
    candidates = [*measures(), WITHIN]
    for name in MORE_IS_BETTER:
        candidates += [of_metric("final", name), of_metric("best", name)]
    return {
        measure.name.replace(" ", "_"): measure
        for measure in candidates
        if measure.best is not None
    }


METRICS: Mapping[str, Measure] = _list_metrics()
"""Measures of whole runs, by the names of search metrics."""
_METRIC_NAMES = (*GOALS, *(f"{cost}_to_accuracy" for cost in COST_GOALS), *METRICS)
if TYPE_CHECKING:
    _Metric = str
else:
    _Metric = Literal[_METRIC_NAMES]


def measure_of(metric: str, targets: Sequence[float | str]) -> Measure | None:
    """Return the measure that a search optimises, such as the time to a target accuracy.

    Args:
        metric: name of the search's metric.
        targets: accuracies, or texts ``metric=value``, in the order of ``StudySpec.target``. The
            highest accuracy is used. If no target is an accuracy, the last target is used, which
            is the hardest of its metric.

    Returns:
        The measure; None if it needs a target and ``targets`` is empty.
    """
    goal = metric.removesuffix("_to_accuracy")
    if goal not in GOALS:
        return METRICS[metric]
    target = None
    if targets:
        accuracies = [accuracy for accuracy in targets if not isinstance(accuracy, str)]
        target = Target.read(max(accuracies, default=targets[-1]))
    return goal_of(goal, target)


def _read_quantity(value: Number | str) -> tuple[Number, str]:
    """Split a value such as "90 s" into its number and unit; the unit of a number is ""."""
    if not isinstance(value, str):
        return value, ""
    match = _NUMBER_AND_UNIT.fullmatch(value)
    if match is not None and math.isfinite(float(match[1])):
        return float(match[1]), match[2]
    raise ValueError(f"{value!r} is no number with a unit, such as '90 s'")


class Range(Spec):
    """Range of values that a search may try for a key of the scenario, both ends included.

    Values are whole numbers if both ends are whole numbers.

    Attributes:
        low, high: the ends: numbers, or quantities in the same unit.
        log: whether values are drawn uniformly in their logarithm.
    """

    low: int | float | str
    high: int | float | str
    log: bool = False

    @model_validator(mode="after")
    def _check_ends(self) -> "Range":
        """Refuse ends in different units or in descending order, and a logarithm of 0 or less."""
        low, unit = _read_quantity(self.low)
        high, high_unit = _read_quantity(self.high)
        if unit != high_unit:
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
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def extremes(self) -> list[object]:
        """Low and high end of the range, as written in the study."""
        return [self.low, self.high]

    def at(self, share: float) -> Number:
        """Return the value of the range at a position from its low end (0) to its high end (1).

        With ``log``, positions are linear in the logarithm. A search draws positions uniformly to
        get random values.

        Args:
            share: the position, 0..1.
        """
        low, high = self.ends
        start = low
        end = high
        if self.is_whole:  # each whole number gets an interval of equal length
            start = low - 0.5
            end = high + 0.5
        if self.log:
            number: Number = start * (end / start) ** share
        else:
            number = start + share * (end - start)
        if self.is_whole:
            number = math.floor(number + 0.5)
        return min(max(number, low), high)  # rounding may leave the range

    def scenario_value(self, number: Number) -> object:
        """Convert a number of the range to a value for a scenario, with the range's unit.

        In a range of whole numbers, the number keeps all its digits. Otherwise it is rounded to
        four significant digits.
        """
        low, high = self.ends
        if not self.is_whole:
            number = min(max(float(f"{number:.{_DIGITS}g}"), low), high)
        if isinstance(self.low, str):
            return f"{number:.12g} {_read_quantity(self.low)[1]}"
        return number

    def number(self, value: Any) -> Number:
        """Return the number in a value of a scenario, such as 90 in ``90 s``."""
        return _read_quantity(value)[0]

    @property
    def distribution(self) -> "BaseDistribution":
        from optuna.distributions import FloatDistribution, IntDistribution

        low, high = self.ends
        if self.is_whole:
            return IntDistribution(int(low), int(high), self.log)
        return FloatDistribution(low, high, self.log)


class OneOf(RootModel[Annotated[list[object], Field(min_length=1)]]):
    """List of values for a key of the scenario, each of which a search may try.

    The numbers that a search proposes are indices of values in the list.
    """

    @field_validator("root")
    @classmethod
    def _check_distinct(cls, values: list[object]) -> list[object]:
        if len({repr(value) for value in values}) < len(values):
            raise ValueError(f"{values} has one of them twice")
        return values

    @property
    def extremes(self) -> list[object]:
        return self.root

    def at(self, share: float) -> int:
        """Return the index of the value at a position in the list.

        Args:
            share: the position from the list's begin (0) to its end (1), in which each value has an
                interval of the same length.
        """
        return min(int(share * len(self.root)), len(self.root) - 1)

    def scenario_value(self, index: Number) -> object:
        return self.root[int(index)]

    def number(self, value: object) -> int:
        return self.root.index(value)

    @property
    def distribution(self) -> "BaseDistribution":
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(range(len(self.root)))


def _dot_keys(space: object) -> object:
    """Return a search space (candidate values by key) with dotted keys instead of nested tables."""
    return _flatten_tables(space, "") if isinstance(space, Mapping) else space


def _flatten_tables(tables: Mapping[str, object], prefix: str) -> dict[str, object]:
    candidates_by_key: dict[str, object] = {}
    for key, values in tables.items():
        is_range = isinstance(values, Mapping) and {"low", "high"} & set(values)
        if isinstance(values, Mapping) and not is_range:
            candidates_by_key |= _flatten_tables(values, f"{prefix}{key}.")
        else:
            candidates_by_key[prefix + key] = values
    return candidates_by_key


def _tag(values: object) -> str:
    return "~choice" if isinstance(values, list | OneOf) else "~range"


Space = Annotated[
    dict[
        str,
        Annotated[
            Annotated[OneOf, Tag("~choice")] | Annotated[Range, Tag("~range")],
            Discriminator(_tag),
        ],
    ],
    BeforeValidator(_dot_keys, json_schema_input_type=dict[str, object]),
]
"""Candidate values by dotted key."""


class Search(Spec):
    """Search for the values of some keys with which a study's variants have the best metric.

    Each trial runs a variant with other values. A subclass defines how ``ask`` chooses them.

    Attributes:
        trials: number of trials of each variant at each point of the grid.
        metric: name of the quantity to optimise: one of the goals of studies (``StudySpec.goal``),
            such as ``time``, or a measure of whole runs. A cost up to the study's target may also
            be named by ``_to_accuracy``, such as ``time_to_accuracy``.
        space: ranges or lists of values to try, by a dotted key of a scenario or by the name of a
            set in the study (``StudySpec.sets``), such as ``{"training.lr": {"low": 0.01, "high":
            0.3, "log": true}}``.
        variants: name of a variant -> further ranges or lists of values for this variant only.
        seed: seed of the search's random draws.
        prune: whether to stop a trial early if, after some of the study's seeds, it is worse than
            the median trial.
    """

    kind: str
    trials: int = Field(default=40, ge=1, le=10_000)
    metric: _Metric
    space: Space = Field(default={})
    variants: dict[str, Space] = Field(default={})
    seed: int = Field(default=0, ge=0)
    prune: bool = False

    def space_of(self, variant: str) -> Space:
        """Return the values that a search tries for a variant: dotted key -> range or list.

        Args:
            variant: name of the variant, which may have keys in addition to the common ones.
        """
        return self.space | self.variants.get(variant, {})

    @property
    def batch(self) -> int:
        """Count of trials of a variant that are proposed together, before the first one runs."""
        return self.trials

    @property
    def is_planned_ahead(self) -> bool:
        """Whether the values of all trials are proposed before the first trial runs.

        That is so if no trial depends on the results of others.
        """
        return self.batch == self.trials and not self.prune

    def ask(
        self, line: str, space: Space, results: Sequence[TrialResult], count: int
    ) -> list[dict[str, object]]:
        """Propose the values of a variant's next trials from the results so far.

        Args:
            line: label of the variant.
            space: ranges or lists of values by dotted key.
            results: for each trial so far, in their order, its values and the count of trials that
                are better than this trial. The proposals depend only on these results and ``seed``.
            count: count of trials to propose.

        Returns:
            The values of each trial, by key.
        """
        raise NotImplementedError


class RandomSearch(Search):
    """Search that draws the values of each trial at random, independently of other trials."""

    kind: Literal["random"] = "random"

    @override
    def ask(
        self, line: str, space: Space, results: Sequence[TrialResult], count: int
    ) -> list[dict[str, object]]:
        streams = Streams(self.seed)
        trials = []
        for trial_index in range(len(results), len(results) + count):
            values = {}
            for key, candidates in space.items():
                # each variant, key and trial has its own draw, which depends on no other draw
                position = streams.uniform(f"search/{line}/{key}", trial_index)
                values[key] = candidates.scenario_value(candidates.at(position))
            trials.append(values)
        return trials


class OptunaSearch(Search):
    """Search that tries values near the values of the best trials so far.

    It uses Optuna's tree-structured Parzen estimator. The extra ``search`` of fedsim installs
    Optuna.
    """

    kind: Literal["optuna"] = "optuna"

    @property
    @override
    def batch(self) -> int:
        return _TRIALS_AT_A_TIME

    @override
    def ask(
        self, line: str, space: Space, results: Sequence[TrialResult], count: int
    ) -> list[dict[str, object]]:
        optuna = import_optuna()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # Optuna takes seeds of 32 bits
            seed = Streams(self.seed).word(f"search/{line}", len(results)) % 2**32
            # the constant liar keeps the proposals of one call apart while they have no results
            sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        # Optuna minimises the count of better trials, the only result of a trial that it gets
        study, distributions = _to_optuna(space, results, sampler)
        trials = []
        for _ in range(count):
            values = {}
            for key, number in study.ask(distributions).params.items():
                values[key] = space[key].scenario_value(number)
            trials.append(values)
        return trials


def import_optuna() -> ModuleType:
    """Import Optuna.

    Raises:
        ScenarioError: Optuna is not installed.
    """
    try:
        return import_module("optuna")
    except ImportError as error:
        hint = "pip install 'optuna>=4' installs it, and search.kind = 'random' needs nothing"
        raise ScenarioError(
            f"search.kind is 'optuna', but Optuna cannot be imported ({error}); {hint}"
        ) from None


def importances(space: Space, results: Sequence[TrialResult]) -> dict[str, float]:
    """Return the share of the differences in trials' ranks that each searched key explains.

    The method is functional ANOVA.

    Source: F. Hutter, H. Hoos and K. Leyton-Brown, "An efficient approach for assessing
    hyperparameter importance", ICML 2014.

    Args:
        space: search space of a variant: candidate values by key.
        results: values of each trial of the variant, and the number of better trials.

    Returns:
        Shares (0..1) by key, the greatest first. Empty if Optuna is not installed, or if there are
        fewer than two keys or eight trials.
    """
    if find_spec("optuna") is None or len(space) < 2 or len(results) < _LEAST_TRIALS:
        return {}
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    study, _ = _to_optuna(space, results)
    return dict(get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0)))


def _to_optuna(
    space: Space, results: Sequence[TrialResult], sampler: "BaseSampler | None" = None
) -> "tuple[Study, dict[str, BaseDistribution]]":
    """Convert finished trials to a study of Optuna, in memory.

    Args:
        space: search space of a variant: candidate values by key.
        results: values of each trial, and the number of better trials, which Optuna minimises.
        sampler: the study's sampler; None for Optuna's default.

    Returns:
        The study, and Optuna's distributions by key of the space.
    """
    import optuna

    optuna.logging.disable_default_handler()
    study = optuna.create_study(sampler=sampler)
    distributions = {key: candidates.distribution for key, candidates in space.items()}
    for values, better_count in results:
        numbers = {key: space[key].number(value) for key, value in values.items()}
        trial = optuna.trial.create_trial(
            params=numbers, distributions=distributions, value=float(better_count)
        )
        study.add_trial(trial)
    return study, distributions


SEARCHES = Registry.of("search", RandomSearch, OptunaSearch)
AnySearch = Annotated[RandomSearch | OptunaSearch, KindField(SEARCHES)]
