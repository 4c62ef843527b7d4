"""Former names of a strategy's traits and of its reasons to refuse settings.

Each was an attribute of ``StrategyParams`` itself, and is now in its attribute ``traits`` or
``why_not``. Users' classes may still read and declare the former attributes.
"""

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
    """Former attribute of ``StrategyParams``: reading it warns, and returns the present value.

    Attributes:
        holder: the present attribute that has the value: ``traits`` or ``why_not``.
        name: name of the value in ``holder``; by default the former name.
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
        return getattr(_without_former(self.holder, params), self.name)


class FormerNames(Spec):
    """Base of ``StrategyParams`` that accepts former names of its attributes, for older strategies.

    The attributes are properties of a strategy, which are in ``traits`` (``Traits``) now, and
    reasons to refuse settings, which are in ``why_not`` (``Reasons``) now.

    Each use of a former name warns.
    """

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
        """Deprecated: call ``why_not.against``, which returns the same; a call warns.

        Return the reason why the strategy does not work with an aggregation that protects privacy,
        or protects the model from malicious devices; None if the strategy works with it.

        Args:
            protection: the aim of the aggregation: ``private`` or ``robust``.
        """
        warn_renamed("StrategyParams.unprotected", "why_not.private_aggregation")
        reasons = _without_former("why_not", self)
        return reasons.against(protection) if isinstance(reasons, Reasons) else None

    @classmethod
    def __pydantic_init_subclass__(cls, **options: object) -> None:
        """Convert traits and reasons that a subclass declares by former names, with a warning.

        The subclass gets properties ``traits`` and ``why_not`` that have these values.
        """
        super().__pydantic_init_subclass__(**options)
        # the values that the class declares by former names, as holder (``traits`` or ``why_not``)
        # -> present name in the holder -> value
        declared: dict[_Holder, dict[str, object]] = {"traits": {}, "why_not": {}}
        for name, value in vars(cls).items():
            former_name = vars(FormerNames).get(name)
            if isinstance(former_name, _FormerName):  # has the holder and the present name
                former_name.warn()
                declared[former_name.holder][former_name.name] = value
        if "unprotected" in vars(cls):
            warn_renamed("StrategyParams.unprotected", "why_not.private_aggregation")
            for protection in ("private", "robust"):
                # calls the method of the object from which the reason is read
                reason = property(partial(cls.unprotected, protection=protection))
                declared["why_not"][f"{protection}_aggregation"] = reason
        for holder, values in declared.items():
            if values:
                setattr(cls, holder, _Converted(partial(_add_former, cls, holder, values)))


class _Converted(property):
    """Property ``traits`` or ``why_not`` with values that a class has declared by former names."""


def _add_former(
    cls: type[FormerNames], holder: _Holder, values: Mapping[str, object], params: FormerNames
) -> object:
    """Return an object's traits or reasons with the values that its class declares by former names.

    Args:
        cls: the class.
        holder: ``traits`` or ``why_not``; other values in it are inherited.
        values: present name -> value, which may be a property.
        params: the object.
    """
    return replace(
        getattr(super(cls, params), holder),
        **{name: _evaluate(value, params) for name, value in values.items()},
    )


def _without_former(holder: _Holder, params: FormerNames) -> object:
    """Return an object's traits or reasons without the values that classes declare by former names.

    A property that a class declares by a former name may itself read the inherited value by this
    name. If the result contained the declared values, such a property would call itself endlessly.

    Args:
        holder: ``traits`` or ``why_not``, the attribute with the values.
        params: the object.
    """
    for parent in type(params).__mro__:
        value = vars(parent).get(holder)
        if value is not None and not isinstance(value, _Converted):
            return _evaluate(value, params)
    raise AttributeError(holder)


def _evaluate(value: object, params: FormerNames) -> object:
    """Return a class attribute, or its value for an object if it is a property."""
    return value.fget(params) if isinstance(value, property) and value.fget else value
