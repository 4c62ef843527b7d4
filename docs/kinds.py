"""The pages of strategies and of the kinds of parts."""

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from keys import PARTS, table
from paper_links import paper_link
from strategy_pictures import picture
from symbols import symbol_list
from text import page, plain, prose, row_of, sentence, toctree

from fedsim import plugin
from fedsim.common.spec import Spec
from fedsim.lab.catalogue import catalogue, specs_titled
from fedsim.strategies import STRATEGIES, strategy_class

_NOTES = Path(__file__).resolve().parent / "strategies.md"


def strategy_pages() -> Iterator[tuple[str, str]]:
    """Name and text of the page of each strategy, and of their index."""
    notes = _notes_by_kind(_NOTES.read_text(encoding="utf-8"))
    rows = ["| kind | what it is |", "|---|---|"]
    for kind, about in STRATEGIES.titles.items():
        rows.append(f"| [`{kind}`](/generated/strategies/{kind}.md) | {plain(about)} |")
    index = [
        "A page each: what it does, its source, what it keeps and sends, and its keys.",
        "\n".join(rows),
        toctree(STRATEGIES, ":hidden:"),
    ]
    yield "strategies/index", page("All strategies", index)
    titles = [about.partition(":")[0] for about in STRATEGIES.titles.values()]
    for kind, about in STRATEGIES.titles.items():
        title, _, action = about.partition(": ")
        name = title if titles.count(title) == 1 else f"{title} ({kind})"
        text = page(name, _strategy(kind, action, notes.get(kind, "")))
        symbols = symbol_list(kind, text)
        if symbols:
            text = text.replace("\n## Keys\n", f"\n{symbols}\n\n## Keys\n", 1)
        yield f"strategies/{kind}", text


def _strategy(kind: str, action: str, note: str) -> Iterator[str]:
    strategy = strategy_class(kind)
    kinds = {strategy_class(name): name for name in STRATEGIES}
    yield f'```toml\n[strategy]\nkind = "{kind}"\n```'
    yield f"*{plain(sentence(action))}.*"
    link = paper_link(kind)
    if link:
        yield link
    yield prose(strategy.__doc__ or "")
    yield note
    yield picture(kind)
    links = _links_to_bases(strategy, kinds)
    if links:
        yield (
            f"It is built on {', '.join(links)}; what these say of rounds, tasks and state holds "
            "here too."
        )
    yield "## What a device does"
    yield _client(strategy, kinds)
    yield "## Keys"
    yield from table(strategy.Params, f"strategy.{kind}", set(), 3)


def _links_to_bases(strategy: type, kinds: Mapping[type, str]) -> list[str]:
    """Links to the strategies and public classes on which a strategy is built."""
    links = []
    for base in strategy.__mro__[1:]:
        if base in kinds:
            links.append(f"[](/generated/strategies/{kinds[base]}.md)")
        elif getattr(plugin, base.__name__, None) is base:
            links.append(f"{{py:class}}`~fedsim.plugin.{base.__name__}`")
    return links


def _client(strategy: type[plugin.Strategy], kinds: Mapping[type, str]) -> str:
    """The client half of a strategy, in words."""
    if strategy.Client is plugin.Client:
        return (
            "Trains for `local_epochs` from the model that it has received, and sends its update."
        )
    text = prose(strategy.Client.__doc__ or "")
    owner = next(base for base in strategy.__mro__ if "Client" in vars(base))
    if owner is strategy or owner not in kinds:
        return text
    return f"The same as in [](/generated/strategies/{kinds[owner]}.md): {text}"


def _notes_by_kind(text: str) -> dict[str, str]:
    """The rows of each kind in the tables of a page written by hand, as blocks.

    A row of properties becomes a list; a row of results stays a row, under its heads.
    """
    notes: dict[str, list[str]] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        for lines in re.findall(r"(?:^\|.*\n)+", section, flags=re.MULTILINE):
            heads, rule, *rows = [_cells(line) for line in lines.splitlines()]
            for row in rows:
                for name in row[0].replace("`", "").split(", "):
                    notes.setdefault(name, []).append(_note(title, heads, rule, row))
    return {name: "\n\n".join(blocks) for name, blocks in notes.items()}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def _note(title: str, heads: list[str], rule: list[str], row: list[str]) -> str:
    link = f"More under [{title}](/strategies.md)."
    if heads[0] == "variant":
        figures = [row[0], *(cell or "not reached" for cell in row[1:])]
        rows = [row_of(cells) for cells in (heads, rule, figures)]
        head = "In the study `field` (what the columns are stands there):\n"
        return "\n".join([head, *rows, "", link])
    entries = []
    for head, cell in zip(heads[1:], row[1:], strict=False):
        if cell:
            entries.append(f"{head[:1].upper()}{head[1:]}\n: {cell}")
    return "\n\n".join([*entries, link])


def part_pages() -> Iterator[tuple[str, str]]:
    """Name and text of the page of each family of parts, and of their index."""
    entries = catalogue()
    for title, (name, place) in PARTS.items():
        blocks = [place]
        abouts = dict(entries[title])
        for kind, spec in specs_titled(title).items():
            blocks.append(f"## `{kind}`")
            blocks.append(f"*{plain(sentence(abouts[kind]))}.*")
            blocks.append(_source(spec))
            blocks.append(prose(spec.__doc__ or ""))
            blocks += table(spec, f"{name}.{kind}", {spec}, 3)
        yield f"parts/{name}", page(title.capitalize(), blocks)
    names = [name for name, _ in PARTS.values()]
    blocks = ["A page a family, with every kind and its keys.", toctree(names)]
    yield "parts/index", page("All parts", blocks)


def _source(spec: type[Spec]) -> str:
    """The first line of the kind's file, which names the paper; empty if it names none."""
    module = inspect.getmodule(spec)
    docstring = module.__doc__ if module is not None else None
    line = (docstring or "").partition("\n")[0]
    return plain(line) if re.search(r"\b(19|20)\d\d\b", line) else ""
