"""The page of the board of ``fedsim bench``, made from the board's file."""

from collections.abc import Iterator

from text import row_of

from fedsim.common.files import read_toml
from fedsim.common.units import show_bytes, show_joules
from fedsim.lab import bench
from fedsim.running.shipped import shipped


def board() -> Iterator[str]:
    """The blocks of the page: the worlds, each with its ranking."""
    lines = bench.read_board()
    ranks = bench.places(lines)
    worlds = [*dict.fromkeys(line.world for line in lines)]
    names = [*dict.fromkeys(line.strategy for line in lines)]
    by_cell = {(line.strategy, line.world): line for line in lines}
    places: dict[str, list[int]] = {}
    for name in names:
        places[name] = [ranks[name, world] for world in worlds if (name, world) in ranks]
    names.sort(key=lambda name: sum(places[name]) / max(1, len(places[name])))
    apart = max(names, key=lambda name: max(places[name], default=0) - min(places[name], default=0))
    yield (
        "Six frozen worlds, each a scenario that comes with fedsim (`fedsim init worlds/phones`): "
        "phones over LTE, boards at home, hospitals, cloud regions, cars that come and go, and a "
        "campus with edge servers. Each strategy runs until 90 % of the test samples are told "
        "apart. A row is its place, its mean simulated time until then over "
        f"{lines[0].seeds} seeds with a 95 % interval, the bytes and the energy."
    )
    yield (
        f"**Ranks change between worlds**: `{apart}` has place {min(places[apart])} in one and "
        f"place {max(places[apart])} in another. Where intervals overlap, places say little."
    )
    for world in worlds:
        ranking = sorted((ranks.get((name, world), len(names)), name) for name in names)
        heads = ["place", "strategy", "time", "bytes", "energy", "accuracy at the end"]
        rows = [row_of(heads), row_of(["---"] * len(heads))]
        for place, name in ranking:
            rows.append(_row(place, by_cell[name, world]))
        yield f"## {_title(world)}"
        yield "\n".join(rows)
    yield (
        "## Yours\n\n`fedsim bench ./mine.py:Mine --allow-code` runs a strategy of your own in "
        "all six, two minutes of one core, and places it; `--keep scenarios/worlds/board.csv` puts "
        "it on the board: a new line is a pull request. All of the board again: `fedsim bench all "
        "--seeds 5 --keep board.csv` (seven minutes on two busy cores). The worlds are frozen: a "
        "line bears the digest of its world's file, and one of another world does not count. "
        "Digests of what is drawn in them, and of the events of these runs, are checked each time, "
        "and what differs is named; they hold on processors with and without AVX. These were made "
        "with "
        f"fedsim {', '.join(sorted({line.version for line in lines}))}."
    )


def _row(place: int, line: bench.BoardLine) -> str:
    time = bench.interval_of(line)
    if not time:
        time = f"missed in {line.seeds - line.reached} of {line.seeds}"
    size = "" if line.bytes is None else show_bytes(line.bytes)
    energy = "" if line.joules is None else show_joules(line.joules)
    accuracy = "" if line.accuracy is None else f"{line.accuracy:.3f}"
    return row_of([str(place), f"`{line.strategy}`", time, size, energy, accuracy])


def _title(world: str) -> str:
    """The name of a world."""
    return str(read_toml(shipped()[f"worlds/{world}"])["name"]).capitalize()
