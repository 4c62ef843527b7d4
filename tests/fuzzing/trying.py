"""Trying a case by its kind and number, in a process that has imported all that takes long."""

import contextlib
import gc
import os
import random
import shlex
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.fuzzing.place import Place, Verb

KINDS = ("scenarios", "folders", "inputs", "terminals")


@dataclass(frozen=True)
class Tried:
    """What came of a case.

    Attributes:
        kind, number: which case.
        statuses: how its calls ended.
        complaints: what was wrong.
        stopped: a run had to be interrupted, as it may when it was long and heeded that.
        wall_s: how long it took.
    """

    kind: str
    number: int
    statuses: list[int]
    complaints: list[str]
    stopped: bool
    wall_s: float


@dataclass(frozen=True)
class Trier:
    """Tries cases; made once, before any process is forked that tries some.

    Args:
        kinds: which kinds of cases there will be.
        out: where the files of a case go that failed; work in progress lies there too.
        seed: other seeds are other cases.
        patience_s: how long a call may take.
    """

    kinds: tuple[str, ...]
    out: Path
    seed: int
    patience_s: float
    _verbs: dict[str, Verb] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_verbs", _load())
        self.out.mkdir(parents=True, exist_ok=True)
        for kind in self.kinds:
            _module(kind).prepare(self.out / f".pool-{kind}")
        gc.freeze()

    def attempt(self, kind: str, number: int, *, keep: bool = False) -> Tried:
        """Try a case; its files stay if it failed, or if they are to be kept."""
        work = self.out / f".{kind}-{number}"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        place = Place(work, self._verbs, self.patience_s)
        began = time.monotonic()
        try:
            _module(kind).attempt(place, random.Random(f"{self.seed}/{kind}/{number}"), number)
        except Exception as error:  # of the case, not of fedsim: the others are tried all the same
            place.complain(f"the case itself is broken: {type(error).__name__}: {error}")
            (work / "BROKEN.txt").write_text(traceback.format_exc())
        if place.complaints or keep:
            self._keep(place, self.out / f"{kind}-{number}")
        else:
            shutil.rmtree(work)
        outcomes = [outcome for _, outcome in place.calls]
        statuses, stopped = [outcome.status for outcome in outcomes], any(outcome.stopped for outcome in outcomes)
        return Tried(kind, number, statuses, place.complaints, stopped, time.monotonic() - began)

    def clean_up(self) -> None:
        """Remove what cases shared."""
        for kind in self.kinds:
            shutil.rmtree(self.out / f".pool-{kind}", ignore_errors=True)

    def _keep(self, place: Place, kept: Path) -> None:
        lines = [*place.complaints, ""]
        for argv, outcome in place.calls:
            lines += [f"$ {shlex.join(argv)}", outcome.text, outcome.where, f"[exit status {outcome.status}]", ""]
        (place.folder / "TOLD.txt").write_text("\n".join(lines), encoding="utf-8", errors="backslashreplace")
        shutil.rmtree(kept, ignore_errors=True)
        place.folder.rename(kept)


def _module(kind: str) -> Any:
    return import_module(f"tests.fuzzing.{kind}")


def _load() -> dict[str, Verb]:
    """All that can be called, imported and warm: a child that is forked need not do that again."""
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")  # read when libraries are loaded
    import fedsim
    import fedsim.analysis.__main__
    import fedsim.analysis.report
    from fedsim import cli
    from fedsim.errors import FedsimError
    from fedsim.testing import eventful_world, run

    run(eventful_world({"kind": "flexcfl", "groups": 2}, rounds=2))
    threads = {(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()} - {"jemalloc_bg_thd"}
    assert len(threads) == 1, f"threads do not outlive a fork, but there are {threads}"

    def load_run(argv: list[str]) -> None:
        try:
            loaded = fedsim.load_run(argv[1])
        except FedsimError:
            return
        looks: list[Callable[[], object]] = [lambda name=name: getattr(loaded, name) for name in _TABLES]  # type: ignore[misc]
        for look in [*looks, loaded.models, loaded._repr_html_, lambda: loaded.figure("accuracy")]:
            with contextlib.suppress(FedsimError):
                look()

    verbs: dict[str, Verb] = dict.fromkeys(cli.main.commands, cli.main)
    return verbs | {"load_run": load_run, "analysis": lambda argv: fedsim.analysis.__main__.main(argv[1:])}


_TABLES = ("summary", "scenario", "rounds", "devices", "events", "transfers")
