"""Makes the pages of the reference out of the code; ``conf.py`` calls it before Sphinx reads
anything.

What it writes (``docs/generated``) is never kept: a key, a column, a verb or a strategy is on
its page since it is in the code.
"""

import csv
import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_origin

import click
import pyarrow as pa
from board import board, row_of

import fedsim
from fedsim import plugin
from fedsim.cli import main
from fedsim.common import units
from fedsim.common.files import read_toml
from fedsim.common.registry import Registry, specs_of
from fedsim.common.spec import Spec, summary
from fedsim.federation import client
from fedsim.lab.catalogue import Key, as_toml, catalogue, keys_of, specs_titled
from fedsim.lab.study.spec import StudySpec
from fedsim.records import schema
from fedsim.running.scenario import Scenario
from fedsim.running.shipped import shipped
from fedsim.strategies import STRATEGIES, strategy_class
from fedsim.world.network import endpoints

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OUT = HERE / "generated"

PARTS = {
    "client selections": ("selection", "`[strategy] selection`: whom a round asks."),
    "aggregations": (
        "aggregation",
        "`[strategy] aggregation`: how the updates of a cohort become one.",
    ),
    "server optimisers": (
        "server",
        "`[strategy] server`: what the server makes of the aggregated update.",
    ),
    "deadlines": ("deadline", "`[strategy] deadline`: how long the clients of a round have."),
    "codecs": ("codec", "`[messages] up` and `down`: how models are written."),
    "attacks": ("attack", "`[malicious] attack`: what malicious devices do."),
    "protocols": ("protocol", "`[network] protocol`: what a transfer is besides its payload."),
    "processes of the world": (
        "process",
        "`[world] processes`: what befalls links and devices besides.",
    ),
}
"""Title in the catalogue -> the page's name, and where a scenario says it."""

TABLES = {
    "events": (schema.EVENTS, "Everything that happened, in order: a row a record."),
    "transfers": (schema.TRANSFERS, "A row a message, when it is over."),
    "rounds": (
        schema.ROUNDS,
        "A row a round; where there are no rounds, a row a version of the model.",
    ),
    "devices": (schema.DEVICES, "A row a device, as it was at the end."),
    "availability": (
        schema.AVAILABILITY,
        "When devices could be reached: all of up to 2,000, else those that were asked.",
    ),
    "energy": (
        schema.OF_METERS["energy.parquet"],
        "A row a device, where the scenario counts energy.",
    ),
}

# their kinds are the same under every key: they have a page of their own
SHARED = "fedsim.world.distributions"


def write_all() -> None:
    """Write every page; one that says what it said before is left alone, so that Sphinx does not
    read it again.
    """
    pages = dict(_pages())
    for name, text in pages.items():
        path = OUT / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in OUT.rglob("*.md"):
        if path.relative_to(OUT).with_suffix("").as_posix() not in pages:
            path.unlink()


def _pages() -> Iterator[tuple[str, str]]:
    yield from _scenario()
    yield (
        "study",
        _page("Keys of a study", [_told(StudySpec), *_table(StudySpec, "study", {Scenario})]),
    )
    yield from _strategies()
    yield from _parts()
    yield "kinds", _page("Everything with a name", _kinds())
    yield "board", _page("The board: strategies in six worlds", board())
    yield "tables", _page("Tables of a run folder", _tables())
    yield "command", _page("The command line", _commands())
    yield from _python()
    yield from _project()
    yield from _results()
    notebooks = dict(_notebooks())
    yield from notebooks.items()
    yield "more", _page("Gallery, notebooks and more", [_more(notebooks)])


def _page(title: str, blocks: Iterable[str]) -> str:
    return "\n\n".join([f"# {title}", *(block for block in blocks if block)]) + "\n"


def _toctree(names: Iterable[str], *options: str) -> str:
    return "\n".join(["```{toctree}", ":maxdepth: 1", *options, "", *names, "```"])


# Text of docstrings, as Markdown.


def plain(text: str) -> str:
    """Text that says what it says: what Markdown would take for a sign is none."""
    return re.sub(r"([*_\[\]<>|#$^~\\{}])", r"\\\1", text)


