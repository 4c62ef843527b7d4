"""Registration of the classes whose objects a checkpoint saves, and of the fields that it omits.

``@saved()`` above a class registers it. The subclasses of ``TaskStep`` and of ``Entries``, such as
the states of strategies, register themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

C = TypeVar("C", bound=type)


@dataclass(frozen=True, slots=True)
class SavedForm:
    """Form in which a checkpoint saves the objects of a class.

    Attributes:
        name: name of the class in checkpoints.
        omit: fields that are not saved; a restore sets them to their defaults, if they have any.
    """

    name: str
    omit: frozenset[str] = frozenset()


SAVED_FORMS: dict[type, SavedForm] = {}
"""Each class whose objects may be saved -> their form in checkpoints."""


def saved(*, omit: tuple[str, ...] = ()) -> Callable[[C], C]:
    """Register the decorated class, whose objects checkpoints then save field by field.

    Objects of a subclass are saved only if the subclass is registered, too. The decorator has to be
    above ``@dataclass``, because ``slots=True`` makes another class.

    Args:
        omit: fields that are not saved, such as callbacks. The code that restores the object sets
            these fields again.

    Returns:
        The decorator, which returns the class itself.
    """

    def register(cls: C) -> C:
        register_saved(cls, omit)
        return cls

    return register


def register_saved(cls: type, omit: tuple[str, ...] = ()) -> None:
    """Register a class whose objects checkpoints save, as ``saved`` does.

    Classes of fedsim have their qualified name in checkpoints. The names of all other classes begin
    with their module, so that two users' classes never share a name.

    Args:
        cls: the class.
        omit: fields that are not saved.
    """
    name = cls.__qualname__
    if not cls.__module__.startswith("fedsim."):
        name = f"{cls.__module__}:{name}"
    SAVED_FORMS[cls] = SavedForm(name, frozenset(omit))


def saved_classes() -> dict[str, type]:
    """Return the classes whose objects checkpoints may save, by their names in checkpoints."""
    return {form.name: cls for cls, form in SAVED_FORMS.items()}
