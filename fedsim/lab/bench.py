"""``fedsim bench``: strategies in six frozen worlds, and their places on the kept board.

The worlds are the shipped scenarios ``worlds/...``, the board's strategies the variants of the
shipped study ``bench``. A line of the board has the digest of its world's file, and another file
beside the board has digests of the drawn tables by seed.
"""

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import TypeAdapter

from fedsim.common.errors import DataError, ScenarioError
from fedsim.common.files import read_bytes, read_toml, regular
from fedsim.common.streams import Streams
from fedsim.common.units import show_bytes, show_joules, show_seconds
from fedsim.lab.compare.lines import read_lines
from fedsim.lab.compare.measures import FINAL, costs_until
from fedsim.lab.compare.table import Cell, ComparedTable
from fedsim.lab.study.conduct import run_study
from fedsim.lab.study.loaded import load_study
from fedsim.records.folder import AVAILABILITY, DEVICES, EVENTS, write_text
from fedsim.running.overrides import read_change
from fedsim.running.scenario import load
from fedsim.running.shipped import shipped
from fedsim.version import __version__

WorldDigests = dict[tuple[str, int, str], str]
"""A digest by a world, a seed, and the name of a table."""

BOARD = Path(__file__).parents[1] / "running" / "scenarios" / "worlds" / "board.csv"
ALL = "all"
_STUDY = "bench"
_TABLES = "tables.csv"  # beside a board
_DRAWN = (
    "device",
    "speed",
    "link_down",
    "link_up",
    "latency",
    "samples",
    "test_samples",
    "arrival",
    "departure",
)
# without ``data``: it states losses
_HAPPENED = ("time", "kind", "device", "round", "group", "task", "step", "outcome")
_DIGITS = "%.12g"  # logarithms differ in the last bits between processors
_MOST_NAMED = 6
_SEEN_S = 60.0  # of availability: runs differ in length


@dataclass(frozen=True)
class BoardLine:
    """A strategy in a world: means over its seeds, those to the target None unless all seeds
    reached it.
    """

    strategy: str  # a variant of the study ``bench``, and a part of it:
    world: str
    seeds: int
    reached: int  # of these seeds
    # simulated, to the target, with its 95 % interval over seeds (Student's t):
    time_s: float | None
    time_low: float | None
    time_high: float | None
    bytes: float | None
    joules: float | None
    accuracy: float | None  # at the end, 0..1
    file: str  # digest of the world's
    version: str  # of fedsim, with the commit where it runs from a checkout


def bench(
    strategies: Sequence[str],
    out: Path,
    changes: Sequence[str] = (),
    *,
    seeds: int | None = None,
    workers: int | None = None,
    allow_code: bool = False,
) -> list[BoardLine]:
    """Run strategies in all worlds, or resume that in the same folder. Raises as ``run_study``.

    ``strategies``: names of the board, kinds, import paths, or ``all`` of the board.
    ``changes``: of those not on the board.
    """
    tables = read_toml(shipped()[_STUDY])
    known = tables["variants"]
    own = {".".join(change.keys): change.value for change in map(read_change, changes)}
    names = [*known] if ALL in strategies else list(dict.fromkeys(strategies))
    if own and not set(names) - set(known):
        raise ScenarioError(
            f"--set {changes[0]} has no effect: {', '.join(names)} of the board are what they are"
        )
    called = {name: name.rpartition(":")[2] for name in names}  # an import path by its class
    tables["variants"] = {
        called[name]: known.get(name, {"strategy.kind": name} | own) for name in names
    }
    for part in tables["parts"].values():
        part["variants"] = {called[name]: part["variants"].get(name, {}) for name in names}
    tables["baseline"] = called[names[0]]
    run_study(tables, out, seeds=seeds, workers=workers, allow_code=allow_code)
    return lines_of(out, tables["target"])


def lines_of(out: Path, target: float) -> list[BoardLine]:
    """The lines of a study ``bench`` that was run in ``out``."""
    to = f"to target {target:g}"
    version = _version()
    found = []
    table = load_study(out).table
    time = f"time {to} (s)"
    heads = [
        time,
        f"{time} low",
        f"{time} high",
        f"traffic {to} (bytes)",
        f"energy {to} (J)",
        FINAL.head,
    ]
    figures = table[heads].astype(object)
    for line, own in zip(
        read_lines([out]).lines,
        figures.where(figures.notna(), None).to_numpy().tolist(),
        strict=True,
    ):
        reached = len(
            [run for run in line.runs if costs_until(run, target)[f"time {to}"] is not None]
        )
        world = str(dict(line.point)["part"])
        cells: list[Any] = [
            line.name,
            world,
            line.planned,
            reached,
            *own,
            digest_of(world),
            version,
        ]
        found.append(BoardLine(*cells))
    return found


def _version() -> str:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return __version__
    said = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "+".join(filter(None, (__version__, said.stdout.strip())))


def digest_of(world: str) -> str:
    """The first 12 digits of the SHA-256 of a world's file."""
    return _digest(read_bytes(shipped()[f"worlds/{world}"]))