def prose(text: str) -> str:
    """A docstring without its sections; ``code`` remains code."""
    told = re.split(
        r"\n(?:Attributes|Args|Raises|Returns|Yields):\n", inspect.cleandoc(text) + "\n"
    )[0].strip()
    return "".join(
        f"`{part}`" if number % 2 else plain(part) for number, part in enumerate(told.split("``"))
    )


def quoted(text: str) -> str:
    """A line of the catalogue, in which code stands in single quotes."""
    parts = re.split(r"(?<!\w)'([^'\n]+?)'(?![\w'])", text)
    return "".join(f"`{part}`" if number % 2 else plain(part) for number, part in enumerate(parts))


def _told(spec: type[Spec]) -> str:
    return quoted(summary(spec))


# Keys.


def _definition(key: Key, anchor: str, see: str, has_kinds: bool = False) -> str:
    usual = (
        f"default `{key.default}`"
        if key.default and len(key.default) <= 60
        else "required"
        if key.required
        else ""
    )
    usual = usual or ("defaults below" if key.default else "by default not given")
    told = f"\n\n  {quoted(key.meaning[0].upper() + key.meaning[1:])}" if key.meaning else ""
    told += (
        f"\n\n  Such as `{example}`."
        if (example := _example(anchor, key.name) or _made_up(key, has_kinds))
        else ""
    )
    return f"({anchor})=\n`{key.name}`\n: {quoted(key.allowed)}; {usual}.{see}{told}"


def _table(
    spec: type[Spec], path: str, seen: set[type[Spec]], level: int = 2, within: str = ""
) -> Iterator[str]:
    """The keys of a table, then the tables and kinds within, each in a section of its own; none
    of ``seen``, which grows.

    Anchors say the kinds ``within`` which a table stands, too: two kinds may have tables of one
    name.
    """
    keys = [key for key in keys_of(spec) if key.name != "kind" and key.name in spec.takes()]
    inner = {key.name: specs_of(spec.model_fields[key.name]) for key in keys}
    family = {name: _elsewhere(specs) for name, specs in inner.items()}
    kind = f".{spec.model_fields['kind'].default}" if "kind" in spec.model_fields else ""
    for key in keys:
        see = f" Its kinds: {family[key.name]}." if family[key.name] else ""
        yield _definition(
            key, _anchor(f"key-{within or path}{kind}-{key.name}"), see, bool(inner[key.name])
        )
    if not keys:
        yield "It takes no keys."
    for key in keys:
        for name, one in inner[key.name].items():
            if family[key.name] or one in seen:
                continue
            seen.add(one)
            where = f"{path}.{key.name}".strip(".")
            yield f"{'#' * min(level, 5)} `{where}`" + (f" = `{name}`" if name else "")
            yield _told(one)
            yield from _table(one, where, seen, level + 1, f"{within or path}{kind}.{key.name}")


@cache
def _examples() -> dict[str, dict[str, str]]:
    """Of each table in the shipped scenarios, the values of its keys as TOML, by the path of the
    table.
    """
    found: dict[str, dict[str, str]] = {}

    def read(tables: dict[str, Any], path: str) -> None:
        for key, value in tables.items():
            if isinstance(value, dict):
                read(value, f"{path}-{key}".strip("-"))
            if len(line := f"{key} = {as_toml(value)}") <= 80:
                found.setdefault(path, {}).setdefault(key, line)

    for path in shipped().values():
        tables = read_toml(path)
        for said in (
            [tables]
            if "strategy" in tables
            else [one for one in (tables.get("base"),) if isinstance(one, dict)]
        ):
            read(said, "")
    return found


def _example(anchor: str, name: str) -> str:
    """A line of a shipped scenario that says the key, in the table that the anchor is of; empty
    if none does.
    """
    table = anchor.removeprefix("key-").removesuffix(f"-{_anchor(name)}").split("-")
    # anchors say kinds, too: `population-availability-renewal`
    for most in range(len(table), 0, -1):
        if line := _examples().get("-".join(table[:most]), {}).get(name):
            return line
    return ""


