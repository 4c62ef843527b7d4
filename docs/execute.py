"""Executes the gallery and the notebooks, and prints how many seconds each took.

    python docs/execute.py                       # all
    python docs/execute.py top_k first_run       # scripts whose names contain one of these
    python docs/execute.py --figures DIR         # keep the pictures

Each script is run as plain Python, in a new folder. The exit status is 1 if a script fails, or
computes for a minute or more.
"""

import argparse
import os
import runpy
import sys
import tempfile
import time
import traceback
from contextlib import chdir
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDERS = ("gallery", "notebooks")
MOST_S = 60.0  # of computing, all threads together: other programs do not count


def scripts(words: list[str]) -> list[Path]:
    """The scripts whose names contain one of the words; all without any."""
    paths: list[Path] = []
    for folder in FOLDERS:
        paths += sorted((HERE / folder).glob("*.py"))
    if not words:
        return paths
    return [path for path in paths if any(word in path.stem for word in words)]


def execute(path: Path, figures: Path | None = None) -> tuple[float, float]:
    """Run one script.

    Args:
        path: the script.
        figures: a folder for its pictures, if they are to be kept.

    Returns:
        Elapsed time and computing time (s).
    """
    import matplotlib.pyplot as plt

    started_s = time.perf_counter()
    computed_s = _computed()
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        runpy.run_path(str(path), run_name="__main__")
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        for number in plt.get_fignums():
            plt.figure(number).savefig(figures / f"{path.stem}-{number}.png", dpi=80)
    plt.close("all")
    return time.perf_counter() - started_s, _computed() - computed_s


def _computed() -> float:
    """Computing time of this process and its children (s)."""
    return sum(os.times()[:4])


def main() -> int:
    """Execute the scripts that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", help="parts of names")
    parser.add_argument("--figures", type=Path, help="a folder for the pictures")
    options = parser.parse_args()
    figures = None if options.figures is None else options.figures.absolute()
    chosen = scripts(options.words)
    if not chosen:
        names = ", ".join(path.stem for path in scripts([]))
        parser.error(f"no script's name holds {', '.join(options.words)}; there are {names}")
    import matplotlib

    matplotlib.use("Agg")
    failed = []
    for path in chosen:
        print(f"== {path.stem}", flush=True)
        try:
            seconds, computing = execute(path, figures)
        except Exception:
            traceback.print_exc()
            failed.append(path.stem)
            continue
        print(f"== {path.stem}: {seconds:.1f} s, {computing:.1f} s of computing", flush=True)
        if computing >= MOST_S:
            failed.append(path.stem)
    result = f"{len(chosen) - len(failed)} of {len(chosen)} are well"
    if failed:
        result += f"; not {', '.join(failed)}"
    print(result)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
