"""Whatever a scenario or a study says: it is refused with a message that names the key, or runs and passes its audit."""

import random
import re
from collections.abc import Iterator
from typing import Any

from fedsim.analysis.__main__ import KINDS
from fedsim.lab.study.spec import StudySpec
from fedsim.scenario import Scenario
from fedsim.strategies import STRATEGIES as REGISTERED
from fedsim.testing import eventful_world
from tests.fuzzing import schema, values
from tests.fuzzing.place import Place
from tests.fuzzing.values import as_toml
from tests.test_runs import STRATEGIES

_KNOWN = {strategy["kind"]: strategy for strategy in STRATEGIES}
_STRIDE = 7919  # a prime: cases side by side are about keys far apart
_DIVERGED = "finite"  # what exit status 1 may say: the training's numbers grew until they were none
_SOUND_OF_FIVE = 3  # so many of five odd values are of those that the key's type allows, if any is
_SEVERAL_RUNS = 0.05


def attempt(place: Place, draw: random.Random, number: int) -> None:
    """Write a file, and do with it what a user would."""
    if draw.random() < 0.1:
        _study(place, draw)
        return
    if draw.random() < 0.1:
        _hostile(place, draw, "".join(draw.sample(values.CONTROLS, draw.randrange(1, 4))))
        return
    sections = world(draw)
    changed = _change(draw, sections, number)
    (place.folder / "scenario.toml").write_text(as_toml(sections), encoding="utf-8", newline="")
    options: list[str] = []
    if draw.random() < 0.1:
        leaf = draw.choice(schema.leaves(Scenario))
        value = schema.odd_value(draw, leaf.shapes)
        changed.append(leaf.path)
        options += ["--set", f"{leaf.path}={value if isinstance(value, str) else repr(value)}"]
    if draw.random() < 0.15:
        told = place.call("check", "scenario.toml", "--no-trial", *options)
        if told.status == 2:
            _explained(place, told.text, [*changed, *sections])
        return
    options += ["--executor", draw.choice(["inline", "threads"]), *draw.choice([["--quiet"], []])]
    told = place.call(
        "run", "scenario.toml", "--out", "out", *options, excuse=_DIVERGED, long=True, terminal=draw.random() < 0.3
    )
    if told.status == 0:
        sound(place)
        if draw.random() < 0.2:
            look(place, draw, "out")
    elif told.status == 2:
        if (place.folder / "out").exists():
            place.complain("run: something was written before it was refused")
        _explained(place, told.text, [*changed, *sections])


def world(draw: random.Random) -> dict[str, Any]:
    """A small scenario in which much happens, of any strategy."""
    kind = draw.choice([kind for kind in REGISTERED if kind != "flower"])
    sections = eventful_world(_KNOWN.get(kind, {"kind": kind}), seed=draw.randrange(100), rounds=2)
    sections["learning"] = draw.choice(["off", "off", "on"])
    sections["stop"]["simulated_time"] = "2 h"
    return sections


def sound(place: Place) -> None:
    """What a run left that came to its end passes its audit."""
    told = place.call("audit", "out", allowed=(0, 1, 2))
    if told.status:
        failed = [line.removeprefix("FAIL ") for line in told.text.splitlines() if line.startswith("FAIL")]
        place.complain(f"audit: a run that ended well does not pass: {failed[0] if failed else told.text[:100]}")


def look(place: Place, draw: random.Random, run: str) -> None:
    """Look at a run by one of the ways there are."""
    ways = [["report", run, "--out", "looked"], ["trace", run, "--out", "looked"], ["load_run", run]]
    ways += [["compare", run, option] for option in ("--target=0.5", "--csv", "--markdown")]
    ways += [["analysis", run, "--format", "png", "--out", "pictures", "--only", ",".join(draw.sample(KINDS, 2))]]
    place.call(*draw.choice(ways))


def _change(draw: random.Random, sections: dict[str, Any], number: int) -> list[str]:
    """Change a scenario: one odd key, some, or whole sections; the dotted keys."""
    leaves = schema.leaves(Scenario)
    leaf = leaves[number * _STRIDE % len(leaves)]
    match draw.randrange(10):
        case 0 | 1 | 2 | 3 | 4 as case:
            odd = [schema.odd_value(draw, leaf.shapes) for _ in range(20)]
            odd = [value for value in odd if case < _SOUND_OF_FIVE and leaf.takes(value)] or odd
            return [schema.put(draw, sections, leaf, odd[0])]
        case 5:
            return [schema.put(draw, sections, some, schema.odd_value(draw, some.shapes)) for some in draw.sample(leaves, 3)]
        case 6 | 7:
            return _sections(draw, sections, odd=0.0)
        case 8:
            return _sections(draw, sections, odd=0.3)
    return _by_hand(draw, sections)