def tables_of(out: Path) -> WorldDigests:
    """Digests of the worlds of a study ``bench`` in ``out``, and of each strategy's events; the
    same on any processor.

    A world's tables: devices and links as drawn, availability in the first minute, each device's
    data. Events count without figures of models, numbers without their last digits.
    """
    found: WorldDigests = {}
    for line in read_lines([out]).lines:
        world = str(dict(line.point)["part"])
        for run in line.runs:
            seed = int(run.summary["seed"])
            tables = {"devices": run.table(DEVICES).select(_DRAWN).to_pandas()}
            tables[f"events of {line.name}"] = run.table(EVENTS).select(_HAPPENED).to_pandas()
            if run.summary["simulated_s"] >= _SEEN_S:
                phases = run.table(AVAILABILITY).to_pandas().sort_values(["device", "time"])
                tables["availability"] = phases[phases["time"] <= _SEEN_S]
            texts = {
                name: table.to_csv(index=False, float_format=_DIGITS)
                for name, table in tables.items()
            }
            found |= {(world, seed, name): _digest(text.encode()) for name, text in texts.items()}
            found[world, seed, "data"] = _digest_of_data(world, seed)
    return found


@cache
def _digest_of_data(world: str, seed: int) -> str:
    scenario = load(shipped()[f"worlds/{world}"])
    data = scenario.data.build(scenario.population.devices, Streams(seed))
    parts = [
        array
        for shard in data.shards
        for samples in (data.train_samples, data.test_samples)
        for array in samples(shard)
    ]
    return _digest(b"".join(np.ascontiguousarray(array).tobytes() for array in parts))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def changed_tables(found: Mapping[tuple[str, int, str], str], board: Path = BOARD) -> list[str]:
    """The tables that differ from those kept beside a board; a table of which none is kept does
    not.
    """
    kept = _kept_tables(board)
    return [
        f"{' seed '.join(map(str, key[:2]))}: {key[2]}"
        for key, own in found.items()
        if kept.get(key, own) != own
    ]


def _kept_tables(board: Path) -> WorldDigests:
    path = board.with_name(_TABLES)
    rows = (
        pd.read_csv(regular(path), dtype={"sha256": str}).itertuples(index=False)
        if path.exists()
        else ()
    )
    return {(str(world), int(seed), str(table)): str(digest) for world, seed, table, digest in rows}


def read_board(path: Path = BOARD) -> list[BoardLine]:
    """The lines of a board, without those of worlds that have changed since; none without a file.

    ``DataError``: no board.
    """
    if not path.exists():
        return []
    try:
        rows = pd.read_csv(regular(path), dtype=str).astype(object)
        lines = TypeAdapter(list[BoardLine]).validate_python(
            rows.where(rows.notna(), None).to_dict("records")
        )
    except (OSError, ValueError) as error:
        raise DataError(
            f"{str(path)!r} is no board of fedsim bench: {str(error).splitlines()[0]}"
        ) from None
    return [
        line
        for line in lines
        if f"worlds/{line.world}" in shipped() and line.file == digest_of(line.world)
    ]


def keep(
    lines: Sequence[BoardLine], path: Path, tables: Mapping[tuple[str, int, str], str]
) -> None:
    """Replace or add lines of the board in a file, and digests beside it.

    ``DataError``: digests of some ``tables`` differ.
    """
    if changed := changed_tables(tables, path):
        raise DataError(
            f"nothing is kept in {str(path)!r}, whose worlds are others: "
            f"{'; '.join(changed[:_MOST_NAMED])}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    board = {(line.strategy, line.world): line for line in (*read_board(path), *lines)}
    rows = pd.DataFrame([asdict(line) for _, line in sorted(board.items())])
    write_text(path, rows.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    known = sorted((_kept_tables(path) | dict(tables)).items())
    digests = pd.DataFrame(
        [(*key, digest) for key, digest in known], columns=["world", "seed", "table", "sha256"]
    )
    write_text(path.with_name(_TABLES), digests.to_csv(index=False, lineterminator="\n"))


def places(lines: Sequence[BoardLine]) -> dict[tuple[str, str], int]:
    """The place (from 1) of each strategy in each world, by its time to the target; those that
    missed it have none.
    """
    times = pd.Series({(line.strategy, line.world): line.time_s for line in lines}, dtype=float)
    return times.groupby(level=1).rank(method="first").dropna().astype(int).to_dict()  # type: ignore[return-value]


def table_of(lines: Sequence[BoardLine], board: Sequence[BoardLine]) -> ComparedTable:
    """The lines with their places among those of the board and their own."""
    every = [*{(line.strategy, line.world): line for line in (*board, *lines)}.values()]
    ranked = places(every)
    rows = list[dict[str, Cell]]()
    for line in lines:
        place = ranked.get((line.strategy, line.world))
        among = f"{place} of {sum(other.world == line.world for other in every)}"
        placed = (
            f"missed in {line.seeds - line.reached} of {line.seeds}" if place is None else among
        )
        moved = None if line.bytes is None else show_bytes(line.bytes)
        joules = None if line.joules is None else show_joules(line.joules)
        row: dict[str, Cell] = {"strategy": line.strategy, "world": line.world, "place": placed}
        rows.append(row | {"time to target": interval_of(line), "bytes": moved, "energy": joules})
    found = ComparedTable.of([*rows[0]], rows)
    fewest = min(line.seeds for line in lines)
    kept = max((line.seeds for line in board), default=0)
    few = (
        f"These are {fewest} seed{'s' * (fewest > 1)}, the board's {kept}: places may change with "
        f"--seeds {kept}."
    )
    return replace(found, notes=(few,)) if fewest < kept else found


def interval_of(line: BoardLine) -> str | None:
    """Time to the target with its interval, in words; None where some seed missed it."""
    if line.time_s is None:
        return None
    if line.time_low is None or line.time_high is None:
        return show_seconds(line.time_s)
    return (
        f"{show_seconds(line.time_s)} ({show_seconds(line.time_low)} to "
        f"{show_seconds(line.time_high)})"
    )
