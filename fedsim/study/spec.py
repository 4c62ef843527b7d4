"""What a study file may say."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from fedsim.errors import ScenarioError, nearest
from fedsim.language.spec import Spec
from fedsim.records.study_folder import UNNAMED
from fedsim.scenario import explain
from fedsim.study.references import REFERENCES

_MOST_RUNS = 100_000  # beyond this a study is a typing error, and its plan alone would fill the memory


def _listed(value: Any) -> Any:
    """One target stands for a list of one."""
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else value


class StudySpec(Spec):
    """A base scenario, what is varied, and the seeds: the same worlds for every variant.

    Attributes:
        name: for people; it goes into reports, never into a path or a command.
        base: the scenario file that all runs start from, relative to the study file; or its tables.
        seeds: one run of every variant for each.
        variants: by name, the changes that make a variant out of the base: tables as in a scenario, or dotted keys.
        grid: dotted key -> values; every variant is run with every combination.
        references: lines to compare with, added as variants of these names (``REFERENCES``).
        baseline: the variant that the others are compared with, seed by seed; None: they are not.
        target: accuracies (0..1), one or several: what it costs to reach each is compared.
    """

    name: str = Field(default=UNNAMED, max_length=200)
    base: str | dict[str, Any]
    seeds: list[int] = Field(default=[1], min_length=1)
    variants: dict[str, dict[str, Any]] = Field(default={})
    grid: dict[str, list[Any]] = Field(default={})
    references: list[str] = Field(default=[])
    baseline: str | None = None
    target: Annotated[list[float], BeforeValidator(_listed)] = Field(default=[])

    def __init__(self, **tables: Any) -> None:
        try:
            super().__init__(**tables)
        except ValidationError as error:
            raise ScenarioError(explain(error, tables, "the study")) from None

    @property
    def names(self) -> list[str]:
        """The variants' names, the references last."""
        return [*self.variants, *self.references]

    @field_validator("seeds")
    @classmethod
    def _different_seeds(cls, seeds: list[int]) -> list[int]:
        if any(seed < 0 for seed in seeds) or len(set(seeds)) < len(seeds):
            raise ValueError(f"{seeds} are not different whole numbers from 0 on")
        return seeds

    @field_validator("variants")
    @classmethod
    def _named(cls, variants: dict[str, Any]) -> dict[str, Any]:
        for name in variants:
            if not name.strip() or len(name) > 200:
                raise ValueError(f"a variant's name has {len(name)} characters; allowed are 1 to 200, not all of them blank")
            if "seed" in variants[name]:
                raise ValueError(f"{name!r} has a seed of its own; all variants run with the study's 'seeds'")
        return variants

    @field_validator("grid")
    @classmethod
    def _several(cls, grid: dict[str, list[Any]]) -> dict[str, list[Any]]:
        if "seed" in grid:
            raise ValueError("'seed' is no key of a grid; the study's 'seeds' are what runs are repeated with")
        for key, values in grid.items():
            shown = [repr(value) for value in values]
            if not values or len(set(shown)) < len(shown):
                raise ValueError(f"{key!r} has the values {values}; allowed is a list of different ones, at least one")
        return grid

    @field_validator("references")
    @classmethod
    def _known(cls, references: list[str]) -> list[str]:
        for name in references:
            if name not in REFERENCES:
                raise ValueError(f"{name!r} is none; allowed are {', '.join(REFERENCES)}{nearest(name, REFERENCES)}")
        if len(set(references)) < len(references):
            raise ValueError(f"{references} names one of them twice")
        return references

    @field_validator("target")
    @classmethod
    def _shares(cls, target: list[float]) -> list[float]:
        for accuracy in target:
            if not 0 < accuracy <= 1:
                raise ValueError(f"{accuracy:g} is no accuracy; it must lie in (0, 1]")
        return sorted(set(target))

    @model_validator(mode="after")
    def _fits_together(self) -> "StudySpec":
        if not self.names:
            raise ValueError("a study needs a variant at least, such as [variants.fedavg]")
        twice = [name for name in self.references if name in self.variants]
        if twice:
            raise ValueError(f"{twice[0]!r} is both a variant and one of the references; give the variant another name")
        if self.baseline is not None and self.baseline not in self.names:
            raise ValueError(
                f"'baseline' is {self.baseline!r}; allowed are {', '.join(self.names)}{nearest(self.baseline, self.names)}"
            )
        runs = len(self.names) * len(self.seeds)
        for values in self.grid.values():
            runs *= len(values)
        if runs > _MOST_RUNS:
            raise ValueError(f"it has {runs} runs; at most {_MOST_RUNS} are allowed")
        return self

    def tables(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """The study as the tables of a file that needs no other: with ``base`` in place of its path."""
        said = self.model_dump(exclude_unset=True, mode="python")
        return said | {"base": dict(base)}
