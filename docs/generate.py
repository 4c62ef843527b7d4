"""Makes the pages of the reference out of the code; ``conf.py`` calls it before Sphinx starts.

The pages (``docs/generated``) are not in the repository. A new key, column, verb or strategy is
on its page without further work.
"""

import csv
import inspect
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_origin

import click
import pyarrow as pa
from board import board
from keys import definition, table
from kinds import part_pages, strategy_pages
from pydantic.json_schema import JsonSchemaValue
from text import about, page, quoted, row_of, toctree

import fedsim
from fedsim import plugin
from fedsim.cli import main
from fedsim.cli.results.schema import RESULTS, output_schema
from fedsim.common import training, units
from fedsim.common.kind_field import KindField, specs_of
from fedsim.common.spec import Spec
from fedsim.federation import client
from fedsim.lab.catalogue import catalogue, keys_of, specs_titled
from fedsim.lab.study.spec import StudySpec
from fedsim.learning.data import federated
from fedsim.records import schema
from fedsim.running.scenario import Scenario
from fedsim.world.network import endpoints

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OUT = HERE / "generated"

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


def write_all() -> None:
    """Write every page that has changed, so that Sphinx reads no other page again."""
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
    yield "study", page("Keys of a study", _study())
    yield from strategy_pages()
    yield from part_pages()
    yield "kinds", page("Everything with a name", _kinds())
    yield "board", page("The board: strategies in six worlds", board())
    yield "tables", page("Tables of a run folder", _tables())
    yield "command", page("The command line", _commands())
    yield "output", page("Objects that `--json` prints", _outputs())
    yield from _python()
    yield from _project()
    yield from _results()
    notebooks = dict(_notebooks())
    yield from notebooks.items()
    yield "more", page("Gallery, notebooks and more", [_other_pages(notebooks)])


# Keys of scenarios and studies, and all names.


def _study() -> Iterator[str]:
    yield about(StudySpec)
    yield from table(StudySpec, "study", {Scenario})


def _scenario() -> Iterator[tuple[str, str]]:
    keys = {key.name: key for key in keys_of(Scenario)}
    tables = {name: specs_of(Scenario.model_fields[name]) for name in keys}
    names = [name for name, specs in tables.items() if specs and name != "strategy"]
    blocks = [
        about(Scenario)
        + " TOML, or `fedsim.Scenario(...)` with the same names. `fedsim list KEY` prints what "
        "these pages say, `fedsim schema` makes an editor complete it."
    ]
    for name, key in keys.items():
        if not tables[name]:
            blocks.append(definition(key, f"key-{name}"))
    blocks.append("Each of the other keys is a table, and has a page.")
    for name in names:
        link = f"[`[{name}]`](/generated/scenario/{name}.md)"
        blocks.append(f"{link}\n: {quoted(keys[name].meaning)}")
    blocks.append(
        "[`[strategy]`](/generated/strategies/index.md)\n: which strategy, and its keys: a "
        "page each."
    )
    blocks.append(toctree([*names, "quantities"], ":hidden:"))
    yield "scenario/index", page("Keys of a scenario", blocks)
    for name in names:
        yield f"scenario/{name}", page(f"`[{name}]`", _section(name, tables[name]))
    yield "scenario/quantities", page("Quantities and distributions", _quantities())


def _section(name: str, kinds: dict[str, type[Spec]]) -> Iterator[str]:
    seen: set[type[Spec]] = set(kinds.values())
    for kind, spec in kinds.items():
        if kind:
            yield f'## `kind = "{kind}"`'
        yield about(spec)
        yield from table(spec, name, seen, 3 if kind else 2)


def _quantities() -> Iterator[str]:
    yield (
        'A quantity is text: a number and its unit, as in `"90 s"`. A number without a unit is '
        "refused."
    )
    rows = ["| what | units | bounds, in the base unit |", "|---|---|---|"]
    for name, kind in vars(units).items():
        notes = getattr(kind, "__metadata__", ())
        quantities = [note for note in notes if isinstance(note, units.Quantity)]
        if quantities and name != "PositiveSeconds":
            rows.append(_quantity_row(quantities[0]))
    yield "\n".join(rows)
    yield "## Distributions"
    yield (
        'Where devices differ, a key takes one value for all (`speed = "6 samples/s"`), a list '
        "with a value a device, a column "
        "of a file, or a distribution that each device draws from once."
    )
    for kind, spec in specs_titled("speed distributions").items():
        yield f'### `kind = "{kind}"`'
        yield about(spec)
        for block in table(spec, f"distribution.{kind}", {spec}, 4):
            yield block.replace(
                "a speed in samples/s, samples/min, samples/h", "what the key itself takes"
            )