_FORMS = {
    "a time": '"90 s"',
    "a data rate": '"20 Mbit/s"',
    "a size": '"5 MB"',
    "a power": '"4 W"',
    "a speed": '"6 samples/s"',
    "true or false": "true",
    "a list: each a whole number": "[1, 5]",
}


def _made_up(key: Key, has_kinds: bool) -> str:
    """A line with a value of the key's type and within its bounds; empty where its default shows
    one, or its type is open.
    """
    if key.default:
        return ""
    value = next(
        (value for form, value in _FORMS.items() if re.search(rf"(^|or ){form}", key.allowed)), ""
    )
    if number := re.match(
        r"a (whole )?number(?:, (more than )?([\d,.]+)(?: or more)?)?", key.allowed
    ):
        least = float((number[3] or "0").strip(",.").replace(",", ""))
        value = (
            f"{max(5.0, least + 1):g}" if number[1] else "0.5" if least < 0.5 else f"{least + 1:g}"
        )
    elif (
        not value
        and not has_kinds
        and (names := re.match(r"one of ([\w.-]+)(, [\w.-]+)*$", key.allowed))
    ):
        value = f'"{names[1]}"'
    return f"{key.name} = {value}" if value else ""


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _elsewhere(specs: dict[str, type[Spec]]) -> str:
    """A link to the page of these kinds, if they have one of their own."""
    known = list(specs.values())
    if known and all(spec.__module__ == SHARED for spec in known):
        return "[](/generated/scenario/quantities.md)"
    for title, (name, _) in PARTS.items():
        if known and {*known} <= {*specs_titled(title).values()}:
            return f"[](/generated/parts/{name}.md)"
    return (
        "[](/generated/strategies/index.md)"
        if known and {*known} <= {*specs_titled("strategies").values()}
        else ""
    )


def _scenario() -> Iterator[tuple[str, str]]:
    keys = {key.name: key for key in keys_of(Scenario)}
    tables = {name: specs_of(Scenario.model_fields[name]) for name in keys}
    pages = [name for name, specs in tables.items() if specs and name != "strategy"]
    about = [
        _told(Scenario)
        + " TOML, or `fedsim.Scenario(...)` with the same names. `fedsim list KEY` prints what "
        "these pages say, "
        "`fedsim schema` makes an editor complete it.",
        *(_definition(keys[name], f"key-{name}", "") for name in keys if not tables[name]),
        "Each of the other keys is a table, and has a page.",
        *(
            f"[`[{name}]`](/generated/scenario/{name}.md)\n: {quoted(keys[name].meaning)}"
            for name in pages
        ),
        "[`[strategy]`](/generated/strategies/index.md)\n: which strategy, and its keys: a "
        "page each.",
        _toctree([*pages, "quantities"], ":hidden:"),
    ]
    yield "scenario/index", _page("Keys of a scenario", about)
    for name in pages:
        yield f"scenario/{name}", _page(f"`[{name}]`", _section(name, tables[name]))
    yield "scenario/quantities", _page("Quantities and distributions", _quantities())


def _section(name: str, kinds: dict[str, type[Spec]]) -> Iterator[str]:
    seen: set[type[Spec]] = set(kinds.values())
    for kind, spec in kinds.items():
        if kind:
            yield f'## `kind = "{kind}"`'
        yield _told(spec)
        yield from _table(spec, name, seen, 3 if kind else 2)


def _quantities() -> Iterator[str]:
    yield (
        'A quantity is text: a number and its unit, as in `"90 s"`. A number without a unit is '
        "refused."
    )
    rows = ["| what | units | bounds, in the base unit |", "|---|---|---|"]
    for name, kind in vars(units).items():
        notes = [
            note for note in getattr(kind, "__metadata__", ()) if isinstance(note, units.Quantity)
        ]
        if notes and name != "PositiveSeconds":
            one = notes[0]
            base = next(unit for unit, factor in one.units.items() if factor == 1.0)
            names = ", ".join(f"`{unit}`" for unit in one.units)
            bounds = f"0, {one.least:g} to {one.most:g} {base}" + (
                f", `inf {base}`" if one.infinite else ""
            )
            rows.append(f"| {one.what} | {names} | {bounds} |")
    yield "\n".join(rows)
    yield "## Distributions"
    yield (
        'Where devices differ, a key takes one value for all (`speed = "6 samples/s"`), a list '
        "with a value a device, a column "
        "of a file, or a distribution that each device draws from once."
    )
    for kind, spec in specs_titled("speed distributions").items():
        yield f'### `kind = "{kind}"`'
        yield _told(spec)
        for block in _table(spec, f"distribution.{kind}", {spec}, 4):
            yield block.replace(
                "a speed in samples/s, samples/min, samples/h", "what the key itself takes"
            )


