"""A run folder that was changed fails its audit; a damaged checkpoint is refused, or gives the
run that was never stopped.
"""

import asyncio
import hashlib
import itertools
import json
import os
import random
import shutil
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import fedsim
from fedsim.clock.executors import Inline
from fedsim.records.folder import SEAL, SUMMARY, fingerprints, write_summary
from fedsim.running.runner import Job
from fedsim.testing import eventful_world, run, run_until
from tests.benchmarks.script import agree
from tests.fuzzing import values
from tests.fuzzing.inputs import GRAPH
from tests.fuzzing.place import Place, in_a_child
from tests.fuzzing.scenarios import look
from tests.fuzzing.values import as_json, as_toml, damage
from tests.test_resume import TREE
from tests.test_runs import STRATEGIES

_ROUNDS = 4
_SEALED = 0.4  # share of changed folders whose fingerprints are written anew
_pool: Path


def prepare(folder: Path) -> None:
    global _pool
    _pool = folder
    (folder / "graph.json").write_text(json.dumps(GRAPH))


def _made(number: int) -> Path:
    strategies = [one for one in STRATEGIES if ":" not in one["kind"]]
    strategy = strategies[number % len(strategies)]
    made = _pool / strategy["kind"]
    if not made.exists():
        device = {"down": "1 Mbit/s", "up": "500 kbit/s", "latency": "40 ms"}
        graph = {
            "kind": "graph",
            "file": str(_pool / "graph.json"),
            "server": "s",
            "attach": ["a", "b"],
            "device": device,
        }
        sections = eventful_world(strategy, seed=number, rounds=_ROUNDS) | {
            "checkpoint": {"rounds": 1}
        }
        sections |= [{}, {"network": TREE}, {"network": graph}][number % 3]
        own = Path(tempfile.mkdtemp(dir=_pool))
        in_a_child(lambda: _make(own, sections))
        with suppress(OSError):  # another worker was first
            own.rename(made)
    return made


def _make(made: Path, sections: dict[str, Any]) -> None:
    events = run(sections, made / "done")["events"]
    (made / "scenario.toml").write_text(fedsim.Scenario(**sections).to_toml())
    run_until(sections, made / "interrupted", int(events * 0.7))
    in_a_child(lambda: _run_and_die(sections, made / "killed", int(events * 0.8)))


def _run_and_die(sections: dict[str, Any], out: Path, records: int) -> None:
    job, seen = Job(fedsim.Scenario(**sections), out, Inline()), itertools.count(1)
    job.simulation.listen(lambda record: os._exit(0) if next(seen) == records else None)
    asyncio.run(job.execute())


def attempt(place: Place, draw: random.Random, number: int) -> None:
    made = _made(number)
    state = draw.choice(["done", "done", "interrupted", "killed"])
    out = Path(shutil.copytree(made / state, place.folder / "out"))
    before = _prints(out)
    what = change(draw, out)
    (place.folder / "CHANGED.txt").write_text(
        f"{made.name} {state}: {what}\n", errors="backslashreplace"
    )
    if draw.random() < _SEALED:
        seal(out)
        (place.folder / "SEALED.txt").touch()
        _look_at_sealed(place, draw, made, state)
        return
    changed = _prints(out)
    if state == "done":
        told = place.call("audit", "out", allowed=(0, 1, 2))
        if told.status == 0 and changed != before:
            place.complain(f"audit: passes a folder in which {what}")
        for _ in range(draw.randrange(3)):
            look(place, draw, "out")
        return
    shutil.copy(made / "scenario.toml", place.folder / "scenario.toml")
    if draw.random() < 0.3:
        place.call("audit", "out", allowed=(0, 1, 2))
        look(place, draw, "out")
    told = place.call("run", "scenario.toml", "--out", "out", "--resume", "--quiet")
    if told.status == 2 and _prints(out) != changed:
        place.complain(f"run --resume: refuses a folder in which {what}, but changes it")
    elif told.status == 0:  # it is the run that was never stopped, and passes its audit
        if not agree(out, made / "done"):
            place.complain(f"run --resume: another run comes of a folder in which {what}")
        if place.call("audit", "out", allowed=(0, 1, 2)).status:
            place.complain(
                f"run --resume: what comes of a folder in which {what} does not pass its audit"
            )


