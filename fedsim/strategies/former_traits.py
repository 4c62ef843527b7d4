"""Former names of ``StrategyParams.traits`` and ``why_not``, by which users' classes declare them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

from fedsim.common.former_names import warn_renamed
from fedsim.common.spec import Spec
from fedsim.strategies.parts.aggregation import Protection
from fedsim.strategies.refusals import Reasons

_Holder = Literal["traits", "why_not"]


class _FormerName:
    """Former name of a trait or reason: reading it warns, and returns the present value.

    Attributes:
        holder: the attribute of ``StrategyParams`` that has the value.
        name: its name there; empty for the former name.
    """

    def __init__(self, holder: _Holder, name: str = "") -> None:
        self.holder = holder
        self.name = name

    def __set_name__(self, owner: type, name: str) -> None:
        self.former = name
        self.name = self.name or name

    def warn(self) -> None:
        warn_renamed(f"StrategyParams.{self.former}", f"{self.holder}.{self.name}")

    def __get__(self, params: "FormerNames | None", owner: type) -> object:
        if params is None:
            return self
        self.warn()
        return getattr(_present(self.holder, params), self.name)


class FormerNames(Spec):
    """Former names of traits and reasons, which still work, with a warning."""

    at_edges: ClassVar[object] = _FormerName("traits")
    serverless: ClassVar[object] = _FormerName("traits")
    brings_learning: ClassVar[object] = _FormerName("traits")
    needs_labels: ClassVar[object] = _FormerName("traits")
    plain_down: ClassVar[object] = _FormerName("traits")
    sends_models: ClassVar[object] = _FormerName("traits")
    only_own_models: ClassVar[object] = _FormerName("traits")
    mixes_states: ClassVar[object] = _FormerName("traits", "averages_updates")
    added_up: ClassVar[object] = _FormerName("traits", "accumulated_contents")
    kept_by: ClassVar[object] = _FormerName("traits")
    late_goes_on: ClassVar[object] = _FormerName("traits")
    beside: ClassVar[object] = _FormerName("why_not", "private_aggregation")
    unaccounted: ClassVar[object] = _FormerName("why_not", "privacy_account")
    looks_at_each: ClassVar[object] = _FormerName("why_not", "sum_alone")
    trains_more: ClassVar[object] = _FormerName("why_not", "training_limit")
    counts_steps: ClassVar[object] = _FormerName("why_not", "other_steps")
    needs_accuracy: ClassVar[object] = _FormerName("why_not", "no_accuracy")
    not_restorable: ClassVar[object] = _FormerName("why_not", "resuming")
    not_by_device: ClassVar[object] = _FormerName("why_not", "by_device")

    def unprotected(self, protection: Protection) -> str | None:
        """Return ``why_not.against(protection)``; the former name of two reasons."""
        warn_renamed("StrategyParams.unprotected", "why_not.private_aggregation")
        reasons = _present("why_not", self)
        return reasons.against(protection) if isinstance(reasons, Reasons) else None

    @classmethod
    def __pydantic_init_subclass__(cls, **options: object) -> None:
        """Let a class declare traits and reasons by their former names, with a warning."""
        super().__pydantic_init_subclass__(**options)
        declared: dict[_Holder, dict[str, object]] = {"traits": {}, "why_not": {}}
        for name, value in vars(cls).items():
            former = vars(FormerNames).get(name)
            if isinstance(former, _FormerName):
                former.warn()
                declared[former.holder][former.name] = value
        if "unprotected" in vars(cls):
            warn_renamed("StrategyParams.unprotected", "why_not.private_aggregation")
            method = cls.unprotected
            for protection in ("private", "robust"):
                reason = property(partial(method, protection=protection))
                declared["why_not"][f"{protection}_aggregation"] = reason
        for holder, values in declared.items():
            if values:
                setattr(cls, holder, _Adopted(partial(_with_former, cls, holder, values)))


class _Adopted(property):
    """Property ``traits`` or ``why_not`` of a class that declares some of them by former names."""


def _with_former(
    cls: type[FormerNames], holder: _Holder, values: Mapping[str, object], params: FormerNames
) -> object:
    """Return the inherited traits or reasons, with those that a class declares by former names."""
    return replace(
        getattr(super(cls, params), holder),
        **{name: _bound(value, params) for name, value in values.items()},
    )


def _present(holder: _Holder, params: FormerNames) -> object:
    """Return the traits or reasons that an object has by their present names alone."""
    for parent in type(params).__mro__:
        value = vars(parent).get(holder)
        if value is not None and not isinstance(value, _Adopted):
            return _bound(value, params)
    raise AttributeError(holder)


def _bound(value: object, params: FormerNames) -> object:
    """Return the value that a class attribute has for an object."""
    return value.fget(params) if isinstance(value, property) and value.fget else value
