"""Whatever a file holds that a scenario, a study or a comparison reads: it is used, or refused with a message."""

import json
import os
import random
import shutil
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedsim.testing import eventful_world
from fedsim.toolbox.sources.images import write_idx
from tests.fuzzing import values
from tests.fuzzing.place import WITNESS, Place, in_a_child
from tests.fuzzing.scenarios import look, sound
from tests.fuzzing.values import as_json, as_toml, damage
from tests.lab.conftest import finish

DEVICES = 24
GRAPH = {
    "directed": False,
    "nodes": [{"id": name} for name in ("s", "r", "a", "b")],
    "edges": [
        {"source": "s", "target": "r", "capacity": "2 Mbit/s"},
        {"source": "r", "target": "a", "capacity": "1 Mbit/s"},
        {"source": "r", "target": "b", "capacity": "inf B/s"},
    ],
}
_TRACES = {name: {"start": 0.0, "end": 100.0, "ready": [[0.0, 30.5], [40.0, 90.0]], "ok": True} for name in ("one", "two")}
_SCENARIO = "scenario.toml"


class _Pickled:
    """An object whose loading by pickle leaves the witness's file."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        return os.system, (f"touch {WITNESS}",)


def attempt(place: Place, draw: random.Random, number: int) -> None:
    kinds = (_npz, _partition, _images, _traces, _capacities, _graph, _scenario, _study, _index, _devices, _intervals)
    kinds[number % len(kinds)](place, draw)


def _run(place: Place, draw: random.Random, **sections: Any) -> None:
    scenario = eventful_world({"kind": "fedavg", "clients_per_round": 4}, rounds=1) | {"learning": draw.choice(["on", "off"])}
    scenario["stop"]["simulated_time"] = "1 h"
    for key, value in sections.items():
        scenario[key] = scenario.get(key, {}) | value
    (place.folder / _SCENARIO).write_text(as_toml(scenario))
    _carry_out(place)


def _carry_out(place: Place) -> None:
    if place.call("run", _SCENARIO, "--out", "out").status == 0:
        sound(place)


def _arrays(draw: random.Random, arrays: dict[str, Any]) -> dict[str, Any]:
    name = draw.choice(list(arrays))
    array = arrays[name]
    odd: list[Callable[[], Any]] = [
        lambda: array[:0],
        lambda: array[: len(array) // 2],
        lambda: array.astype(draw.choice(["float16", "float64", "complex64", "int8", "uint64", "bool", "U5", "S3", ">f4"])),
        lambda: array.reshape(-1),
        lambda: array[None],
        lambda: np.array(3),
        lambda: array * 0 + draw.choice([1e38, 2**31 - 1, 2**15, -1, np.nan]),
        lambda: np.r_[draw.choice([2**31 - 1, 10**9, 70_000, -5]), array.reshape(len(array), -1)[1:, 0]],
        lambda: np.array([_Pickled()], dtype=object),
        lambda: np.zeros(array.shape, dtype=[("a", "f4"), ("b", "i8")]),
        lambda: np.zeros((300_000_000,), dtype=np.uint8),
        lambda: np.zeros((3, 0)),
        lambda: array.astype("datetime64[s]"),
    ]
    with np.errstate(all="ignore"):
        changed = draw.choice(odd)()
    return {key: changed if key == name else value for key, value in arrays.items()} | (
        {values.text(draw)[:40].replace("\x00", "") or "x": array} if draw.random() < 0.3 else {}
    )


def _write_npz(draw: random.Random, path: Path, arrays: dict[str, Any]) -> None:
    arrays = arrays if draw.random() < 0.4 else _arrays(draw, arrays)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=True)
    if draw.random() < 0.5:
        damage(draw, path)


def _npz(place: Place, draw: random.Random) -> None:
    shape = draw.choice([(6,), (4, 4), (1, 4, 4)])
    generator = np.random.default_rng(draw.randrange(100))
    arrays = {"x": generator.random((200, *shape), dtype=np.float32), "y": np.arange(200) % 5}
    if draw.random() < 0.3:
        arrays = {f"{name}_{part}": array for name, array in arrays.items() for part in ("train", "test")}
    _write_npz(draw, place.folder / "own.npz", arrays)
    source = {"kind": "npz", "path": str(place.folder / "own.npz")}
    _run(place, draw, data={"source": source, "partition": draw.choice(["iid", {"kind": "dirichlet", "alpha": 1.0}])})


def _partition(place: Place, draw: random.Random) -> None:
    path = place.folder / draw.choice(["who.json", "who.npz"])
    if path.suffix == ".json":
        entries = {str(device): {"train": [device, device + 30], "test": [device]} for device in range(DEVICES)}
        _write_json(draw, path, entries)
    else:
        _write_npz(draw, path, {f"train_{device}": np.arange(device, device + 3) for device in range(DEVICES)})
    _run(place, draw, data={"partition": {"kind": "file", "path": str(path)}})


def _write_json(draw: random.Random, path: Path, content: Any) -> None:
    whole = draw.random() < 0.6
    for _ in range(draw.choice([1, 1, 3]) if whole else 0):
        content = values.spoil(draw, content)
    path.write_text(as_json(content))
    if not whole:
        damage(draw, path)


def _images(place: Place, draw: random.Random) -> None:
    source = draw.choice(["mnist", "cifar10"])
    folder = place.folder / source
    folder.mkdir()
    if source == "mnist":
        for part, count in (("train", 120), ("t10k", 40)):
            write_idx(folder / f"{part}-images-idx3-ubyte", np.full((count, 28, 28), 7, dtype=np.uint8))
            write_idx(folder / f"{part}-labels-idx1-ubyte.gz", (np.arange(count) % 10).astype(np.uint8))
    else:
        for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
            (folder / name).write_bytes(b"".join(bytes([label]) + bytes(3072) for label in range(10)) * 3)
    damage(draw, draw.choice(sorted(folder.iterdir())))
    _run(place, draw, data={"source": source, "partition": "iid", "root": str(place.folder)})


def _traces(place: Place, draw: random.Random) -> None:
    _write_json(draw, place.folder / "traces.json", _TRACES)
    _run(place, draw, population={"availability": {"kind": "flash", "file": str(place.folder / "traces.json")}})


def _capacities(place: Place, draw: random.Random) -> None:
    rows = [[str(cell) for cell in (n, 20 + n, 900 + n, 500 + n)] for n in range(9)]
    path = _table(place, draw, [["id", "computation_ms_per_sample", "dl_kbps", "ul_kbps"], *rows])
    network = {"kind": "star", "server": {"down": "2 Mbit/s"}, "device": None}
    _run(place, draw, population={"capacity": {"file": str(path)}, "speed": None}, network=network)


def _cells(draw: random.Random) -> list[str]:
    return [values.text(draw), str(draw.choice(values.NUMBERS)), "1_0", "٣"]


def _devices(place: Place, draw: random.Random) -> None:
    rows = [["device", "speed", "rate", "model"]]
    rows += [[str(device), str(10 + device), f"{device + 1} Mbit/s", "laptop"] for device in range(24)]
    path = _table(place, draw, rows)
    column = {"file": str(path), "column": "speed", "unit": "samples/s"}
    population = draw.choice([{"speed": column}, {"speed": None, "device": {"file": str(path), "column": "model"}}])
    device = {"down": {"file": str(path), "column": "rate"}}
    _run(place, draw, population=population, network={"kind": "star", "device": device})


def _intervals(place: Place, draw: random.Random) -> None:
    times = draw.choice([("0 s", "1 h"), ("22:00", "06:30"), ("2024-03-04T06:00", "2024-03-04T09:00Z")])
    path = _table(place, draw, [["device", "start", "end"], *([str(device), *times] for device in range(24))])
    availability = {"kind": "intervals", "file": str(path), "drawn": draw.random() < 0.2}
    _run(place, draw, population={"availability": availability, "calendar": {"starts": "2024-03-04T06:00"}})


def _table(place: Place, draw: random.Random, rows: list[list[str]]) -> Path:
    """A CSV or Parquet file of which a cell, a row or some bytes may be odd."""
    row = draw.choice(rows)
    if draw.random() < 0.7:
        row[draw.randrange(len(row))] = draw.choice([*_cells(draw), '"' + values.LONG, "", "24:00", "0001-01-01", '"'])
    if draw.random() < 0.2:
        rows.insert(draw.randrange(len(rows)), draw.choice(rows)[: draw.randrange(5)])
    if draw.random() < 0.3 and len({len(row) for row in rows}) == 1 and len(set(rows[0])) == len(rows[0]):
        path = place.folder / "table.parquet"
        pq.write_table(pa.table({name: list(cells) for name, *cells in zip(*rows, strict=True)}), path)
    else:
        path = place.folder / "table.csv"
        path.write_text("".join(",".join(row) + "\n" for row in rows), encoding="utf-8", errors="surrogatepass")
    if draw.random() < 0.3:
        damage(draw, path)
    return path


def _graph(place: Place, draw: random.Random) -> None:
    _write_json(draw, place.folder / "graph.json", GRAPH)
    network = {"kind": "graph", "file": str(place.folder / "graph.json"), "server": "s", "attach": ["a", "b"]}
    _run(place, draw, network=network)


def _base() -> dict[str, Any]:
    return eventful_world({"kind": "fedavg"}, rounds=1) | {"learning": "off"}


def _scenario(place: Place, draw: random.Random) -> None:
    path = place.folder / _SCENARIO
    path.write_text(as_toml(_base()))
    damage(draw, path)
    _carry_out(place)


def _study(place: Place, draw: random.Random) -> None:
    (place.folder / "base.toml").write_text(as_toml(_base()))
    (place.folder / "study.toml").write_text(as_toml({"base": "base.toml", "variants": {"one": {}, "two": {"stop.rounds": 2}}}))
    damage(draw, place.folder / draw.choice(["base.toml", "study.toml"]))
    place.call("study", "study.toml", "--out", "studied", "--dry-run")


def _index(place: Place, draw: random.Random) -> None:
    """A study's folder whose files are changed: its index, or what else lies there."""
    path, out = place.folder / "study.toml", place.folder / "studied"
    path.write_text(as_toml({"base": _base(), "variants": {"one": {}, "two": {"stop.rounds": 2}}}))
    in_a_child(lambda: finish(path, out))
    _write_json(draw, out / "index.json", json.loads((out / "index.json").read_text()))
    if draw.random() < 0.3:
        study_file = out / "study.toml"
        study_file.write_text(as_toml(values.spoil(draw, tomllib.loads(study_file.read_text()))))
    look(place, draw, "studied")
    if draw.random() < 0.5:
        place.call("study", "study.toml", "--out", "studied", "--dry-run")
    shutil.rmtree(out / "runs")
    place.call("compare", "studied")