def _quantity_row(quantity: units.Quantity) -> str:
    base = _base_unit(quantity)
    names = ", ".join(f"`{unit}`" for unit in quantity.units)
    bounds = f"0, {quantity.least:g} to {quantity.most:g} {base}"
    if quantity.infinite:
        bounds += f", `inf {base}`"
    return f"| {quantity.what} | {names} | {bounds} |"


def _base_unit(quantity: units.Quantity) -> str:
    return next(unit for unit, factor in quantity.units.items() if factor == 1.0)


def _kinds() -> Iterator[str]:
    yield "What `fedsim list` prints: every name that a scenario or a study can say."
    for title, entries in catalogue().items():
        rows = ["| name | what it is |", "|---|---|"]
        rows += [f"| `{name}` | {quoted(words)} |" for name, words in entries]
        yield f"## {title.capitalize()}"
        yield "\n".join(rows)


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
    for name, (columns, description) in TABLES.items():
        meanings = _meanings(glossary, name)
        rows = ["| column | type | unit, or what it is |", "|---|---|---|"]
        for field in columns:
            rows.append(f"| `{field.name}` | {_type(field.type)} | {meanings[field.name]} |")
        yield f"## `{name}.parquet`"
        yield description
        yield "\n".join(rows)


def _meanings(glossary: str, table_name: str) -> dict[str, str]:
    """The glossary's words on each column of a table."""
    meanings = {}
    pattern = rf"^\| {table_name} \| (.*?) \| (.*) \|$"
    for names, meaning in re.findall(pattern, glossary, re.MULTILINE):
        for column in re.findall(r"`(\w+)`", names):
            meanings[column] = meaning
    return meanings


def _type(kind: pa.DataType) -> str:
    return "name" if pa.types.is_dictionary(kind) else str(kind).replace("double", "float64")


def _commands() -> Iterator[str]:
    yield "What `fedsim --help` and `fedsim VERB --help` say. " + (
        "It leaves with 0 when done, 2 where the scenario or the command line is wrong, 1 "
        "after anything else, and 130 when "
        "interrupted, with what there was kept: [](/howto/programs.md)."
    )
    yield from _verbs(main, "fedsim")


def _outputs() -> Iterator[str]:
    schema = output_schema()
    yield (
        "What each verb prints with `--json` (see [](/howto/programs.md)), made of its JSON schema, "
        "which `fedsim schema output` prints. Objects that others contain come last."
    )
    definitions = dict(schema["$defs"])
    results = [result.__name__ for result in RESULTS]
    for name in [*results, *(name for name in definitions if name not in results)]:
        described = definitions[name]
        yield f"## `{name}`"
        yield quoted(described.get("description", ""))
        if "properties" in described:
            rows = ["| entry | type | what it is |", "|---|---|---|"]
            for key, value in described["properties"].items():
                meaning = quoted(value.get("description", "")).replace("\n", " ")
                rows.append(f"| `{key}` | {_json_type(value)} | {meaning} |")
            yield "\n".join(rows)


