"""Personal models that do not fit into memory: peaks of memory and disk, a kill, and a full disk.

    python -m tests.benchmarks.personal --devices 50                       # Ditto, models of 45 MB
    python -m tests.benchmarks.personal --strategy fedper --devices 50
    python -m tests.benchmarks.personal --devices 10000 --width 330 --memory "20 MB"
    python -m tests.benchmarks.personal --devices 12 --full                # also on disks that are full

A scenario of two rounds in which all devices take part, saved after each, is run undisturbed, and
again with SIGKILL in its second round and a resume. A line has the peak of the resident memory, of
its anonymous part (``RssAnon``), of temporary files, and of the run folder, each read every .1 s,
and the time. With ``--full`` the run folder, and then the folder for temporary files, is a tmpfs
that is too small; the run is resumed once the tmpfs is larger (only root may mount one). Exit status
1 if events or models differ, or if the full disk is not named.
"""

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fedsim
from fedsim.running.checkpoint import store
from tests import children
from tests.benchmarks.script import agree, parser, start

Sections = dict[str, Any]
_HEAD = ["4.*", "6.*"]  # the last two layers: a fifth of the model
_LATER_S = 0.5


def sections(strategy: str, devices: int, width: int, memory: str) -> Sections:
    """The scenario of a run: two rounds of all devices, with a test and a checkpoint after each."""
    params: Sections = {"kind": strategy, "clients_per_round": devices}
    if strategy == "fedper":
        params["head"] = _HEAD
    return {
        "seed": 7,
        "data": {
            "source": {"kind": "synthetic", "features": 64, "classes": 10},
            "partition": {"kind": "synthetic", "log_mean": 1.2, "log_std": 0.1, "least": 3},
        },
        "model": {"kind": "mlp", "hidden": [width, width, max(1, 7 * width // 30)]},
        "training": {"lr": 0.05, "batch_size": 100, "memory": memory},
        "population": {"devices": devices, "speed": "100 samples/s"},
        "strategy": params,
        "checkpoint": {"rounds": 1},
        "stop": {"rounds": 2},
    }


def size_of(folder: Path) -> int:
    """Size of the files of a folder (bytes); a file with several names counts once."""
    sizes: dict[int, int] = {}
    for path in folder.rglob("*"):
        with suppress(OSError):  # it was removed meanwhile
            found = path.stat()
            if stat.S_ISREG(found.st_mode):
                sizes[found.st_ino] = found.st_size
    return sum(sizes.values())


def unnamed_size(process: int) -> int:
    """Size of the files without a name that a process has open, as its temporary file (bytes)."""
    sizes: dict[int, int] = {}
    with suppress(OSError):  # it has ended
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                found = descriptor.stat()
                if stat.S_ISREG(found.st_mode) and not found.st_nlink:
                    sizes[found.st_ino] = found.st_size
    return sum(sizes.values())


def anonymous(process: int) -> int:
    """Anonymous resident memory of a process (bytes); 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def watched(
    name: str,
    words: "list[Any]",
    folder: Path,
    stops: Callable[[], bool] = lambda: False,
    **how: Any,
) -> "subprocess.Popen[Any]":
    """Run ``fedsim WORDS`` to its end, or until it is killed as ``stops`` is true; print a line."""
    began = time.perf_counter()
    process = start(*words, **how)
    peaks = [0, 0, 0]
    while process.poll() is None:
        present = anonymous(process.pid), unnamed_size(process.pid), size_of(folder)
        peaks = list(map(max, peaks, present))
        if stops():
            process.kill()
            break
        time.sleep(0.1)
    process.wait()
    passed = time.perf_counter() - began
    memory, scratch, disk = (f"{peak / 1e6:10,.0f}" for peak in peaks)
    print(f"{name:28}{memory}{scratch}{disk}{passed:9.0f}{process.returncode:8}", flush=True)
    return process


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[Callable[[int], None]]:
    """A tmpfs of ``size`` bytes at a new folder; the function that it yields gives it another size."""
    place.mkdir()

    def mount(*options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(place)], check=True)

    mount("-o", f"size={size}")
    try:
        yield lambda more: mount("-o", f"remount,size={more}")
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def main() -> int:
    """Run, and print a line for each run."""
    arguments = parser(
        __doc__, strategy="ditto", devices=50, width=3000, memory="300 MB", folder="", full=False
    )
    arguments.set_defaults(folder=tempfile.gettempdir())
    options = arguments.parse_args()
    told = sections(options.strategy, options.devices, options.width, options.memory)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        path = folder / "scenario.toml"
        path.write_text(fedsim.Scenario(**told).to_toml(), encoding="utf-8")
        start("check", path).wait()
        print(f"{'MB':28}{'RssAnon':>10}{'unnamed':>10}{'folder':>10}{'s':>9}{'status':>8}")
        words = ["run", path, "--quiet", "--out"]
        watched("undisturbed", [*words, folder / "whole"], folder / "whole")
        cut = folder / "cut"
        since = [0.0]

        def in_second_round() -> bool:
            if not store.list_checkpoints(cut):
                return False
            since[0] = since[0] or time.perf_counter()
            return time.perf_counter() - since[0] > _LATER_S

        watched("killed in the second round", [*words, cut], cut, in_second_round)
        watched("resumed", [*words, cut, "--resume"], cut)
        same = agree(folder / "whole", cut)
        print("the same events and models" if same else "DIFFERENT")
        if options.full:
            for which in ("out", "tmp"):
                same = on_full_disk(folder, words, which) and same
    return 0 if same else 1


def on_full_disk(folder: Path, words: "list[Any]", which: str) -> bool:
    """Run with a folder that is too small, and resume with room; whether all is as it should be.

    Args:
        folder: has the undisturbed run, ``whole``.
        words: the words of ``fedsim run``, without the run folder.
        which: ``out`` for the run folder, ``tmp`` for the folder for temporary files.
    """
    place = folder / which
    whole = folder / "whole"
    model = min(path.stat().st_size for path in (whole / "models").glob("*"))
    limit = size_of(whole / store.FOLDER) if which == "out" else 3 * model
    with small_disk(place, limit) as resize:
        out = place / "run" if which == "out" else folder / "elsewhere"
        environment = dict(os.environ)
        if which == "tmp":
            environment["TMPDIR"] = str(place)
        failed = watched(
            f"on a full disk ({which})",
            [*words, out],
            out,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert failed.stderr is not None
        message = failed.stderr.read().strip()
        print(message)
        resize(100 * limit)
        again = ["--resume"] if store.list_checkpoints(out) else []
        if not again:
            subprocess.run(["rm", "-r", str(out)], check=False)
        watched("with room", [*words, out, *again], out, env=environment)
        return failed.returncode == 1 and "is full" in message and agree(whole, out)


if __name__ == "__main__":
    children.adopt_orphans()
    sys.exit(main())
