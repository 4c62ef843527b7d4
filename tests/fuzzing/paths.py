"""Whatever lies at a path that a reader or a verb opens, is used or refused: pipes, sockets,
devices, endless or long text.
"""

import json
import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.testing import eventful_world, run
from tests.fuzzing import inputs
from tests.fuzzing.place import Place, in_a_child
from tests.fuzzing.values import as_toml
from tests.lab.conftest import finish

MEGABYTE = 1_000_000
_STRIDE = 7919  # a prime: cases side by side are far apart
ODD = "odd"
Sections = dict[str, Any]

_NVFLARE = "2024-01-02 10:00:00,000 - site getTask: train size: 1 Bytes time: 1 seconds\n"
_SERVER = (
    "[2024-01-02 10:00:00,000 INFO server]: Received UpdateGlobalModel request from client a\n"
)
_NEAR_MISSES = (
    *(
        "[2024-01-02 10:00:00,000 INFO a",
        "2024-01-02 10:00:00,000 getTask: trai",
        _NVFLARE,
        _SERVER,
        "[ROUND 1",
        "1 Bytes ",
    ),
    *(
        "a.",
        '{"a":',
        "a = {",
        '"',
        '""',
        "\\",
        "# .",
        "1.5e",
        "NAME:\n",
        "NAME",
        "a,b,",
        "\n\n",
        "1,2\n",
        "[[a]]\n",
        "a = 1\n",
    ),
)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _repeated(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(
        text * (MEGABYTE // len(text)), encoding="utf-8", newline=""
    )


THINGS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a terminal's device": lambda path: path.symlink_to("/dev/ptmx"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a folder": Path.mkdir,
    "nothing in it": Path.touch,
    "a file that may not be read": lambda path: path.touch(0o000),
    "zeros": lambda path: path.write_bytes(bytes(MEGABYTE)),
    **{
        f"{text!r} and so on": _repeated(text)
        for text in (*"a0 \n\t[{(<\"',.:;=-+_#/\\é\u202e\x1b", *_NEAR_MISSES)
    },
}
"""What may lie where a file is expected."""


def _data(**source: Any) -> Sections:
    return {"data": {"source": source, "partition": "iid"}}


def _population(**population: Any) -> Sections:
    return {"population": population}


_GRAPH: Sections = {"network": {"kind": "graph", "file": ODD, "server": "s", "attach": ["a"]}}
_COLUMN = {"file": ODD, "column": "speed", "unit": "samples/s"}
_SCENARIOS: dict[str, tuple[str, Sections]] = {
    "npz": (ODD, _data(kind="npz", path=ODD)),
    "text": (ODD, _data(kind="text", path=ODD)),
    "images": (
        "mnist/t10k-images-idx3-ubyte",
        {"data": {"source": "mnist", "partition": "iid", "root": "."}},
    ),
    "packed images": (
        "mnist/train-labels-idx1-ubyte.gz",
        {"data": {"source": "mnist", "partition": "iid", "root": "."}},
    ),
    "batches": (
        "cifar10/data_batch_3.bin",
        {"data": {"source": "cifar10", "partition": "iid", "root": "."}},
    ),
    "hugging face's state": ("hf/state.json", _data(kind="huggingface", path="hf", x="x", y="y")),
    "hugging face's arrow": ("hf/data.arrow", _data(kind="huggingface", path="hf", x="x", y="y")),
    "partition": (ODD, {"data": {"partition": {"kind": "file", "path": ODD}}}),
    "traces": (ODD, _population(availability={"kind": "flash", "file": ODD})),
    "intervals": (ODD, _population(availability={"kind": "intervals", "file": ODD})),
    "capacities": (
        ODD,
        _population(capacity={"file": ODD}, speed=None)
        | {"network": {"kind": "star", "device": None}},
    ),
    "column": (ODD, _population(speed=_COLUMN)),
    "parquet": (f"{ODD}.parquet", _population(speed=_COLUMN | {"file": f"{ODD}.parquet"})),
    "kinds": (ODD, _population(speed=None, device={"file": ODD, "column": "model"})),
    "graph": (ODD, _GRAPH),
    "model": (ODD, {"learning": "on", "model": {"kind": "logistic", "file": ODD}}),
    "code": ("code.py", {"strategy": {"kind": "./code.py:Name"}}),
}
"""By reader the path of the odd thing, and the sections of a scenario that names it."""

_RUN = (
    "scenario.toml",
    "summary.json",
    "events.parquet",
    "transfers.parquet",
    "rounds.parquet",
    "devices.parquet",
)
_RUN += ("availability.parquet", "models/global.safetensors", "network.json", "energy.parquet")
_ON_RUN = (
    *(
        ["audit", "out"],
        ["compare", "out"],
        ["compare", "out", "out", "--csv"],
        ["why", "out"],
        ["why", "out", "--round", "0"],
    ),
    *(
        ["report", "out", "--out", "r.html"],
        ["trace", "out", "--out", "t.json"],
        ["calibrate", "out", "--out", "fitted"],
    ),
    *(
        ["whatif", "out", "--set", "seed=5", "--out", "after"],
        ["load_run", "out"],
        ["check", "out/scenario.toml", "--no-trial"],
    ),
    *(
        ["tensorboard", "out", "--out", "board"],
        ["analysis", "out", "--format", "png", "--out", "pictures", "--only", "timeline"],
    ),
)
_ON_STUDY = (
    *(
        ["compare", "studied"],
        ["compare", "studied", "--published", ODD],
        ["report", "studied", "--out", "r.html"],
    ),
    ["study", "studied/study.toml", "--out", "studied", "--dry-run", "--no-trial"],
)
_STUDY = (
    "index.json",
    "study.toml",
    "runs/one/seed-1/summary.json",
    "runs/one/seed-1/scenario.toml",
    ODD,
)
_LOGS = {
    "log": f"{ODD}.csv",
    "parquet log": f"{ODD}.parquet",
    "log of Flower": f"{ODD}.log",
    "folder of logs": "logs/log.txt",
}
_LOGS |= {"log of APPFL": "logs/result_Server_1.txt", "a run's log": "logs/scenario.toml"}
_OTHER = {
    "scenario": (ODD, ["run", ODD, "--out", "out"]),
    "extended": (ODD, ["run", "extends.toml", "--out", "out"]),
    "checked": (ODD, ["check", ODD, "--no-trial"]),
    "study": (ODD, ["study", ODD, "--out", "studied", "--dry-run", "--no-trial"]),
    "base": (ODD, ["study", "study.toml", "--out", "studied", "--dry-run", "--no-trial"]),
    "published": (ODD, ["study", "published.toml", "--out", "studied", "--dry-run", "--no-trial"]),
    "configuration": ("fedsim/config.toml", ["check", "code.toml", "--no-trial"]),
    "run to resume": ("out/scenario.toml", ["run", "extended.toml", "--out", "out", "--resume"]),
    "out of a run": (ODD, ["run", "quickstart", "--out", ODD]),
    "out of a study": (ODD, ["study", "study.toml", "--out", ODD, "--dry-run", "--no-trial"]),
    "out of a calibration": (ODD, ["calibrate", "log.csv", "--out", ODD]),
    "new": (
        f"{ODD}.toml",
        [
            "new",
            f"{ODD}.toml",
            "--devices",
            "20 phones",
            "--link",
            "lte",
            "--model",
            "1 MB",
            "--target",
            "0.5",
            "--deadline",
            "try",
        ],
    ),
    "init": (ODD, ["init", "quickstart", ODD]),
    **{
        name: (
            path,
            [
                "calibrate",
                path.partition("/")[0],
                "--out",
                "fitted",
                "--samples",
                "60",
                "--bytes",
                "1 MB",
            ],
        )
        for name, path in _LOGS.items()
    },
}
_pool: Path


def prepare(folder: Path) -> None:
    """Make a run and a study, of which cases take copies."""
    global _pool
    _pool = folder / "paths"
    _pool.mkdir()
    sections = eventful_world({"kind": "fedavg", "clients_per_round": 4}, rounds=2)
    in_a_child(lambda: run(sections, _pool / "out"))
    study = _pool / "study.toml"
    study.write_text(
        as_toml(
            {
                "base": sections | {"learning": "off"},
                "variants": {"one": {}, "two": {"stop.rounds": 1}},
            }
        )
    )
    in_a_child(lambda: finish(study, _pool / "studied"))


def cases() -> list[tuple[str, str, list[str]]]:
    """Every pair of a reader and a verb: its name, the path that is odd, and the command line."""
    found = [
        (name, path, ["run", "scenario.toml", "--out", "out"])
        for name, (path, _) in _SCENARIOS.items()
    ]
    found += [(name, path, argv) for name, (path, argv) in _OTHER.items()]
    found += [(f"{argv[0]}: {name}", f"out/{name}", argv) for name in _RUN for argv in _ON_RUN]
    found += [
        (f"{argv[0]}: {name}", name if name == ODD else f"studied/{name}", argv)
        for name in _STUDY
        for argv in _ON_STUDY
    ]
    return found


def attempt(place: Place, draw: random.Random, number: int) -> None:
    """The case of this number: any so many in a row are of all kinds, and all together every
    pair with every thing.
    """
    known = cases()
    mixed = number * _STRIDE % (len(known) * len(THINGS))
    name, path, argv = known[mixed % len(known)]
    thing = [*THINGS][mixed // len(known)]
    _lay_out(place.folder, name, path)
    odd = place.folder / path
    odd.parent.mkdir(parents=True, exist_ok=True)
    if odd.is_dir() and not odd.is_symlink():
        shutil.rmtree(odd)
    odd.unlink(missing_ok=True)
    THINGS[thing](odd)
    (place.folder / "ODD.txt").write_text(
        f"{name}: at {path} lies {thing}\n", errors="backslashreplace"
    )
    place.call(*argv, *(["--allow-code"] if name == "code" else []), allowed=(0, 1, 2), long=True)


def _lay_out(folder: Path, name: str, path: str) -> None:
    """The files beside the odd one."""
    if path.startswith("out/"):
        shutil.copytree(_pool / "out", folder / "out")
    if path.startswith("studied/") or name.endswith(f": {ODD}"):
        shutil.copytree(_pool / "studied", folder / "studied")
    base = eventful_world({"kind": "fedavg", "clients_per_round": 4}, rounds=1) | {
        "learning": "off"
    }
    if name in _SCENARIOS:
        _write_data(folder)
        for key, value in _SCENARIOS[name][1].items():
            base[key] = base.get(key, {}) | value if isinstance(value, dict) else value
        (folder / "scenario.toml").write_text(as_toml(base))
    (folder / "extends.toml").write_text(as_toml({"extends": ODD, "seed": 4}))
    (folder / "extended.toml").write_text(as_toml(base))
    (folder / "code.toml").write_text(as_toml(base | {"strategy": {"kind": "witness:Witness"}}))
    (folder / "study.toml").write_text(as_toml({"base": ODD, "variants": {"one": {}}}))
    (folder / "published.toml").write_text(
        as_toml({"base": base, "published": ODD, "variants": {"one": {}}})
    )
    (folder / "log.csv").write_text("client,round,what,start,end,bytes,samples\n")


def _write_data(folder: Path) -> None:
    for source in ("mnist", "cifar10", "hf"):
        (folder / source).mkdir()
    for part, count in (("train", 120), ("t10k", 40)):
        inputs.write_idx(
            folder / "mnist" / f"{part}-images-idx3-ubyte",
            np.full((count, 28, 28), 7, dtype=np.uint8),
        )
        inputs.write_idx(
            folder / "mnist" / f"{part}-labels-idx1-ubyte", (np.arange(count) % 10).astype(np.uint8)
        )
    (folder / "mnist" / "train-labels-idx1-ubyte").rename(
        folder / "mnist" / "train-labels-idx1-ubyte.gz"
    )
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        (folder / "cifar10" / name).write_bytes(
            b"".join(bytes([label]) + bytes(3072) for label in range(10)) * 3
        )
    (folder / "hf" / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": "data.arrow"}]})
    )
