"""``fedsim bench``: strategies in six standard worlds, and their ranks among published results.

The worlds are the shipped scenarios ``worlds/...``. The published results are the board, a CSV file
with a line per strategy and world; its strategies are the variants of the shipped study ``bench``.
Each line states a digest of its world's scenario file, and is left out if that file has changed. A
second file beside the board has digests of the tables (devices, data, events) of each world and
seed, to notice when another version of fedsim draws them differently.
"""

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import TypeAdapter

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import DataError, ScenarioError
from fedsim.common.files import read_bytes, read_toml, require_regular
from fedsim.common.round_words import counted
from fedsim.common.streams import Streams
from fedsim.common.units import show_bytes, show_joules, show_seconds
from fedsim.lab.compare.columns import Cell, ComparedTable
from fedsim.lab.compare.lines import ComparedLine, read_lines
from fedsim.lab.compare.measures import FINAL, cost_of, costs_until
from fedsim.lab.reading.targets import Target
from fedsim.lab.study.conduct import run_study
from fedsim.lab.study.loaded import load_study
from fedsim.records.folder import AVAILABILITY, DEVICES, EVENTS, write_text
from fedsim.running.overrides import Tables, read_change
from fedsim.running.scenario import load
from fedsim.running.shipped import shipped
from fedsim.version import __version__

WorldDigests = dict[tuple[str, int, str], str]
"""Digests (hexadecimal) of tables, by world, seed and name of the table."""

