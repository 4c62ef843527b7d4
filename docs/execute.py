"""Executes the gallery and the notebooks, and says how many seconds each took.

    python docs/execute.py                       # all
    python docs/execute.py top_k first_run       # those whose names hold one of these
    python docs/execute.py --figures DIR         # and keep their pictures

Each is run as plain Python, in a folder of its own. It ends with 1 if one of them fails, or
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
MOST_S = 60.0  # of computing, all threads together: what else runs on a machine does not count


def scripts(words: list[str]) -> list[Path]:
    """Those whose names hold one of the words; all without any."""
    found = [path for folder in FOLDERS for path in sorted((HERE / folder).glob("*.py"))]
    return [path for path in found if not words or any(word in path.stem for word in words)]


def execute(path: Path, figures: Path | None = None) -> tuple[float, float]:
    """Run one script; returns its seconds of time and of computing.

    Its pictures are kept in ``figures``.
    """
    import matplotlib.pyplot as plt

    began, computed = time.perf_counter(), _computed()
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        runpy.run_path(str(path), run_name="__main__")
    for number in plt.get_fignums():
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
            plt.figure(number).savefig(figures / f"{path.stem}-{number}.png", dpi=80)
    plt.close("all")
    return time.perf_counter() - began, _computed() - computed


def _computed() -> float:
    """Seconds that this process and those that it started have computed."""
    return sum(os.times()[:4])


def main() -> int:
    """Execute what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", help="parts of names")
    parser.add_argument("--figures", type=Path, help="a folder for the pictures")
    options = parser.parse_args()
    figures = None if options.figures is None else options.figures.absolute()
    chosen = scripts(options.words)
    if not chosen:
        parser.error(
            f"no script's name holds {', '.join(options.words)}; there are "
            f"{', '.join(p.stem for p in scripts([]))}"
        )
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
        failed += [path.stem] if computing >= MOST_S else []
    print(
        f"{len(chosen) - len(failed)} of {len(chosen)} are well"
        + (f"; not {', '.join(failed)}" if failed else "")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