def _json_type(schema: JsonSchemaValue) -> str:
    """Type of an entry of an object, in words; a link's text for an object of its own."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        return " or ".join(_json_type(kind) for kind in schema["anyOf"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_json_type(schema.get('items', {}))}"
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        return f"object of {_json_type(values)}"
    return str(schema.get("type", "any value"))


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
    index = ["What is public, and stays.", toctree(_HEADS)]
    yield "python/index", page("The Python face", index)
    names = {
        "fedsim": fedsim.__all__,
        "fedsim.plugin": plugin.__all__,
        "fedsim.testing": ["StrategyContract"],
    }
    for module, public in names.items():
        blocks = [_HEADS[module], f"```{{eval-rst}}\n.. py:module:: {module}\n```"]
        for name in public:
            value: Any = getattr(__import__(module, fromlist=[name]), name)
            blocks.append(f"## `{name}`")
            if get_origin(value) is Annotated:
                blocks.append(f"{_type_of_key(value)} See [](/howto/keys.md).")
            else:
                blocks.append(_directive(module, name, value))
        yield f"python/{module}", page(f"`{module}`", blocks)


def _directive(module: str, name: str, value: Any) -> str:
    """Sphinx's directive for a public name."""
    lines = [f".. autoclass:: {module}.{name}"]
    if isinstance(value, str | int):
        # its description is below its definition
        modules = (client, endpoints, federated, training)
        home = next(module for module in modules if name in vars(module))
        lines = [f".. autodata:: {home.__name__}.{name}"]
    elif inspect.isfunction(value):
        lines = [f".. autofunction:: {module}.{name}"]
    elif not issubclass(value, Exception):
        lines.append("   :members:")
    return "\n".join(["```{eval-rst}", *lines, "```"])


def _type_of_key(alias: Any) -> str:
    """A type for keys of the user's own parts, in words."""
    for note in alias.__metadata__:
        if isinstance(note, units.Quantity):
            accepted = ", ".join(f"`{unit}`" for unit in note.units)
            least = "" if note.zero else ", above 0"
            return (
                f"A key that is {note.what}: a float in {_base_unit(note)}{least}; in a scenario "
                f"with one of the units {accepted}."
            )
        if isinstance(note, KindField):
            return (
                f"A key that holds a {note.registry.called}: a name, an import path, or a table with a "
                "`kind`."
            )
    raise TypeError(f"{alias!r} is no type of a key")


# Pages that are other files of the repository.


def _project() -> Iterator[tuple[str, str]]:
    """The files of the project; links to other files than these and pages stay as they are."""
    for name in _HOUSE:
        text = re.sub(r"\]\(docs/", "](/", (ROOT / name).read_text(encoding="utf-8"))
        for linked in _HOUSE:
            text = text.replace(f"]({linked}", f"](/generated/project/{linked.lower()}")
        yield f"project/{name.removesuffix('.md').lower()}", text


_HOUSE = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
_MOST_ROWS = 600  # of a table of predictions


def _results() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "scenarios").glob("*/RESULTS.md")):
        yield f"results/{path.parent.name}", path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "scenarios" / "outside").glob("*/predicted.csv")):
        yield f"results/outside-{path.parent.name}", _predictions(path)


def _predictions(path: Path) -> str:
    """The page of a table of predictions; of a long table only rows with a measurement."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    title = "## All rows"
    if len(rows) >= _MOST_ROWS:
        measured = [row for row in rows if row[2]]
        if measured != rows:
            title = "## Rows with a measurement; the others are in `predicted.csv`"
        rows = measured
    lines = [row_of(cell.replace("|", "/") for cell in row) for row in rows]
    head = (path.parent / "README.md").read_text(encoding="utf-8")
    return "\n".join([head, title, "", lines[0], "|---|---|---:|---:|---:|---|", *lines[1:], ""])


def _notebooks() -> Iterator[tuple[str, str]]:
    """Percent scripts as pages: cells of Markdown as they are, cells of code as blocks."""
    for path in sorted((HERE / "notebooks").glob("*.py")):
        blocks = []
        for cell in re.split(r"^# %%", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            head, _, body = cell.partition("\n")
            text = re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip()
            blocks.append(text if "[markdown]" in head else f"```python\n{body.strip()}\n```")
        yield f"notebooks/{path.stem}", "\n\n".join(blocks) + "\n"


def _other_pages(notebooks: Iterable[str]) -> str:
    """Links to the gallery, the notebooks, and pages that the first page does not name."""
    index = (HERE / "index.md").read_text(encoding="utf-8")
    named = {"index", *re.findall(r"^[\w/]+$", index, flags=re.MULTILINE)}
    links = []
    if [*(HERE / "gallery").glob("plot_*.py")]:
        links.append("/generated/gallery/index")
    links += [f"/generated/{name}" for name in notebooks]
    for path in sorted(HERE.glob("*.md")):
        if path.stem not in named:
            links.append(f"/{path.stem}")
    return toctree(links)


if __name__ == "__main__":
    write_all()
