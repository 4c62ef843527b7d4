"""Odd scenarios with hostile names, damaged run folders and inputs, odd things at paths: does
fedsim end in time, and say why?

    python -m tests.benchmarks.fuzz --scenarios 3000 --folders 1000 --inputs 200 --paths 1000 --workers 2 --out /tmp/fuzz

A case is drawn by its kind and number (from ``--first`` on) and ``--seed``; ``--only folders:17``
tries one again and keeps its files. A case that fails leaves its files, the command lines and what
they printed in a folder of ``--out``. What must hold of all: no traceback and no warning, no
control character from a file, the end within ``--patience`` (30 s; a run that was long heeds
SIGTERM), 4 GB of memory, exit status 0, 1, 2 or 130, nothing imported that a file names; what comes
to its end passes its audit; a changed folder fails it; a damaged checkpoint is refused or gives the
same run. Prints the failures by what was wrong; exit status 1 if there is any.
"""

import argparse
import gc
import multiprocessing
import random
import shlex
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.script import parser
from tests.fuzzing import folders, inputs, paths, scenarios
from tests.fuzzing.place import Place, Verb, loaded_verbs

KINDS = {"scenarios": scenarios, "folders": folders, "inputs": inputs, "paths": paths}
_TOLD_EVERY_S = 10.0
_verbs: dict[str, Verb] = {}  # set before processes are forked that try cases
_options: argparse.Namespace


def main() -> int:
    """Try all cases, and show what failed."""
    global _options
    arguments = parser(
        __doc__, **dict.fromkeys(KINDS, 0), first=0, workers=1, seed=1, patience=30.0
    )
    arguments.add_argument("--only", action="append", default=[], metavar="KIND:NUMBER")
    arguments.add_argument("--out", type=Path, required=True)
    _options = arguments.parse_args()
    # cases of all kinds mixed, so that the time left can be told
    counts = {kind: getattr(_options, kind) for kind in KINDS}
    mixed = sorted(
        ((place + 0.5) / count, kind, place)
        for kind, count in counts.items()
        for place in range(count)
    )
    named = [
        (kind, int(number)) for kind, _, number in (text.partition(":") for text in _options.only)
    ]
    wanted = named or [(kind, _options.first + place) for _, kind, place in mixed]
    _options.out = _options.out.resolve()
    _options.out.mkdir(parents=True, exist_ok=True)
    _verbs.update(loaded_verbs())
    shutil.rmtree(pool := _options.out / ".pool", ignore_errors=True)
    pool.mkdir()
    folders.prepare(pool)
    paths.prepare(pool)
    gc.freeze()
    with multiprocessing.get_context("fork").Pool(_options.workers) as workers:
        tried = list(_told(workers.imap_unordered(attempt, wanted), len(wanted)))
    shutil.rmtree(pool)
    for line in table(tried):
        print(line)
    return 1 if any(one.complaints for one in tried) else 0


class Tried(NamedTuple):
    """A case, the statuses of its calls, what was wrong, whether a long run was interrupted, and
    how long it took (s).
    """

    kind: str
    number: int
    statuses: list[int]
    complaints: list[str]
    stopped: bool
    wall_s: float


def attempt(case: tuple[str, int]) -> Tried:
    """Try a case; its files stay if it failed, or if ``--only`` names it."""
    kind, number = case
    work = _options.out / f".{kind}-{number}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    place, began = Place(work, _verbs, _options.patience), time.monotonic()
    try:
        KINDS[kind].attempt(place, random.Random(f"{_options.seed}/{kind}/{number}"), number)
    except Exception as error:  # of the case, not of fedsim: the others are tried all the same
        place.complaints.append(f"the case itself is broken: {type(error).__name__}: {error}")
        (work / "BROKEN.txt").write_text(traceback.format_exc())
    if place.complaints or _options.only:
        lines = [*place.complaints, ""]
        for argv, outcome in place.calls:
            lines += [
                f"$ {shlex.join(argv)}",
                outcome.text,
                outcome.where,
                f"[exit status {outcome.status}]",
                "",
            ]
        (work / "TOLD.txt").write_text(
            "\n".join(lines), encoding="utf-8", errors="backslashreplace"
        )
        shutil.rmtree(kept := _options.out / f"{kind}-{number}", ignore_errors=True)
        work.rename(kept)
    else:
        shutil.rmtree(work)
    outcomes = [outcome for _, outcome in place.calls]
    statuses, stopped = (
        [outcome.status for outcome in outcomes],
        any(outcome.stopped for outcome in outcomes),
    )
    return Tried(kind, number, statuses, place.complaints, stopped, time.monotonic() - began)


def _told(results: Iterator[Tried], total: int) -> Iterator[Tried]:
    """Tell each failure as it comes, and now and then how far it is."""
    began = last = time.monotonic()
    for done, one in enumerate(results, start=1):
        for what in one.complaints:
            print(f"{one.kind}:{one.number}  {what}", flush=True)
        now = time.monotonic()
        if now - last > _TOLD_EVERY_S:
            last = now
            print(
                f"-- {done} of {total}, {(now - began) / done * (total - done) / 60:.1f} min left",
                flush=True,
            )
        yield one


def table(tried: Sequence[Tried]) -> Iterator[str]:
    """A line a kind, and a line for each thing that was wrong: how often, and the first case."""
    yield (
        f"{'kind':<10} {'cases':>6} {'failed':>6} {'long':>5} {'s/case':>6}  exit statuses of all "
        "calls"
    )
    for kind in KINDS:
        mine = [one for one in tried if one.kind == kind]
        if mine:
            statuses = Counter(status for one in mine for status in one.statuses)
            failed, long = (
                sum(bool(one.complaints) for one in mine),
                sum(one.stopped for one in mine),
            )
            each = sum(one.wall_s for one in mine) / len(mine)
            shown = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
            yield f"{kind:<10} {len(mine):>6} {failed:>6} {long:>5} {each:>6.2f}  {shown}"
    wrong = Counter(what for one in tried for what in one.complaints)
    first = {what: f"{one.kind}:{one.number}" for one in reversed(tried) for what in one.complaints}
    for what, count in wrong.most_common():
        yield f"{count:>5}  {first[what]:<16} {what}"


if __name__ == "__main__":
    sys.exit(main())
