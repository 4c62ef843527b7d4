"""Registries of the kinds of each part of a scenario.

A kind is found by its name, by an entry point of an installed package, or by its import path. A
kind is a subclass of ``Spec``, whose fields are its parameters and whose methods do its work.
``KindField`` describes the scenario's keys that hold a part.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, cast

from fedsim.common.errors import ScenarioError, nearest, show_value
from fedsim.common.field_words import hint_for_kind
from fedsim.common.imports import entry_points_of, import_class, import_trusted
from fedsim.common.returns import guard
from fedsim.common.spec import Spec, summary
from fedsim.common.table_classes import with_any_kind

_NAME = re.compile(r"[A-Za-z][\w-]*")
_IMPORT_PATH = re.compile(r"[\w./-]+:[A-Za-z_]\w*")


@dataclass(frozen=True, eq=False)
class Registry:
    """Registry of the kinds (alternatives) of a part of a scenario, such as all selections.

    A kind has a name, and a class with its parameters and methods.

    Attributes:
        called: name of the part in messages, such as ``server optimiser``. It also gives the name
            of the entry point group (``group``).
        base: import path of the class that a user's kind has to inherit; empty if users cannot add
            a kind.
        known: built-in kinds: name -> pair of the class (or its import path) and the title that
            ``fedsim list`` shows.
        usual: name of the kind that a table without the key ``kind`` has; None if the key is
            required.
        key: dotted name of the scenario's key for the part, such as ``strategy.selection``, in
            messages about a user's class.
        quantity: type argument for built-in kinds that are generic classes. With ``Seconds``, the
            kind ``constant`` is the class ``Constant[Seconds]``. None if no kind is generic.
    """

    called: str
    base: str
    known: Mapping[str, tuple[str | type[Spec], str]] = field(repr=False)
    _: KW_ONLY
    usual: str | None = None
    key: str = ""
    quantity: object = None

    @classmethod
    def of(
        cls,
        called: str,
        *specs: type[Spec],
        base: str = "",
        usual: str | None = None,
        key: str = "",
        quantity: object = None,
    ) -> "Registry":
        """Make a registry of classes, each under the default of its field ``kind``.

        The first sentence of a class's docstring is its title in lists of kinds.

        Args:
            called: name of the part in messages.
            specs: the classes of the built-in kinds.
            base, usual, key, quantity: values of the attributes with these names.
        """
        known = {}
        for spec in specs:
            kind = spec.model_fields["kind"].default
            known[kind] = (spec, summary(spec))
        return cls(called, base, known, usual=usual, key=key, quantity=quantity)

    @property
    def group(self) -> str | None:
        """Entry point group by which packages add kinds, such as ``fedsim.server_optimiser``.

        None if users cannot add a kind.
        """
        return f"fedsim.{self.called.replace(' ', '_')}" if self.base else None

    @cached_property
    def kinds(self) -> Mapping[str, str | type[Spec]]:
        """Kinds of the part, such as all selections: name -> class, or import path of the class.

        They are the built-in kinds, and the kinds that installed packages add by entry points of
        ``group``.
        """
        kinds: dict[str, str | type[Spec]] = {}
        if self.group is not None:
            # spelling of the group before 2026, which setuptools refuses
            earlier_group = self.group.replace("_", "-")
            kinds |= entry_points_of(earlier_group)
            kinds |= entry_points_of(self.group)
        # added last, so that no package replaces a built-in kind
        for name, (source, _title) in self.known.items():
            kinds[name] = source
        return kinds

    @property
    def titles(self) -> dict[str, str]:
        """Titles of all kinds, for ``fedsim list``: name of the kind -> description in one line."""
        titles = {}
        for name in self.kinds:
            if name in self.known:
                _, titles[name] = self.known[name]
            else:
                titles[name] = summary(self.class_of(name))
        return titles

    def class_of(self, kind: str, key: str = "kind") -> Any:
        """Return the class of a kind, such as ``SGD`` for the server optimiser ``sgd``.

        Args:
            kind: name of a kind, or import path of a user's class.
            key: dotted name of the scenario's key with this value, such as
                ``strategy.selection.kind``, for error messages.

        Raises:
            ScenarioError: the kind or the class at the path does not exist.
        """
        if kind in self.known:
            source, _ = self.known[kind]  # import path, or the class itself
            known_class = import_trusted(source, key) if isinstance(source, str) else source
            if self.quantity is None:
                return known_class
            is_generic = bool(known_class.__pydantic_generic_metadata__["parameters"])
            if not is_generic:
                return known_class
            # pydantic takes long to make the class of a quantity, so it is made when it is needed
            return known_class.__class_getitem__(cast("type[object]", self.quantity))
        # the kind is a user's class by its import path, or is defined by another package
        is_path = ":" in kind and bool(self.base)
        path = kind if is_path else self.kinds.get(kind)
        if path is None:
            raise ScenarioError(f"{key} is {show_value(kind)}{self._why_refused(kind)}")
        base_name = self.base.rpartition(":")[2]
        public_name = f"fedsim.plugin.{base_name}"
        base = import_trusted(self.base, self.called)
        kind_class = import_class(str(path), key, base, public_name, is_trusted=not is_path)
        self.guard(kind_class, key)
        return kind_class

    def guard(self, kind_class: type, class_key: str) -> None:
        """Check the form of a user's class, and make its methods check their results.

        A method has a wrong form if it does not accept the calls that the base class's method
        accepts. After the change, a method that returns a wrong value raises an error with a clear
        message. Classes of fedsim are not changed.

        Args:
            kind_class: the class of a kind, a user's or fedsim's.
            class_key: dotted name of the scenario's key that names the class, for errors about the
                form of methods.

        Raises:
            ScenarioError: a method has a wrong form, or an attribute a wrong value.
        """
        guard(kind_class, self.key or self.called, class_key)

    def _why_refused(self, kind: str) -> str:
        """Return the part of an error's message that says why a kind is unknown, and which are allowed.

        Args:
            kind: the unknown kind.
        """
        options = []
        if self.kinds:
            options.append(", ".join(self.kinds))
        if self.base:
            options.append("your own as 'package.module:Class'")
        reason = ""
        if self.is_refused_path(kind):
            reason = ", a class of your own, which is not taken here"
        return f"{reason}; allowed are {', or '.join(options)}{self._hint_for(kind)}"

    def _hint_for(self, kind: str) -> str:
        """Return a hint at the kind that was probably meant by an unknown kind.

        The hint is text in brackets, such as ``" (did you mean 'oort'?)"``; empty if there is none.
        """
        if self.is_refused_path(kind) and "module" in self.kinds:
            return f" (your own is {{ kind = 'module', factory = {kind!r} }})"
        return hint_for_kind(kind) or nearest(kind, self.kinds)

    def is_kind(self, text: str) -> bool:
        """Return whether a text is the name of a kind, or the import path of a user's class."""
        if ":" in text:
            return bool(self.base)
        return text in self.known or (_NAME.fullmatch(text) is not None and text in self.kinds)

    def is_refused_path(self, text: str) -> bool:
        """Return whether a text is an import path, and users cannot add kinds to this registry."""
        return not self.base and _IMPORT_PATH.fullmatch(text) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)

    def spec(self, kind: str, key: str = "kind") -> type[Spec]:
        """Return the class that validates a scenario's TOML table with the given ``kind``.

        For a kind that is not built in, the result is a subclass of the kind's class. It accepts
        any text as ``kind``, because the table may have an import path there.

        Args:
            kind: name of a kind, or import path of a user's class.
            key: dotted name of the scenario's key with this value, such as
                ``strategy.selection.kind``, for error messages.

        Raises:
            ScenarioError: there is no such kind, or no such class at the import path.
        """
        kind_class: type[Spec] = self.class_of(kind, key)
        return kind_class if kind in self.known else with_any_kind(kind_class)

    def holds(self, value: Spec) -> bool:
        """Return whether an object is an instance of one of the kinds, or of their base class."""
        if self.base and isinstance(value, import_trusted(self.base, self.called)):
            return True
        return getattr(value, "kind", None) in self.kinds