def _look_at_sealed(place: Place, draw: random.Random, made: Path, state: str) -> None:
    """Whatever the figures are, verbs use them or refuse them; what the audit makes of them is
    tried elsewhere.
    """
    place.call("audit", "out", allowed=(0, 1, 2))
    for _ in range(3):
        look(place, draw, "out")
    place.call("why", "out", allowed=(0, 1, 2))
    if state != "done":
        shutil.copy(made / "scenario.toml", place.folder / "scenario.toml")
        place.call(
            "run",
            "scenario.toml",
            "--out",
            "out",
            "--resume",
            "--quiet",
            allowed=(0, 1, 2),
            long=True,
        )


def seal(folder: Path) -> None:
    """Write the fingerprints of a run folder and of its checkpoints anew, as who has changed a
    file might.
    """
    for manifest in folder.glob("checkpoint/*/manifest.json"):
        with suppress(OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
            content = json.loads(manifest.read_text())
            for name in ("state.json", "arrays.safetensors"):
                content[name] = hashlib.sha256((manifest.parent / name).read_bytes()).hexdigest()
            manifest.write_text(json.dumps(content))
    with suppress(OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
        summary = json.loads((folder / SUMMARY).read_text())
        summary["files_sha256"] = fingerprints(folder)
        del summary[SEAL]
        write_summary(folder, summary)


def change(draw: random.Random, folder: Path) -> str:
    """Change something in a folder; what was done, in words that are the same for the same kind
    of change.
    """
    path = draw.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    name = _kind_of(path, folder)
    if path.suffix in (".json", ".parquet", ".toml") and draw.random() < 0.6:
        if path.suffix == ".parquet":
            return f"{name} {_change_parquet(draw, path)}"
        read, written = (
            (json.loads, as_json) if path.suffix == ".json" else (tomllib.loads, as_toml)
        )
        path.write_text(written(values.spoil(draw, read(path.read_text()))))
        return f"{name} had a value changed"
    others = sorted(other for other in folder.rglob("*") if other.is_file() and other != path)
    match draw.randrange(6):
        case 0:
            other = draw.choice(others)
            content = path.read_bytes()
            path.write_bytes(other.read_bytes())
            other.write_bytes(content)
            return f"{name} and {_kind_of(other, folder)} were swapped"
        case 1:
            added = draw.choice([".writing", ".bak", "\x1b[2J", "\u202e", ".lock~"])
            beside = path.with_name(path.name + added)
            shutil.copy(path, beside)
            if draw.random() < 0.3:
                os.truncate(beside, beside.stat().st_size // 2)
            return f"a copy of {name} was left with {added!r} at its end"
    return f"{name} was {damage(draw, path)}"


def _kind_of(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder).parts
    return "/".join(
        "N"
        if part.isdigit()
        else part.partition(".part-")[0] + (".part" if ".part-" in part else "")
        for part in parts
    )


def _change_parquet(draw: random.Random, path: Path) -> str:
    table = pq.read_table(path)
    match draw.randrange(4):
        case 0 if len(table):
            row = draw.randrange(len(table))
            table = pa.concat_tables(
                [table.slice(0, row), table.slice(row + draw.choice([0, 1]))]
                + [table.slice(row, 1)] * draw.choice([0, 2])
            )
            what = "had a row dropped, doubled or moved"
        case 1:
            table = table.drop_columns([draw.choice(table.column_names)])
            what = "had a column dropped"
        case 2:
            names = table.column_names
            table = table.rename_columns([*names[1:], names[0]])
            what = "had its columns renamed"
        case _ if len(table):
            place, row = draw.randrange(table.num_columns), draw.randrange(len(table))
            column = table.column(place)
            cells = column.to_pylist()
            cells[row] = _other(draw, cells[row])
            try:
                table = table.set_column(
                    place, table.field(place), pa.array(cells, type=column.type)
                )
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
                table = table.set_column(
                    place, table.column_names[place], pa.array([str(cell) for cell in cells])
                )
            what = "had a cell changed"
        case _:
            what = "was written again"
    pq.write_table(table, path)
    return what


def _other(draw: random.Random, cell: Any) -> Any:
    if isinstance(cell, str):
        return draw.choice(
            [values.text(draw), cell[: len(cell) // 2], "[" * 50_000, '{"a": NaN}', "null", "[1]"]
        )
    return draw.choice(
        [None, *values.NUMBERS, *([cell + 1] if isinstance(cell, int | float) else [])]
    )


def _prints(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            print_of = f"a link to {path.readlink()}"
        else:
            print_of = (
                hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
            )
        if "lock" not in path.name and (path.is_symlink() or not path.is_dir()):
            found[str(path.relative_to(folder))] = print_of
    return found