def _sections(draw: random.Random, sections: dict[str, Any], odd: float) -> list[str]:
    """Replace some sections by drawn ones."""
    keys = draw.sample([key for key, shapes in schema.fields(Scenario).items() if key != "stop"], draw.randrange(1, 4))
    for key in keys:
        sections[key] = schema.plausible(draw, draw.choice(schema.fields(Scenario)[key]), odd=odd)
    return keys


def _by_hand(draw: random.Random, sections: dict[str, Any]) -> list[str]:
    """What no spec suggests."""
    match draw.randrange(5):
        case 0:
            command = {"command": "touch imported", "args": ["touch", "imported"], "source": "open('imported','w')"}
            sections["model"] = {"kind": "module", "factory": draw.choice(values.CODE), "args": draw.choice([{}, command])}
            (key, item), *_ = draw.sample(list(command.items()), 1)
            if draw.random() < 0.5:
                sections["model"]["args"] = {key: item}
            return ["model"]
        case 1:
            sections["strategy"] = {"kind": draw.choice(values.CODE)}
            return ["strategy"]
        case 2:
            sections["name"] = "".join(draw.choice(values.CONTROLS) for _ in range(3))
            return ["name"]
        case 3:
            key = draw.choice(list(sections))
            sections[values.text(draw)[:50]] = sections.pop(key)
            return [key]
    spoilt = values.spoil(draw, sections)
    spoilt = spoilt if isinstance(spoilt, dict) else {"": spoilt}
    keys = [key for key in sections if spoilt.get(key) is not sections[key]] + [key for key in spoilt if key not in sections]
    sections.clear()
    sections.update(spoilt)
    return keys


def _explained(place: Place, text: str, keys: list[str]) -> None:
    """A refusal begins as all do, and names a key."""
    if not re.search(r"(?m)^(fedsim|Error): ", text):
        place.complain(f"a refusal does not say who refuses: {text[:100]}")
    elif not any(part in text for key in keys for part in (*key.split("."), repr(key))) and "TOML" not in text:
        place.complain(f"a refusal names no key: {text[:100]}")


def _hostile(place: Place, draw: random.Random, name: str) -> None:
    """A name that a terminal would obey: the run's, its folder's, an option's, or of what is not there."""
    sections = eventful_world({"kind": "fedavg", "clients_per_round": 4}, rounds=1) | {"name": name, "learning": "off"}
    (place.folder / "scenario.toml").write_text(as_toml(sections), encoding="utf-8")
    place.call("run", "scenario.toml", "--out", f"out{name}", terminal=True)
    looks = [["compare", f"out{name}", "--baseline", name], ["report", f"out{name}", "--out", f"x{name}.html"]]
    looks += [["audit", f"out{name}"], ["trace", f"out{name}\udcff"], ["check", "scenario.toml", "--set", f"{name}=1"]]
    for argv in draw.sample(looks, 3):
        place.call(*argv, terminal=True)


def _study(place: Place, draw: random.Random) -> None:
    """A study, mostly listed, now and then carried out."""
    base = world(draw) | {"learning": "off"}
    del base["seed"]
    tables: dict[str, Any] = {"name": "small", "base": base, "seeds": [1], "variants": {"one": {}}}
    match draw.randrange(4):
        case 0:
            leaf = draw.choice(schema.leaves(StudySpec))
            schema.put(draw, tables, leaf, schema.odd_value(draw, leaf.shapes))
        case 1:
            tables[draw.choice(["variants", "grid"])] = dict(_changes(draw))
        case 2:
            tables["variants"] |= {values.text(draw): {key: value} for key, [value, *_] in _changes(draw)}
        case 3:
            tables = values.spoil(draw, tables)
    (place.folder / "study.toml").write_text(as_toml(tables), encoding="utf-8", newline="")
    place.call("study", "study.toml", "--out", "studied", "--dry-run")
    if draw.random() < _SEVERAL_RUNS and place.call("study", "study.toml", "--out", "studied", "--workers", "1").status == 0:
        place.call("compare", "studied")


def _changes(draw: random.Random) -> Iterator[tuple[str, list[Any]]]:
    for leaf in draw.sample(schema.leaves(Scenario), draw.randrange(1, 4)):
        yield leaf.path, [schema.odd_value(draw, leaf.shapes) for _ in range(2)]