# Strategies and parts.


def _strategies() -> Iterator[tuple[str, str]]:
    notes = _rows_of((HERE / "strategies.md").read_text(encoding="utf-8"))
    rows = [
        f"| [`{kind}`](/generated/strategies/{kind}.md) | {plain(about)} |"
        for kind, about in STRATEGIES.titles.items()
    ]
    index = [
        "A page each: what it does, its source, what it keeps and sends, and its keys.",
        "| kind | what it is |\n|---|---|\n",
    ]
    index[1] += "\n".join(rows)
    yield "strategies/index", _page("All strategies", [*index, _toctree(STRATEGIES, ":hidden:")])
    titles = [about.partition(":")[0] for about in STRATEGIES.titles.values()]
    for kind, about in STRATEGIES.titles.items():
        title, _, does = about.partition(": ")
        name = title if titles.count(title) == 1 else f"{title} ({kind})"
        yield f"strategies/{kind}", _page(name, _strategy(kind, does, notes.get(kind, "")))


def _strategy(kind: str, does: str, note: str) -> Iterator[str]:
    found = strategy_class(kind)
    yield f'```toml\n[strategy]\nkind = "{kind}"\n```'
    yield f"*{plain(does[0].upper() + does[1:])}.*"
    yield prose(found.__doc__ or "")
    yield note
    kinds = {strategy_class(other): other for other in STRATEGIES}
    above = [
        one
        for one in found.__mro__[1:]
        if one in kinds or getattr(plugin, one.__name__, None) is one
    ]
    if above:
        links = ", ".join(
            f"[](/generated/strategies/{kinds[one]}.md)"
            if one in kinds
            else f"{{py:class}}`~fedsim.plugin.{one.__name__}`"
            for one in above
        )
        yield f"It is built on {links}; what these say of rounds, tasks and state holds here too."
    yield "## What a device does"
    owner = next(one for one in found.__mro__ if "Client" in vars(one))
    if found.Client is plugin.Client:
        yield "Trains for `local_epochs` from the model that it has received, and sends its update."
    elif owner is found or owner not in kinds:
        yield prose(found.Client.__doc__ or "")
    else:
        yield (
            f"The same as in [](/generated/strategies/{kinds[owner]}.md): "
            f"{prose(found.Client.__doc__ or '')}"
        )
    yield "## Keys"
    yield from _table(found.Params, f"strategy.{kind}", set(), 3)


