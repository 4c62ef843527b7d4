"""The CATA-Fed paper's figures and tables, measured beside published, and its claims with intervals.

    python scenarios/stragglers/study.py                       all of it at the small size, 5 seeds
    python scenarios/stragglers/study.py deadline slow --data mnist --seeds 3
    python scenarios/stragglers/study.py --size full           the paper's size; needs a GPU

Runs stay in --out and are not done again; the report goes to standard output as Markdown. Needs MNIST, Fashion-MNIST and
CIFAR-10 under $FEDSIM_DATA; a data set that is not there is left out, and the report says so.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # so that the modules beside this script are found however it is called

import fedsim  # noqa: E402
from scenarios.grid import Job, add_worker_options, at_least_one, missing_data, run_as_asked  # noqa: E402
from scenarios.stragglers import report  # noqa: E402
from scenarios.stragglers.tables import SIZES, Experiment, Size, experiments  # noqa: E402


def main() -> int:
    """Run what is asked for and print the report."""
    options = _options()
    size, base = SIZES[options.size], HERE / f"{options.size}.toml"
    wanted = {name: experiment for name, experiment in experiments(size).items() if name in options.tables}
    found = {data: missing_data(fedsim.load(base, size.datasets[data])) for data in options.data}
    missing = {data: why for data, why in found.items() if why is not None}
    available = [data for data in options.data if data not in missing]
    seeds = range(1, options.seeds + 1)
    jobs = [
        job(base, size, options.out / options.size, data, setting.label, setting.changes, seed)
        for seed in seeds
        for experiment in wanted.values()
        for data in experiment.datasets
        if data in available
        for setting in experiment.settings.values()
    ]
    status = run_as_asked(jobs, options)
    if status:
        return status
    command = f"python scenarios/stragglers/study.py {' '.join(options.tables)} --size {options.size} --seeds {options.seeds}"
    print(report.heading(options.size, options.seeds, command, missing))
    for name, experiment in wanted.items():
        for data in experiment.datasets:
            if data in available:
                print(report.section(name, experiment, data, _folders(experiment, options.out / options.size / data, seeds)))
    print(report.claims_section())
    return 0


def job(base: Path, size: Size, out: Path, data: str, label: str, changes: Sequence[str], seed: int) -> Job:
    """The run of one setting on one data set with one seed."""
    return Job(base, (*size.datasets[data], *changes), seed, out / data / label / f"seed-{seed}")


def _folders(experiment: Experiment, root: Path, seeds: Sequence[int]) -> dict[str, list[Path]]:
    """Name of each setting -> its run folders, seed by seed."""
    return {name: [root / setting.label / f"seed-{seed}" for seed in seeds] for name, setting in experiment.settings.items()}


def _options() -> argparse.Namespace:
    names = list(experiments(SIZES["small"]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"out of {', '.join(names)}; all if none is named")
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--seeds", type=at_least_one, default=5)
    parser.add_argument("--data", nargs="+", choices=list(SIZES["small"].datasets), default=list(SIZES["small"].datasets))
    add_worker_options(parser)
    parser.add_argument("--out", type=Path, default=Path("runs/stragglers"))
    options = parser.parse_args()
    for name in options.tables:
        if name not in names:
            parser.error(f"TABLE is {name!r}; allowed are {', '.join(names)}")
    options.tables = options.tables or names
    return options


if __name__ == "__main__":
    sys.exit(main())