BOARD = Path(__file__).parents[1] / "running" / "scenarios" / "worlds" / "board.csv"
ALL = "all"
_STUDY = "bench"
_TABLES = "tables.csv"  # file name of the digests, in the folder of the board
# columns of ``devices.parquet`` in digests; the world does not determine the other columns
_DEVICE_COLUMNS = (
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
# columns of events in digests; ``data`` has losses, whose last bits differ between processors
_EVENT_COLUMNS = ("time", "kind", "device", "round", "group", "task", "step", "outcome")
_DIGITS = "%.12g"  # logarithms differ in the last bits between processors
_MOST_NAMED = 6  # upper bound of the tables that an error message names
# digests hold the availability only up to this simulated time (s), as runs of one world differ in
# length
_COMPARED_S = 60.0


@dataclass(frozen=True)
class BoardLine:
    """Costs of a strategy in one of the bench's standard worlds: means over seeds.

    A world is a scenario with fixed devices, network and data.

    Attributes:
        strategy: name of a variant of the study ``bench``.
        world: name of a standard world, which is a part (``[parts]``) of the study ``bench``.
        seeds: count of seeds.
        reached: count of seeds that reached the target accuracy.
        time_s: simulated time (s) to the target; like all costs to the target, None unless all
            seeds reached it.
        time_low, time_high: ends of the 95 % interval of ``time_s`` over seeds (s; Student's t).
        bytes: traffic until the target, sent and received.
        joules: energy until the target (J).
        accuracy: test accuracy at the end, 0..1.
        file: digest of the world's scenario file.
        version: version of fedsim, with the commit if fedsim runs from a checkout.
    """

    strategy: str
    world: str
    seeds: int
    reached: int
    time_s: float | None
    time_low: float | None
    time_high: float | None
    bytes: float | None
    joules: float | None
    accuracy: float | None
    file: str
    version: str


def bench(
    strategies: Sequence[str],
    out: Path,
    changes: Sequence[str] = (),
    *,
    seeds: int | None = None,
    workers: int | None = None,
    allow_code: bool = False,
) -> list[BoardLine]:
    """Run strategies in the bench's standard worlds, to compare them with published results.

    A world is a scenario (``worlds/...``) with fixed devices, network and data. The published
    results are the board, a CSV file; its strategies are the variants of the study ``bench``, with
    fixed settings. Runs that the folder already has are resumed.

    Args:
        strategies: names of strategies of the board; kinds (values of ``strategy.kind``) or import
            paths of strategies that are not on the board; ``all`` for every strategy of the board.
        out: folder of the study that holds the runs.
        changes: ``key.path=value`` texts, such as ``strategy.clients_per_round=5``, for the
            strategies that are not on the board.
        seeds: count of seeds, starting at seed 1; by default the count of the study ``bench``.
        workers: number of parallel runs; by default one per core.
        allow_code: whether to import code that is named by import path.

    Returns:
        One line per strategy and world.

    Raises:
        ScenarioError: there are ``changes``, but all strategies are on the board.
        FedsimError: a scenario or its data are invalid, or a run has failed.
    """
    study = _study_of(strategies, changes)
    run_study(study, out, seeds=seeds, workers=workers, allow_code=allow_code)
    return lines_of(out, study["target"])


def _study_of(strategies: Sequence[str], changes: Sequence[str]) -> Tables:
    """Return the study ``bench`` with the given strategies as its variants, in each world.

    Args:
        strategies: names, kinds or import paths of strategies, or ``all``, as for ``bench``.
        changes: ``key.path=value`` texts for the strategies that are not on the board.

    Raises:
        ScenarioError: there are ``changes``, but all strategies are on the board.
    """
    study = read_toml(shipped()[_STUDY])
    board_variants = study["variants"]
    names = [*board_variants] if ALL in strategies else list(dict.fromkeys(strategies))
    settings = {".".join(change.keys): change.value for change in map(read_change, changes)}
    if settings and all(name in board_variants for name in names):
        raise ScenarioError(
            f"--set {changes[0]} has no effect: {', '.join(names)} of the board are what they are"
        )
    # a strategy ``package.module:Class`` becomes a variant with the name of its class
    variant_of = {name: name.rpartition(":")[2] for name in names}
    study["variants"] = {}
    for name, variant in variant_of.items():
        settings_off_board = {"strategy.kind": name} | settings
        study["variants"][variant] = board_variants.get(name, settings_off_board)
    for world in study["parts"].values():
        # a world may have settings of its own for a strategy of the board
        settings_in_world = world["variants"]
        world["variants"] = {
            variant: settings_in_world.get(name, {}) for name, variant in variant_of.items()
        }
    study["baseline"] = variant_of[names[0]]
    return study


def lines_of(out: Path, target: float) -> list[BoardLine]:
    """Return the results of a study ``bench`` that was run in ``out``, as lines of the board.

    The board is the CSV file of published results, one line per strategy and world.

    Args:
        out: the study's folder.
        target: the accuracy (0..1) to which costs are computed.
    """
    version = _version()
    reached_target = Target(target)
    time_cost = cost_of("time", reached_target)
    columns = [
        time_cost.head,
        f"{time_cost.head} low",
        f"{time_cost.head} high",
        cost_of("traffic", reached_target).head,
        cost_of("energy", reached_target).head,
        FINAL.head,
    ]
    figures = load_study(out).table[columns].astype(object)
    rows = figures.where(figures.notna(), None).to_numpy().tolist()  # None instead of NaN
    lines = []
    for line, row in zip(read_lines([out]).lines, rows, strict=True):
        times = [costs_until(run, reached_target)[time_cost.name] for run in line.runs]
        reached = len(times) - times.count(None)
        world = _world_of(line)
        time_s, time_low, time_high, traffic, joules, accuracy = row
        lines.append(
            BoardLine(
                strategy=line.name,
                world=world,
                seeds=line.planned,
                reached=reached,
                time_s=time_s,
                time_low=time_low,
                time_high=time_high,
                bytes=traffic,
                joules=joules,
                accuracy=accuracy,
                file=digest_of(world),
                version=version,
            )
        )
    return lines


def _world_of(line: ComparedLine) -> str:
    """Return the name of a line's world, a part (``[parts]``) of the study ``bench``."""
    return str(dict(line.point)["part"])


def _version() -> str:
    """Return the version of fedsim, with the git commit if fedsim runs from a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return __version__
    git = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    commit = git.stdout.strip()
    return f"{__version__}+{commit}" if commit else __version__


def digest_of(world: str) -> str:
    """Return a digest of a world's scenario file, which differs if the file has changed.

    It is the first 12 hexadecimal digits of the SHA-256.

    Args:
        world: name of the world, the scenario ``worlds/NAME`` that comes with fedsim.
    """
    return _digest(read_bytes(shipped()[f"worlds/{world}"]))


def digests_of_tables(out: Path) -> WorldDigests:
    """Return a digest of each table of the bench's runs, to notice when a table changes.

    The tables of a world and seed are the drawn devices and links, the availability in the first
    minute, each device's data, and the events of each strategy. Values computed from models and the
    last digits of floats are left out, so that digests are equal on every processor.

    Args:
        out: folder of a study ``bench`` that was run.

    Returns:
        (world, seed, name of a table) -> digest, in hexadecimal digits.
    """
    digests: WorldDigests = {}
    # Lines of one world and seed have equal tables but for the events, so that it does not matter
    # from which line the digest is.
    for line in read_lines([out]).lines:
        world = _world_of(line)
        for run in line.runs:
            seed = int(run.summary["seed"])
            tables = {"devices": run.table(DEVICES).select(_DEVICE_COLUMNS).to_pandas()}
            events = run.table(EVENTS).select(_EVENT_COLUMNS).to_pandas()
            tables[f"events of {line.name}"] = events
            if run.summary["simulated_s"] >= _COMPARED_S:
                phases = run.table(AVAILABILITY).to_pandas().sort_values(["device", "time"])
                tables["availability"] = phases[phases["time"] <= _COMPARED_S]
            for name, table in tables.items():
                text = table.to_csv(index=False, float_format=_DIGITS)
                digests[world, seed, name] = _digest(text.encode())
            digests[world, seed, "data"] = _digest_data(world, seed)
    return digests


@cache
def _digest_data(world: str, seed: int) -> str:
    """Return a digest of the training and test samples of all devices of a world."""
    scenario = load(shipped()[f"worlds/{world}"])
    data = scenario.data.build(scenario.population.devices, Streams(seed))
    arrays: list[AnyArray] = []
    for shard in data.shards:
        arrays += data.train_samples(shard)
        arrays += data.test_samples(shard)
    return _digest(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def changed_tables(digests: Mapping[tuple[str, int, str], str], board: Path = BOARD) -> list[str]:
    """Return the tables of the bench's worlds that have changed since the published results.

    Ranks compare new runs with the board, the CSV file of published results, so both need equal
    devices, data and availability. A file beside the board has digests of these tables. A table
    without a recorded digest is not returned.

    Args:
        digests: (world, seed, name of a table) -> digest of the present table.
        board: path of the board; the recorded digests are in the same folder.

    Returns:
        World, seed and name of each table that differs, as text for the user.
    """
    recorded = _read_digests(board)
    names = []
    for (world, seed, table), digest in digests.items():
        if recorded.get((world, seed, table), digest) != digest:
            names.append(f"{world} seed {seed}: {table}")
    return names


def _read_digests(board: Path) -> WorldDigests:
    path = board.with_name(_TABLES)
    if not path.exists():
        return {}
    digests = {}
    rows = pd.read_csv(require_regular(path), dtype={"sha256": str}).itertuples(index=False)
    for world, seed, table, digest in rows:
        digests[str(world), int(seed), str(table)] = str(digest)
    return digests


def read_board(path: Path = BOARD) -> list[BoardLine]:
    """Read a board, the CSV file of published results: one line per strategy and world.

    Lines are left out if their world's scenario file has changed since they were written. Returns
    no lines if the board does not exist.

    Raises:
        DataError: the file is no board.
    """
    if not path.exists():
        return []
    try:
        rows = pd.read_csv(require_regular(path), dtype=str).astype(object)
        lines = TypeAdapter(list[BoardLine]).validate_python(
            rows.where(rows.notna(), None).to_dict("records")
        )
    except (OSError, ValueError) as error:
        raise DataError(
            f"{str(path)!r} is no board of fedsim bench: {str(error).splitlines()[0]}"
        ) from None
    return [line for line in lines if _is_current(line)]


def _is_current(line: BoardLine) -> bool:
    return f"worlds/{line.world}" in shipped() and line.file == digest_of(line.world)


def keep(
    lines: Sequence[BoardLine], path: Path, tables: Mapping[tuple[str, int, str], str]
) -> None:
    """Add results to a board, the CSV file of published results.

    The file ``tables.csv`` in the same folder has a digest of each table (devices, data, events) of
    each world and seed. The given digests are added to that file. If a given digest differs from
    the recorded one, the results have a different world, and nothing is written.

    Args:
        lines: the results, each of which replaces the board's line for its strategy and world.
        path: path of the board, which need not exist.
        tables: (world, seed, name of a table) -> digest, as ``digests_of_tables`` returns it.

    Raises:
        DataError: a given digest differs from the recorded one.
    """
    changed = changed_tables(tables, path)
    if changed:
        raise DataError(
            f"nothing is kept in {str(path)!r}, whose worlds are others: "
            f"{'; '.join(changed[:_MOST_NAMED])}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    board = {(line.strategy, line.world): line for line in (*read_board(path), *lines)}
    rows = pd.DataFrame([asdict(line) for _, line in sorted(board.items())])
    write_text(path, rows.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    updated = sorted((_read_digests(path) | dict(tables)).items())
    digests = pd.DataFrame(
        [(*key, digest) for key, digest in updated], columns=["world", "seed", "table", "sha256"]
    )
    write_text(path.with_name(_TABLES), digests.to_csv(index=False, lineterminator="\n"))


def places(lines: Sequence[BoardLine]) -> dict[tuple[str, str], int]:
    """Rank the strategies in each of the bench's worlds by their time to the target accuracy.

    Args:
        lines: results, one line for each strategy and world, with simulated times.

    Returns:
        (strategy, world) -> rank from 1. A strategy without a time, because a seed missed the
        target, has no rank.
    """
    times = pd.Series({(line.strategy, line.world): line.time_s for line in lines}, dtype=float)
    by_world = times.groupby(level=1)
    ranks = by_world.rank(method="first").dropna()
    strategies = ranks.index.get_level_values(0)
    worlds = ranks.index.get_level_values(1)
    return {
        (str(strategy), str(world)): int(rank)
        for strategy, world, rank in zip(strategies, worlds, ranks, strict=True)
    }


def table_of(lines: Sequence[BoardLine], board: Sequence[BoardLine]) -> ComparedTable:
    """Return new results as a table for people, with their ranks among the published results.

    The table has a row per line: strategy, world, rank (``place``), time to the target with its
    interval, traffic, and energy.

    Args:
        lines: the results to show.
        board: the published results. Ranks are computed among ``board`` and ``lines`` together.
    """
    # a new line replaces the board's line of its strategy and world
    compared = {(line.strategy, line.world): line for line in (*board, *lines)}
    ranks = places([*compared.values()])
    worlds = [line.world for line in compared.values()]
    rows = []
    for line in lines:
        rank = ranks.get((line.strategy, line.world))
        place = f"{rank} of {worlds.count(line.world)}"
        if rank is None:
            place = f"missed in {line.seeds - line.reached} of {line.seeds}"
        rows.append(_row_of(line, place))
    table = ComparedTable.of([*rows[0]], rows)
    # with fewer seeds than on the board, ranks are less certain, which a note says
    seeds = min(line.seeds for line in lines)
    board_seeds = max((line.seeds for line in board), default=0)
    if seeds >= board_seeds:
        return table
    note = (
        f"These are {counted(seeds, 'seed')}, the board's {board_seeds}: places may change with "
        f"--seeds {board_seeds}."
    )
    return replace(table, notes=(note,))


def _row_of(line: BoardLine, place: str) -> dict[str, Cell]:
    return {
        "strategy": line.strategy,
        "world": line.world,
        "place": place,
        "time to target": interval_of(line),
        "bytes": None if line.bytes is None else show_bytes(line.bytes),
        "energy": None if line.joules is None else show_joules(line.joules),
    }


def interval_of(line: BoardLine) -> str | None:
    """Return a result's time to the target as text, with its interval over seeds.

    None if a seed missed the target.
    """
    if line.time_s is None:
        return None
    if line.time_low is None or line.time_high is None:
        return show_seconds(line.time_s)
    interval = f"{show_seconds(line.time_low)} to {show_seconds(line.time_high)}"
    return f"{show_seconds(line.time_s)} ({interval})"