def _rows_of(page: str) -> dict[str, str]:
    """What the tables of a hand-written page say of each kind, as blocks; and where to read on.

    A table of properties becomes a list of them; a row of results stays a row, under its heads.
    """
    told: dict[str, list[str]] = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        for table in re.findall(r"(?:^\|.*\n)+", section, flags=re.MULTILINE):
            heads, rule, *rows = [
                [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
            ]
            for row in rows:
                for name in row[0].replace("`", "").split(", "):
                    told.setdefault(name, []).append(_row(title, heads, rule, row))
    return {name: "\n\n".join(said) for name, said in told.items()}


def _row(title: str, heads: list[str], rule: list[str], row: list[str]) -> str:
    more = f"More under [{title}](/strategies.md)."
    if heads[0] == "variant":
        cells = [heads, rule, [row[0], *(cell or "not reached" for cell in row[1:])]]
        return "\n".join(
            [
                "In the study `field` (what the columns are stands there):\n",
                *map(row_of, cells),
                "",
                more,
            ]
        )
    said = [
        f"{head[:1].upper()}{head[1:]}\n: {cell}"
        for head, cell in zip(heads[1:], row[1:], strict=False)
        if cell
    ]
    return "\n\n".join([*said, more])


def _parts() -> Iterator[tuple[str, str]]:
    listed = catalogue()
    for title, (name, where) in PARTS.items():
        blocks = [where]
        about = dict(listed[title])
        for kind, spec in specs_titled(title).items():
            blocks += [
                f"## `{kind}`",
                f"*{plain(about[kind][0].upper() + about[kind][1:])}.*",
                _source(spec),
            ]
            blocks += [prose(spec.__doc__ or ""), *_table(spec, f"{name}.{kind}", {spec}, 3)]
        yield f"parts/{name}", _page(title.capitalize(), blocks)
    names = [name for name, _ in PARTS.values()]
    yield (
        "parts/index",
        _page("All parts", ["A page a family, with every kind and its keys.", _toctree(names)]),
    )


def _source(spec: type[Spec]) -> str:
    """The first line of the file that a kind lives in: there stands the paper."""
    told = (inspect.getmodule(spec).__doc__ or "").partition("\n")[0]  # type: ignore[union-attr]
    return plain(told) if re.search(r"\b(19|20)\d\d\b", told) else ""


def _kinds() -> Iterator[str]:
    yield "What `fedsim list` prints: every name that a scenario or a study can say."
    for title, entries in catalogue().items():
        yield f"## {title.capitalize()}"
        yield "| name | what it is |\n|---|---|\n" + "\n".join(
            f"| `{name}` | {quoted(about)} |" for name, about in entries
        )


# Tables, the command line, Python.


def _tables() -> Iterator[str]:
    glossary = (HERE / "glossary.md").read_text(encoding="utf-8")
    yield (
        "A run folder is Parquet, JSON, TOML and safetensors: any library reads them. "
        "`fedsim.load_run(DIR)` gives the tables "
        "as pandas frames. Times are simulated, in s from the start; an empty cell says that "
        "there is no such thing. "
        "What is promised of older folders stands in [](/generated/project/contributing.md)."
    )
    for name, (columns, about) in TABLES.items():
        told = {
            column: unit
            for names, unit in re.findall(
                rf"^\| {name} \| (.*?) \| (.*) \|$", glossary, re.MULTILINE
            )
            for column in re.findall(r"`(\w+)`", names)
        }
        rows = "\n".join(
            f"| `{field.name}` | {_type(field.type)} | {told[field.name]} |" for field in columns
        )
        yield f"## `{name}.parquet`"
        yield f"{about}\n\n| column | type | unit, or what it is |\n|---|---|---|\n{rows}"


def _type(kind: pa.DataType) -> str:
    return "name" if pa.types.is_dictionary(kind) else str(kind).replace("double", "float64")


def _commands() -> Iterator[str]:
    yield "What `fedsim --help` and `fedsim VERB --help` say. " + (
        "It leaves with 0 when done, 2 where the scenario or the command line is wrong, 1 "
        "after anything else, and 130 when "
        "interrupted, with what there was kept."
    )
    yield from _verbs(main, "fedsim")


def _verbs(group: click.Group, path: str) -> Iterator[str]:
    for name, verb in sorted(group.commands.items()):
        context = click.Context(verb, info_name=f"{path} {name}")
        if isinstance(verb, click.Group):
            yield from _verbs(verb, f"{path} {name}")
        elif not verb.hidden:
            yield f"## `{path} {name}`\n\n```text\n{verb.get_help(context)}\n```"


_HEADS = {
    "fedsim": "`import fedsim` loads nothing heavy: each name is loaded when it is first used.",
    "fedsim.plugin": "What the author of a strategy, a part, data or a process of the world needs.",
    "fedsim.testing": "The checks that every strategy must pass, for your own too.",
}


def _python() -> Iterator[tuple[str, str]]:
    yield "python/index", _page("The Python face", ["What is public, and stays.", _toctree(_HEADS)])
    names = {
        "fedsim": fedsim.__all__,
        "fedsim.plugin": plugin.__all__,
        "fedsim.testing": ["StrategyContract"],
    }
    for module, listed in names.items():
        blocks = [_HEADS[module], f"```{{eval-rst}}\n.. py:module:: {module}\n```"]
        for name in listed:
            thing: Any = getattr(__import__(module, fromlist=[name]), name)
            if get_origin(thing) is Annotated:
                blocks.append(f"## `{name}`\n\n{_type_of_key(thing)} See [](/howto/keys.md).")
                continue
            way = "autofunction" if inspect.isfunction(thing) else "autoclass"
            home = module
            if isinstance(thing, str | int):  # what it is stands where it is made, below it
                way, home = "autodata", (client if isinstance(thing, str) else endpoints).__name__
            options = (
                ["   :members:"] if way == "autoclass" and not issubclass(thing, Exception) else []
            )
            blocks.append(
                "\n".join(
                    [
                        f"## `{name}`\n",
                        "```{eval-rst}",
                        f".. {way}:: {home}.{name}",
                        *options,
                        "```",
                    ]
                )
            )
        yield f"python/{module}", _page(f"`{module}`", blocks)


def _type_of_key(alias: Any) -> str:
    """A type for keys of own parts, in words."""
    for note in alias.__metadata__:
        if isinstance(note, units.Quantity):
            base = next(unit for unit, factor in note.units.items() if factor == 1.0)
            accepted = ", ".join(f"`{unit}`" for unit in note.units)
            least = "" if note.zero else ", above 0"
            return (
                f"A key that is {note.what}: a float in {base}{least}; in a scenario with one of "
                f"the units {accepted}."
            )
        if isinstance(note, Registry):
            return (
                f"A key that holds a {note.called}: a name, an import path, or a table with a "
                "`kind`."
            )
    raise TypeError(f"{alias!r} is no type of a key")


# Pages that are other files of the repository.


def _project() -> Iterator[tuple[str, str]]:
    """The files of the house, whose links lead to pages here, or else to nothing but the name of
    a file.
    """
    for name in _HOUSE:
        text = re.sub(r"\]\(docs/", "](/", (ROOT / name).read_text(encoding="utf-8"))
        for other in _HOUSE:
            text = text.replace(f"]({other}", f"](/generated/project/{other.lower()}")
        yield f"project/{name.removesuffix('.md').lower()}", text


_HOUSE = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


def _results() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "scenarios").glob("*/RESULTS.md")):
        yield f"results/{path.parent.name}", path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "scenarios" / "outside").glob("*/predicted.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            found = list(csv.reader(file))
        # the others are too many for a page
        shown = found if len(found) < 600 else [row for row in found if row[2]]
        rows = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in shown]
        head = (path.parent / "README.md").read_text(encoding="utf-8")
        lines = [
            head,
            "## All rows"
            if shown == found
            else "## Rows with a measurement; the others are in `predicted.csv`",
            "",
            rows[0],
            "|---|---|---:|---:|---:|---|",
            *rows[1:],
            "",
        ]
        yield f"results/outside-{path.parent.name}", "\n".join(lines)


def _notebooks() -> Iterator[tuple[str, str]]:
    """Percent scripts as pages: cells of Markdown as they are, cells of code as blocks."""
    for path in sorted((HERE / "notebooks").glob("*.py")):
        blocks = []
        for cell in re.split(r"^# %%", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            head, _, body = cell.partition("\n")
            text = re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip()
            blocks.append(text if "[markdown]" in head else f"```python\n{body.strip()}\n```")
        yield f"notebooks/{path.stem}", "\n\n".join(blocks) + "\n"


def _more(notebooks: Iterable[str]) -> str:
    """What has come without being named on the first page."""
    named = re.findall(
        r"^[\w/]+$", (HERE / "index.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    others = [path.stem for path in sorted(HERE.glob("*.md")) if path.stem not in (*named, "index")]
    gallery = ["/generated/gallery/index"] if [*(HERE / "gallery").glob("plot_*.py")] else []
    return _toctree(
        [*gallery, *(f"/generated/{name}" for name in notebooks), *(f"/{name}" for name in others)]
    )


if __name__ == "__main__":
    write_all()
