"""Parts of which there are several kinds, found by name or by import path: each kind is registered in one line, with its title.

A kind is a ``Spec``: its parameters and its rule in one class. A scenario names it (``selection = "random"``), with parameters
if need be (``server = { kind = "adam", lr = 0.01 }``); one of the user's own by ``kind = "package.module:Class"``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeVar

from pydantic import BeforeValidator, ValidatorFunctionWrapHandler, WrapValidator, create_model
from pydantic_core import PydanticCustomError

from fedsim.errors import ScenarioError, nearest, shown
from fedsim.language.imports import find
from fedsim.language.spec import Spec

S = TypeVar("S", bound=Spec)


@dataclass(frozen=True)
class Family:
    """The kinds of one part.

    Attributes:
        called: what the part is, for people.
        base: the import path of the class that all of them inherit.
        kinds: name -> import path and title, the one line that ``fedsim list`` shows.
        bare: the key whose value may stand for a whole part of the first kind (``deadline = "90 s"``); None for no such.
    """

    called: str
    base: str
    kinds: Mapping[str, tuple[str, str]]
    bare: str | None = None

    def __hash__(self) -> int:
        return id(self)

    @cached_property
    def _base(self) -> type:
        return find(self.base, self.called, object, "object")  # type: ignore[no-any-return]

    def find(self, kind: str, key: str = "kind") -> Any:
        """The class of a kind.

        Raises:
            ScenarioError: there is no such kind, or the path does not lead to one.
        """
        if kind not in self.kinds and ":" not in kind:
            names = ", ".join(self.kinds)
            hint = nearest(kind, self.kinds)
            raise ScenarioError(f"{key} is {shown(kind)}; allowed are {names}, or your own as 'package.module:Class'{hint}")
        path = self.kinds[kind][0] if kind in self.kinds else kind
        return find(path, key, self._base, f"fedsim.plugin.{self.base.rpartition(':')[2]}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)

    def spec(self, kind: str, key: str = "kind") -> type[Spec]:
        """The class that a part of this kind is validated by: its own may be named by the path that leads to it."""
        found = self.find(kind, key)
        return found if kind in self.kinds else with_any_kind(found)

    @property
    def validator(self) -> BeforeValidator:
        """Makes a part of what a scenario says of it: a name, a table, or a part that is made already."""
        return BeforeValidator(self._made)

    def _made(self, value: Any) -> Any:
        if isinstance(value, self._base) or value is None:
            return value
        first = next(iter(self.kinds))
        if isinstance(value, str) and (value in self.kinds or ":" in value or self.bare is None):
            value = {"kind": value}
        elif not isinstance(value, Mapping):
            if self.bare is None:
                raise PydanticCustomError("part", "must be the name of a kind, or a table with one", {})
            value = {"kind": first, self.bare: value}
        kind = value.get("kind", first)
        if not isinstance(kind, str):
            raise PydanticCustomError("part_kind", "kind is {kind}; it must be a name", {"kind": shown(kind)})
        try:
            return self.spec(kind).model_validate(dict(value))
        except ScenarioError as error:
            raise PydanticCustomError("part_kind", "{why}", {"why": str(error)}) from None


@cache
def with_any_kind(found: type[S]) -> type[S]:
    """The same, whose ``kind`` may be the path that leads to it."""
    return create_model(found.__name__, __base__=found, __module__=found.__module__, kind=(str, ...))


def or_own(base: str) -> WrapValidator:
    """Beside the kinds of a union one of the user's own, by the import path of a class that inherits ``base``."""

    def validate(value: Any, known: ValidatorFunctionWrapHandler) -> Any:
        given = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", value)
        if not isinstance(given, str) or ":" not in given:
            return known(value)
        if isinstance(value, Spec):
            return value
        try:
            own = find(given, "kind", find(base, "kind", object, "object"), f"fedsim.plugin.{base.rpartition(':')[2]}")
        except ScenarioError as error:
            raise PydanticCustomError("part_kind", "{why}", {"why": str(error)}) from None
        return with_any_kind(own).model_validate({"kind": given} | (dict(value) if isinstance(value, Mapping) else {}))

    return WrapValidator(validate)
