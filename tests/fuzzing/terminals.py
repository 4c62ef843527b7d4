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
    in_a_child(lambda: run(_sections("".join(values.CONTROLS)), folder / "run"))


def _sections(name: str) -> dict[str, object]:
    return eventful_world({"kind": "fedavg", "clients_per_round": 4}, rounds=1) | {"name": name, "learning": "off"}


def attempt(place: Place, draw: random.Random, number: int) -> None:
    """Call verbs with a hostile name somewhere."""
    hostile = "".join(draw.sample(values.CONTROLS, draw.randrange(1, 4)))
    kind = list(_CASES)[number % len(_CASES)]
    for argv in _CASES[kind](place.folder, draw, hostile):
        text = place.call(*argv, allowed=(0, 1, 2) if argv[0] == "audit" else (0, 2), terminal=True).text
        if any(part in text for part in _FROM_FILES) or _HARMFUL.search(_OURS.sub("", text)):
            place.complain(f"{argv[0]}: what a terminal obeys reaches it ({kind})")


def _write(folder: Path, sections: object, name: str = "scenario.toml") -> str:
    (folder / name).write_text(as_toml(sections), encoding="utf-8")
    return name


def _run(folder: Path, draw: random.Random, hostile: str) -> list[list[str]]:
    out, scenario = f"out{hostile}", _write(folder, _sections(hostile))
    return [["check", scenario, "--no-trial"], ["run", scenario, "--out", out], ["audit", out], ["compare", out]]


def _refused(folder: Path, draw: random.Random, hostile: str) -> list[list[str]]:
    key = draw.choice(["strategy", "model", "population", "network", "data"])
    value = draw.choice([{"kind": hostile}, {hostile: 1}, hostile, {"kind": "npz", "path": hostile}])
    scenario = _write(folder, _sections("x") | {key: value})
    return [["check", scenario], ["run", scenario, "--out", "out"]]


def _study(folder: Path, draw: random.Random, hostile: str) -> list[list[str]]:
    base = _sections(hostile)
    del base["seed"]
    variants = {hostile: {}, "bad": draw.choice([{}, {"strategy.kind": hostile}, {hostile: 1}])}
    study = _write(folder, {"name": hostile, "base": base, "variants": variants}, "study.toml")
    return [["study", study, "--out", f"out{hostile}", "--dry-run"]]


def _folder(folder: Path, draw: random.Random, hostile: str) -> list[list[str]]:
    shutil.copytree(_pool / "run", folder / f"run{hostile}")
    verb = draw.choice(["audit", "report", "trace", "compare", "analysis"])
    options = {"report": ["--out", f"x{hostile}.html"], "analysis": ["--format", "png", "--only", "traffic,accuracy"]}
    return [[verb, f"run{hostile}", *options.get(verb, [])]]


def _damaged(folder: Path, draw: random.Random, hostile: str) -> list[list[str]]:
    run = Path(shutil.copytree(_pool / "run", folder / "run"))
    summary = json.loads((run / "summary.json").read_text())
    key = draw.choice(["status", "stopped", "strategy", "name", "events_sha256"])
    (run / "summary.json").write_text(json.dumps(summary | {key: hostile, hostile: 1}))
    (run / f"more{hostile}").write_text("")
    return [["audit", "run"], [draw.choice(["compare", "report", "trace"]), "run"]]


def _data(folder: Path, draw: random.Random, hostile: str) -> list[list[str]]:
    """The name of an array, a device or a node."""
    arrays, table = str(folder / "own.npz"), str(folder / "own.json")
    np.savez(arrays, **{hostile.replace("\x00", ""): np.zeros(3)})
    Path(table).write_text(json.dumps({hostile: draw.choice([7, {"train": [10**9]}, {hostile: []}])}))
    what = draw.choice(
        [
            {"data": {"source": {"kind": "npz", "path": arrays}}},
            {"data": {"partition": {"kind": "file", "path": arrays}}},
            {"data": {"partition": {"kind": "file", "path": table}}, "population": {"devices": 1}},
            {"population": {"devices": 4, "availability": {"kind": "flash", "file": table}}},
            {"network": {"kind": "graph", "file": table, "server": hostile, "attach": [hostile]}},
        ]
    )
    return [["run", _write(folder, _sections("x") | what), "--out", "out"]]


def _options(folder: Path, draw: random.Random, hostile: str) -> list[list[str]]:
    options = [["--set", f"{hostile}=1"], ["--set", hostile], ["--executor", hostile], ["--set", f"strategy.kind={hostile}"]]
    run = ["run", _write(folder, _sections("x")), "--out", "out", *draw.choice(options)]
    return [run, ["compare", "out", "--baseline", hostile]]


def _nowhere(folder: Path, draw: random.Random, hostile: str) -> list[list[str]]:
    path = draw.choice([hostile, f"{hostile}\udcff", "\udcff\udc80"])
    verbs = draw.sample(["run", "check", "audit", "report", "trace", "compare", "study", "analysis", "tensorboard"], 4)
    out = ["--out", draw.choice(["out", path])]
    return [[verb, path, *(out if verb in ("run", "study", "tensorboard") else [])] for verb in verbs]


_CASES = {
    "the run's name, its folder's": _run,
    "a key or value that is refused": _refused,
    "a study's names": _study,
    "a folder's name": _folder,
    "a damaged folder": _damaged,
    "a name in data": _data,
    "an option": _options,
    "a path that leads nowhere": _nowhere,
}
