"""Whatever a file holds that a scenario, a study or a comparison reads: it is used, or refused
with a message.
"""

import gzip
import json
import os
import random
import shutil
import struct
import tomllib
import zipfile
import zlib
from collections.abc import Callable
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedsim.testing import eventful_world
from tests.fuzzing import values
from tests.fuzzing.place import WITNESS, Place, in_a_child
from tests.fuzzing.scenarios import look, sound
from tests.fuzzing.values import as_json, as_toml, damage
from tests.lab.conftest import finish
from tests.learning.published_files import write_idx

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
_TRACES = {
    name: {"start": 0.0, "end": 100.0, "ready": [[0.0, 30.5], [40.0, 90.0]], "ok": True}
    for name in ("one", "two")
}
_SCENARIO = "scenario.toml"


class _Pickled:
    """An object whose loading by pickle leaves the witness's file."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        return os.system, (f"touch {WITNESS}",)


def attempt(place: Place, draw: random.Random, number: int) -> None:
    kinds = (
        _hugging_face,
        _bomb,
        _columns,
        _npz,
        _partition,
        _images,
        _traces,
        _capacities,
        _graph,
        _scenario,
        _study,
        _index,
        _devices,
        _intervals,
    )
    kinds[number % len(kinds)](place, draw)


def _run(place: Place, draw: random.Random, **sections: Any) -> None:
    scenario = eventful_world({"kind": "fedavg", "clients_per_round": 4}, rounds=1) | {
        "learning": draw.choice(["on", "off"])
    }
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
        lambda: array.astype(
            draw.choice(
                ["float16", "float64", "complex64", "int8", "uint64", "bool", "U5", "S3", ">f4"]
            )
        ),
        lambda: array.reshape(-1),
        lambda: array[None],
        lambda: np.array(3),
        lambda: array * 0 + draw.choice([1e38, 2**31 - 1, 2**15, -1, np.nan]),
        lambda: np.r_[
            draw.choice([2**31 - 1, 10**9, 70_000, -5]), array.reshape(len(array), -1)[1:, 0]
        ],
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


def _image_of(draw: random.Random) -> bytes:
    """A picture, or what says that it is one: also of very many pixels in few bytes."""
    side = draw.choice([1, 8, 8, 8, 20_000, 40_000])
    with BytesIO() as file:
        if side > 8:  # a header alone, and some compressed zeros
            rows = zlib.compress(bytes(min(side, 1000) * side // 8), 9)
            parts = [
                (b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)),
                (b"IDAT", rows),
                (b"IEND", b""),
            ]
            file.write(b"\x89PNG\r\n\x1a\n")
            for name, data in parts:
                file.write(
                    struct.pack(">I", len(data))
                    + name
                    + data
                    + struct.pack(">I", zlib.crc32(name + data))
                )
        else:
            form = draw.choice(["PNG", "BMP", "GIF", "TIFF"])
            Image.fromarray(np.full((side, side), 7, dtype=np.uint8)).save(file, format=form)
        content = bytearray(file.getvalue())
    if draw.random() < 0.5:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return bytes(content[: draw.choice([len(content), len(content), len(content) // 2, 0])])


def _hugging_face(place: Place, draw: random.Random) -> None:
    """A folder as ``save_to_disk`` leaves it: pictures, columns of odd types, damaged files."""
    folder = place.folder / "hf"
    folder.mkdir()
    good = _image_of(random.Random(1))
    images = [{"bytes": good, "path": None}] * 39 + [{"bytes": _image_of(draw), "path": None}]
    columns = {"image": pa.array(images), "label": pa.array([number % 4 for number in range(40)])}
    if draw.random() < 0.4:
        columns[draw.choice(["image", "label"])] = _odd_column(draw, 40)
    table = pa.table(
        list(columns.values()),
        names=draw.choice([["image", "label"], ["image", "image"], ["label", "label"]]),
    )
    with (
        pa.OSFile(str(folder / "data.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    if draw.random() < 0.3:
        damage(draw, draw.choice(sorted(folder.iterdir())))
    _run(
        place,
        draw,
        data={"source": {"kind": "huggingface", "path": str(folder)}, "partition": "iid"},
    )


def _odd_column(draw: random.Random, rows: int) -> Any:
    """A column of a type or with values that none expects."""
    return draw.choice(
        [
            lambda: pa.nulls(rows),
            lambda: pa.array([1e300] * rows),
            lambda: pa.array([float("nan")] * rows),
            lambda: pa.array([-0.0] * rows),
            lambda: pa.array([2**63] * rows, pa.uint64()),
            lambda: pa.array([b"\xff"] * rows),
            lambda: pa.array([{"a": 1}] * rows),
            lambda: pa.array([[1, 2]] * rows),
            lambda: pa.array(["x" * 100_000] * rows),
            lambda: pa.array([True] * rows),
            lambda: pa.array([0] * rows, pa.timestamp("s")),
            lambda: pa.array([0] * rows, pa.duration("ns")),
            lambda: pa.array([None, *["1_0"] * (rows - 1)]),
            lambda: pa.array([Decimal("1e30")] * rows),
            lambda: pa.array(["a"] * rows).dictionary_encode(),
        ]
    )()


def _bomb(place: Place, draw: random.Random) -> None:
    """Archives that say that they hold more than there is, or unpack to much more than they are."""
    path = place.folder / "own.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("x", "y"):
            shape = draw.choice(
                [
                    "(60, 3)",
                    "(60,)",
                    "(1000000000000,)",
                    "(60, 99999999999)",
                    "(-1,)",
                    "(60, 0)",
                    "()",
                    "('a',)",
                ]
            )
            kind = draw.choice(
                [
                    "<f4",
                    "<i8",
                    "|O",
                    "|V99999999999",
                    "<U99999999",
                    "<M8[s]",
                    "junk",
                    "[('a', '<f4')]",
                ]
            )
            header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
            magic = draw.choice(
                [b"\x93NUMPY\x01\x00", b"\x93NUMPY\x03\x00", b"\x93NUMPY\x09\x00", b"\x93NUM"]
            )
            size = struct.pack("<I" if magic[6:7] == b"\x03" else "<H", len(header))
            content = draw.choice([bytes(720), b"", bytes(50_000_000)])
            archive.writestr(f"{name}.npy", magic + size + header + content)
    if draw.random() < 0.5:
        folder = place.folder / "mnist"
        folder.mkdir()
        for part in ("train", "t10k"):
            for what in ("images-idx3", "labels-idx1"):
                header = struct.pack(">BBBB", 0, 0, 8, 3 if what[0] == "i" else 1) + struct.pack(
                    ">III", 10, 28, 28
                )
                much = header + bytes(draw.choice([7840, 10, 200_000_000]))
                (folder / f"{part}-{what}-ubyte.gz").write_bytes(gzip.compress(much, 1))
        _run(place, draw, data={"source": "mnist", "partition": "iid", "root": str(place.folder)})
        return
    _run(place, draw, data={"source": {"kind": "npz", "path": str(path)}, "partition": "iid"})


def _columns(place: Place, draw: random.Random) -> None:
    """Tables of devices or a log, in Parquet: columns twice, of a wrong type, with absurd
    values.
    """
    names = ["device", "speed", "rate", "model"]
    columns = [
        pa.array(range(24)),
        pa.array([10.0 + n for n in range(24)]),
        pa.array(["1 Mbit/s"] * 24),
        pa.array(["laptop"] * 24),
    ]
    is_log = draw.random() < 0.3
    if is_log:
        names = ["client", "round", "what", "start", "end", "bytes", "samples"]
        what = ["down", "train", "up"] * 8
        times = [float(n) for n in range(24)]
        columns = [
            pa.array(["a", "a", "a", "b", "b", "b"] * 4),
            pa.array([n // 6 for n in range(24)]),
            pa.array(what),
        ]
        columns += [
            pa.array(times),
            pa.array([time + 0.5 for time in times]),
            pa.array([1e6] * 24),
            pa.array([60] * 24),
        ]
    for _ in range(draw.choice([1, 1, 2])):
        columns[draw.randrange(len(columns))] = _odd_column(draw, 24)
    if draw.random() < 0.4:
        names[draw.randrange(len(names))] = draw.choice(names)
    path = place.folder / "table.parquet"
    pq.write_table(pa.table(columns, names=names), path)
    if is_log:
        place.call("calibrate", str(path), "--out", "fitted", allowed=(0, 2))
        return
    column = {"file": str(path), "column": draw.choice(names), "unit": "samples/s"}
    population = draw.choice(
        [{"speed": column}, {"speed": None, "device": {"file": str(path), "column": "model"}}]
    )
    _run(
        place,
        draw,
        population=population,
        network={"kind": "star", "device": {"down": {"file": str(path), "column": "rate"}}},
    )


def _npz(place: Place, draw: random.Random) -> None:
    shape = draw.choice([(6,), (4, 4), (1, 4, 4)])
    generator = np.random.default_rng(draw.randrange(100))
    arrays = {"x": generator.random((200, *shape), dtype=np.float32), "y": np.arange(200) % 5}
    if draw.random() < 0.3:
        arrays = {
            f"{name}_{part}": array for name, array in arrays.items() for part in ("train", "test")
        }
    _write_npz(draw, place.folder / "own.npz", arrays)
    source = {"kind": "npz", "path": str(place.folder / "own.npz")}
    _run(
        place,
        draw,
        data={
            "source": source,
            "partition": draw.choice(["iid", {"kind": "dirichlet", "alpha": 1.0}]),
        },
    )


def _partition(place: Place, draw: random.Random) -> None:
    path = place.folder / draw.choice(["who.json", "who.npz"])
    if path.suffix == ".json":
        entries = {
            str(device): {"train": [device, device + 30], "test": [device]}
            for device in range(DEVICES)
        }
        _write_json(draw, path, entries)
    else:
        _write_npz(
            draw,
            path,
            {f"train_{device}": np.arange(device, device + 3) for device in range(DEVICES)},
        )
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
            write_idx(
                folder / f"{part}-images-idx3-ubyte", np.full((count, 28, 28), 7, dtype=np.uint8)
            )
            write_idx(
                folder / f"{part}-labels-idx1-ubyte.gz", (np.arange(count) % 10).astype(np.uint8)
            )
    else:
        for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
            (folder / name).write_bytes(
                b"".join(bytes([label]) + bytes(3072) for label in range(10)) * 3
            )
    damage(draw, draw.choice(sorted(folder.iterdir())))
    _run(place, draw, data={"source": source, "partition": "iid", "root": str(place.folder)})


def _traces(place: Place, draw: random.Random) -> None:
    _write_json(draw, place.folder / "traces.json", _TRACES)
    _run(
        place,
        draw,
        population={"availability": {"kind": "flash", "file": str(place.folder / "traces.json")}},
    )


def _capacities(place: Place, draw: random.Random) -> None:
    rows = [[str(cell) for cell in (n, 20 + n, 900 + n, 500 + n)] for n in range(9)]
    path = _table(place, draw, [["id", "computation_ms_per_sample", "dl_kbps", "ul_kbps"], *rows])
    network = {"kind": "star", "server": {"down": "2 Mbit/s"}, "device": None}
    _run(place, draw, population={"capacity": {"file": str(path)}, "speed": None}, network=network)


def _cells(draw: random.Random) -> list[str]:
    return [values.text(draw), str(draw.choice(values.NUMBERS)), "1_0", "٣"]


def _devices(place: Place, draw: random.Random) -> None:
    rows = [["device", "speed", "rate", "model"]]
    rows += [
        [str(device), str(10 + device), f"{device + 1} Mbit/s", "laptop"] for device in range(24)
    ]
    path = _table(place, draw, rows)
    column = {"file": str(path), "column": "speed", "unit": "samples/s"}
    population = draw.choice(
        [{"speed": column}, {"speed": None, "device": {"file": str(path), "column": "model"}}]
    )
    device = {"down": {"file": str(path), "column": "rate"}}
    _run(place, draw, population=population, network={"kind": "star", "device": device})


def _intervals(place: Place, draw: random.Random) -> None:
    times = draw.choice(
        [("0 s", "1 h"), ("22:00", "06:30"), ("2024-03-04T06:00", "2024-03-04T09:00Z")]
    )
    path = _table(
        place, draw, [["device", "start", "end"], *([str(device), *times] for device in range(24))]
    )
    availability = {"kind": "intervals", "file": str(path), "drawn": draw.random() < 0.2}
    _run(
        place,
        draw,
        population={"availability": availability, "calendar": {"starts": "2024-03-04T06:00"}},
    )


def _table(place: Place, draw: random.Random, rows: list[list[str]]) -> Path:
    """A CSV or Parquet file of which a cell, a row or some bytes may be odd."""
    row = draw.choice(rows)
    if draw.random() < 0.7:
        row[draw.randrange(len(row))] = draw.choice(
            [*_cells(draw), '"' + values.LONG, "", "24:00", "0001-01-01", '"']
        )
    if draw.random() < 0.2:
        rows.insert(draw.randrange(len(rows)), draw.choice(rows)[: draw.randrange(5)])
    if (
        draw.random() < 0.3
        and len({len(row) for row in rows}) == 1
        and len(set(rows[0])) == len(rows[0])
    ):
        path = place.folder / "table.parquet"
        pq.write_table(
            pa.table({name: list(cells) for name, *cells in zip(*rows, strict=True)}), path
        )
    else:
        path = place.folder / "table.csv"
        path.write_text(
            "".join(",".join(row) + "\n" for row in rows), encoding="utf-8", errors="surrogatepass"
        )
    if draw.random() < 0.3:
        damage(draw, path)
    return path


def _graph(place: Place, draw: random.Random) -> None:
    _write_json(draw, place.folder / "graph.json", GRAPH)
    network = {
        "kind": "graph",
        "file": str(place.folder / "graph.json"),
        "server": "s",
        "attach": ["a", "b"],
    }
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
    (place.folder / "study.toml").write_text(
        as_toml({"base": "base.toml", "variants": {"one": {}, "two": {"stop.rounds": 2}}})
    )
    damage(draw, place.folder / draw.choice(["base.toml", "study.toml"]))
    place.call("study", "study.toml", "--out", "studied", "--dry-run", "--no-trial")


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
        place.call("study", "study.toml", "--out", "studied", "--dry-run", "--no-trial")
    shutil.rmtree(out / "runs")
    place.call("compare", "studied")
