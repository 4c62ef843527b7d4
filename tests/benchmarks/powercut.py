"""Power cuts in mid-run: is the last checkpoint that was reported as saved there, and does it
resume to the bit?

    python -m tests.benchmarks.powercut --cuts 20          # as root, on Linux: it mounts ext4 file systems that lie in files

A run works on a file system of its own, in a file. At a moment of real time that nobody chose that
file is copied, without any sync: what the system had not brought to the disk by then is lost in the
copy. The copy is mounted, and the run in it resumed. Prints a line a cut, and at the end JSON with
how many were as they must be.
"""

import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsim.records.lock import LOCK
from fedsim.running.checkpoint import store
from fedsim.testing import eventful_world
from tests.benchmarks.script import Result, agree, is_sound, parser, start, tried, whole_run
from tests.test_runs import STRATEGIES

_DISK_BYTES = 32 << 20


def main() -> int:
    options = parser(__doc__, cuts=20, rounds=60, seed=1).parse_args()
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            mounted(made(Path(folder, "try")), Path(folder, "there")),
        ):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(
            f"powercut: no ext4 file system can be mounted here ({error}); it takes Linux, "
            "root and loop devices"
        )
    results = tried(
        options.cuts, options.seed, lambda draw, folder: cut_one(draw, folder, options.rounds)
    )
    good = sum(result["good"] for result in results)
    print(
        json.dumps(
            {
                "cuts": len(results),
                "good": good,
                "after a save": sum(result["saved"] > 0 for result in results),
            }
        )
    )
    return 0 if good == len(results) else 1


def cut_one(draw: random.Random, folder: Path, rounds: int) -> Result:
    """A run that is never stopped, and one whose machine loses power."""
    strategy = draw.choice(STRATEGIES)
    sections = eventful_world(strategy, seed=draw.randrange(1000), rounds=rounds) | {
        "checkpoint": {"rounds": 1}
    }
    path, whole, length_s = whole_run(sections, folder, "--executor", "inline")
    with mounted(made(folder / "disk"), folder / "there"):
        reports: list[int] = []
        process = _run(path, folder / "there" / "run")
        reader = threading.Thread(target=_read, args=(process, reports))
        reader.start()
        while not reports and process.poll() is None:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.4 * length_s))
        process.send_signal(signal.SIGSTOP)  # so that the copy is of one instant
        time.sleep(0.05)
        saved, at_work = reports[-1] if reports else 0, process.poll() is None
        before = b""
        # until the system writes nothing meanwhile
        while before != (now := (folder / "disk").read_bytes()):
            before = now
        (folder / "left").write_bytes(before)
        process.kill()
        reader.join()
    with mounted(folder / "left", folder / "there"):
        result = _resumed(path, folder / "there" / "run", whole, saved)
    return {"strategy": strategy["kind"], "saved": saved, "at work": at_work} | result


def _resumed(path: Path, out: Path, whole: Path, saved: int) -> Result:
    empty, found = (
        sum(
            file.stat().st_size == 0
            for file in out.rglob("*")
            if file.is_file() and file.name != LOCK
        ),
        saved,
    )
    if not (out / "summary.json").exists():  # else it was done before
        _, tree, _ = store.read(store.latest(out))
        found = len(tree["root"]["recorder"]["rounds"])
        _run(path, out, "--resume").communicate()
    same, sound = agree(whole, out), is_sound(out)
    return {
        "found": found,
        "empty files": empty,
        "same": same,
        "sound": sound,
        "good": same and sound and found >= saved > 0,
    }


def _run(path: Path, out: Path, *options: str) -> "subprocess.Popen[str]":
    command = ("run", path, "--out", out, "--executor", "inline", "--allow-code", *options)
    return start(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _read(process: "subprocess.Popen[str]", reports: list[int]) -> None:
    """Note every report of a save: after how many rounds, or aggregations and the like."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.match(r"saved at \D+ (\d+) ", line):
            reports.append(int(found[1]))


def made(path: Path) -> Path:
    """An empty ext4 file system in a file."""
    with path.open("wb") as file:
        file.truncate(_DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", str(path)], check=True, capture_output=True)
    return path


@contextmanager
def mounted(image: Path, place: Path) -> Iterator[None]:
    """The file system in a file, at ``place``."""
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
