"""The command line of a study: run what has not been run, and print the report."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import fedsim
from scenarios.grid import Job, add_worker_options, at_least_one, missing_data, run_as_asked
from scenarios.published import report
from scenarios.published.tables import Study, Table, World


def main(study: Study, arguments: Sequence[str] | None = None) -> int:
    """Run the tables that are asked for and print them; where data are not there a table is left out, as the report says."""
    options = _options(study, arguments)
    tables = {name: table for name, table in study.sizes[options.size].items() if name in options.tables}
    absent = _missing({table.world.name: table.world for table in tables.values()}.values())
    left_out = {name: absent[table.world.name] for name, table in tables.items() if table.world.name in absent}
    tables = {name: table for name, table in tables.items() if name not in left_out}
    if not options.only_report:
        wanted = [job for seed in _seeds(options.seeds) for table in tables.values() for job in jobs(table, options.out, seed)]
        status = run_as_asked(wanted, options)
        if status:
            return status
    whole = {name: _whole(table, options.out, options.seeds) for name, table in tables.items()}
    left_out |= {name: "its runs have not been made" for name, seeds in whole.items() if not seeds}
    shown = [(tables[name], folders(tables[name], options.out, _seeds(seeds))) for name, seeds in whole.items() if seeds]
    chosen = f" --tables {' '.join(options.tables)}" if set(options.tables) < set(study.sizes[options.size]) else ""
    command = f"{study.command} --size {options.size} --seeds {options.seeds}{chosen}"
    print(report.heading(study, command, left_out))
    for table, runs in shown:
        print(report.section(table, runs))
    print(report.claims(shown))
    return 0


def jobs(table: Table, out: Path, seed: int) -> list[Job]:
    """A table's runs with one seed."""
    changes = table.world.changes
    return [Job(table.world.base, (*changes, *row.changes), seed, _folder(table, out, row.label, seed)) for row in table.rows]


def folders(table: Table, out: Path, seeds: Iterable[int]) -> dict[str, list[Path]]:
    """Label of each row -> its run folders, seed by seed."""
    return {row.label: [_folder(table, out, row.label, seed) for seed in seeds] for row in table.rows}


def _folder(table: Table, out: Path, label: str, seed: int) -> Path:
    return out / table.world.name / label / f"seed-{seed}"


def _seeds(count: int) -> range:
    return range(1, count + 1)


def _whole(table: Table, out: Path, seeds: int) -> int:
    """With how many of the seeds, from the first on, all runs of a table are there."""
    for seed in _seeds(seeds):
        if not all(job.folder.exists() for job in jobs(table, out, seed)):
            return seed - 1
    return seeds


def _missing(worlds: Iterable[World]) -> Mapping[str, str]:
    """The worlds whose data cannot be loaded, and why."""
    found = {world.name: missing_data(fedsim.load(world.base, world.changes)) for world in worlds}
    return {name: why for name, why in found.items() if why is not None}


def _options(study: Study, arguments: Sequence[str] | None) -> argparse.Namespace:
    sizes = list(study.sizes)
    parser = argparse.ArgumentParser(description=study.title)
    parser.add_argument(
        "--size", choices=sizes, default=sizes[0], help="; ".join(f"{size}: {', '.join(study.sizes[size])}" for size in sizes)
    )
    names = sorted({name for tables in study.sizes.values() for name in tables})
    parser.add_argument("--tables", nargs="+", choices=names, default=names, metavar="TABLE", help=f"out of {', '.join(names)}")
    parser.add_argument("--seeds", type=at_least_one, default=study.seeds)
    add_worker_options(parser)
    parser.add_argument("--out", type=Path, default=study.out, help="runs stay here and are not done again")
    parser.add_argument("--only-report", action="store_true", help="run nothing, show the seeds that are whole")
    return parser.parse_args(arguments)
