"""Names that a terminal would obey never reach it, wherever they come from."""

import json
import random
import re
import shutil
from pathlib import Path

import numpy as np

from fedsim.testing import eventful_world, run
from tests.fuzzing import values
from tests.fuzzing.files import as_toml
from tests.fuzzing.place import Place, in_a_child

_OURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\]8;[^\x1b]*\x1b\\|\r")
"""What a live display itself sends: colours, moves of the cursor, links."""
_FROM_FILES = ("\x1b]0;owned\x07", "\x1b[31;47;5m")
_HARMFUL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\udc80-\udcff]")
_pool: Path


def prepare(folder: Path) -> None:
    """Make a run of a hostile name that can be looked at."""
    global _pool
    _pool = folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    in_a_child(lambda: run(_sections("".join(values.CONTROLS)), folder / "run"))


def _sections(name: str) -> dict[str, object]:
    return eventful_world({"kind": "fedavg", "clients_per_round": 4}, rounds=1) | {"name": name, "learning": "off"}


def attempt(place: Place, draw: random.Random, number: int) -> None:
    """Call a verb with a hostile name somewhere."""
    hostile = "".join(draw.sample(values.CONTROLS, draw.randrange(1, 4)))
    kinds = list(_CASES)
    kind = kinds[number % len(kinds)]
    _CASES[kind](place, draw, hostile)
    for argv, outcome in place.calls:
        text = outcome.text
        if any(part in text for part in _FROM_FILES) or _HARMFUL.search(_OURS.sub("", text)):
            place.complain(f"{argv[0]}: what a terminal obeys reaches it ({kind})")


def _write(place: Place, sections: object, name: str = "scenario.toml") -> str:
    (place.folder / name).write_text(as_toml(sections), encoding="utf-8")
    return name


def _run(place: Place, draw: random.Random, hostile: str) -> None:
    place.call("run", _write(place, _sections(hostile)), "--out", f"out{hostile}", terminal=True)
    place.call("audit", f"out{hostile}", terminal=True)
    place.call("compare", f"out{hostile}", terminal=True)


def _refused(place: Place, draw: random.Random, hostile: str) -> None:
    sections = _sections("x")
    key = draw.choice(["strategy", "model", "population", "network", "data"])
    sections[key] = draw.choice([{"kind": hostile}, {hostile: 1}, hostile, {"kind": "npz", "path": hostile}])
    place.call("check", _write(place, sections), terminal=True)
    place.call("run", "scenario.toml", "--out", "out", terminal=True)


def _check(place: Place, draw: random.Random, hostile: str) -> None:
    place.call("check", _write(place, _sections(hostile)), "--no-trial", terminal=True)


def _study(place: Place, draw: random.Random, hostile: str) -> None:
    base = _sections(hostile)
    del base["seed"]
    study = {
        "name": hostile,
        "base": base,
        "variants": {hostile: {}, "bad": draw.choice([{}, {"strategy.kind": hostile}, {hostile: 1}])},
    }
    place.call("study", _write(place, study, "study.toml"), "--out", f"out{hostile}", "--dry-run", terminal=True)


def _folder(place: Place, draw: random.Random, hostile: str) -> None:
    folder = f"run{hostile}"
    shutil.copytree(_pool / "run", place.folder / folder)
    verb = draw.choice(["audit", "report", "trace", "compare", "analysis"])
    options = {"report": ["--out", f"x{hostile}.html"], "analysis": ["--format", "png", "--only", "traffic,accuracy"]}
    place.call(verb, folder, *options.get(verb, []), terminal=True)


def _damaged(place: Place, draw: random.Random, hostile: str) -> None:
    folder = place.folder / "run"
    shutil.copytree(_pool / "run", folder)
    summary = json.loads((folder / "summary.json").read_text())
    key = draw.choice(["status", "stopped", "strategy", "name", "events_sha256"])
    (folder / "summary.json").write_text(json.dumps(summary | {key: hostile, hostile: 1}))
    (folder / f"more{hostile}").write_text("")
    place.call("audit", "run", allowed=(1, 2), terminal=True)
    place.call(draw.choice(["compare", "report", "trace"]), "run", terminal=True)


def _arrays(place: Place, draw: random.Random, hostile: str) -> None:
    name = hostile.replace("\x00", "")
    np.savez(place.folder / "own.npz", **{name: np.zeros(3)})
    source = {"kind": "npz", "path": str(place.folder / "own.npz")}
    what = draw.choice([{"source": source}, {"partition": {"kind": "file", "path": str(place.folder / "own.npz")}}])
    place.call("run", _write(place, _sections("x") | {"data": what}), "--out", "out", terminal=True)


def _devices(place: Place, draw: random.Random, hostile: str) -> None:
    (place.folder / "own.json").write_text(json.dumps({hostile: draw.choice([7, {"train": [10**9]}, {hostile: []}])}))
    file = str(place.folder / "own.json")
    what = draw.choice(
        [
            {"data": {"partition": {"kind": "file", "path": file}}, "population": {"devices": 1}},
            {"population": {"devices": 4, "availability": {"kind": "flash", "file": file}}},
            {"network": {"kind": "graph", "file": file, "server": hostile, "attach": [hostile]}},
        ]
    )
    place.call("run", _write(place, _sections("x") | what), "--out", "out", terminal=True)


def _options(place: Place, draw: random.Random, hostile: str) -> None:
    _write(place, _sections("x"))
    option = draw.choice(
        [("--set", f"{hostile}=1"), ("--set", hostile), ("--executor", hostile), ("--set", f"strategy.kind={hostile}")]
    )
    place.call("run", "scenario.toml", "--out", "out", *option, terminal=True)
    place.call("compare", "out", "--baseline", hostile, terminal=True)


def _nowhere(place: Place, draw: random.Random, hostile: str) -> None:
    path = draw.choice([hostile, f"{hostile}\udcff", "\udcff\udc80"])
    for verb in draw.sample(["run", "check", "audit", "report", "trace", "compare", "study", "analysis", "tensorboard"], 4):
        options = ["--out", draw.choice(["out", path])] if verb in ("run", "study", "tensorboard") else []
        place.call(verb, path, *options, terminal=True)


_CASES = {
    "the run's name, its folder's": _run,
    "a key or value that is refused": _refused,
    "a scenario that is printed": _check,
    "a study's names": _study,
    "a folder's name": _folder,
    "a damaged folder": _damaged,
    "an array's name": _arrays,
    "a device's or node's name": _devices,
    "an option": _options,
    "a path that leads nowhere": _nowhere,
}
