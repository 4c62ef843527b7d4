"""Results of ``fedsim list`` and ``fedsim describe``."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import JsonValue

from fedsim.cli.results.parts import ResultEntries, VerbResult
from fedsim.lab.catalogue import catalogue, figures_of, keys_of, specs_titled


class NamedEntry(ResultEntries):
    """Name that a scenario or study can use, such as ``fedavg``, with a description in one line."""

    name: str
    """The name, such as ``fedavg``."""
    meaning: str
    """Description in one line."""


class ListResult(VerbResult):
    """JSON output of ``fedsim list`` without a name: all names that a scenario or study can use.

    Names are grouped by title, such as ``strategies`` or ``models``.
    """

    verb: Literal["list"] = "list"
    names: dict[str, list[NamedEntry]]
    """Names by title, such as ``strategies``."""

    @classmethod
    def of(cls, titled: Mapping[str, Sequence[tuple[str, str]]]) -> "ListResult":
        """Build the result from the catalogue of names.

        Args:
            titled: title, such as ``strategies`` -> pairs of name and description.
        """
        names = {}
        for title, entries in titled.items():
            names[title] = [NamedEntry(name=name, meaning=meaning) for name, meaning in entries]
        return cls(names=names)


class KeyResult(ResultEntries):
    """Key of a TOML table in a scenario or study, as ``fedsim describe --json`` prints it.

    It has the key's name, default, allowed values and meaning, and whether the key is required.
    """

    name: str
    """Name of the key."""
    default: str
    """Default as TOML; empty if there is none."""
    required: bool
    """Whether the table has to have the key."""
    allowed: str
    """Allowed type, unit and bounds, as text for people."""
    meaning: str
    """Description of the key."""


class FigureResult(ResultEntries):
    """Published value, such as the memory of a kind of device, with its source and date.

    ``fedsim describe`` prints these values for kinds of devices, presets, links and regions.
    """

    key: str
    """Name of the figure."""
    value: JsonValue
    """The figure, with its unit if it is text."""
    source: str
    """Publication of the figure; ``estimate`` and a reason if it is not published."""
    date: str
    """Month of the source."""


class KindResult(ResultEntries):
    """Description of a name that a scenario or study can use, such as ``fedavg``.

    It has the keys of the TOML table that belongs to the name, and published values such as the
    memory of a kind of device, if there are any.
    """

    name: str
    """The name, such as ``fedavg``."""
    title: str
    """Title under which ``fedsim list`` has the name."""
    meaning: str
    """Description in one line."""
    keys: list[KeyResult]
    """Keys of its table."""
    figures: list[FigureResult]
    """Published figures; empty for names without figures."""

    @classmethod
    def of(cls, title: str, name: str, meaning: str) -> "KindResult":
        keys = []
        specs = specs_titled(title)
        if name in specs:
            keys = [KeyResult(**key._asdict()) for key in keys_of(specs[name])]
        figures = [
            FigureResult(key=key, value=figure.value, source=figure.source, date=figure.date)
            for key, figure in figures_of(title, name).items()
        ]
        return cls(name=name, title=title, meaning=meaning, keys=keys, figures=figures)


class DescribeResult(VerbResult):
    """JSON output of ``fedsim describe``, and of ``fedsim list`` with a name.

    It has a description for each kind of thing that the name can mean, and the text for people.
    """

    verb: Literal["describe", "list"] = "describe"
    name: str
    """The argument NAME of the command."""
    kinds: list[KindResult]
    """Names of the catalogue that equal ``name``."""
    lines: list[str]
    """The whole description, also of tables and keys, as text for people."""

    @classmethod
    def of(cls, verb: Literal["describe", "list"], name: str, lines: list[str]) -> "DescribeResult":
        """Build the result for a name, with all entries of the catalogue that have this name.

        Args:
            verb: the command that prints the description.
            name: the name, such as ``fedavg``.
            lines: the whole description, as text for people.
        """
        kinds = []
        for title, entries in catalogue().items():
            meaning = dict(entries).get(name)
            if meaning is not None:
                kinds.append(KindResult.of(title, name, meaning))
        return cls(verb=verb, name=name, kinds=kinds, lines=lines)
