"""Progress of a run, and what reaches a terminal, a real one: nothing that it obeys, whatever
the files say.
"""

import importlib.util
import io
import json
import os
import pty
import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from rich.console import Console

from fedsim.clock.simulation import Record
from fedsim.common.harmless import say, visible
from fedsim.common.stop import StopSpec
from fedsim.lab.terminal import RunProgress
from tests.children import popen

ROOT = Path(__file__).resolve().parents[2]

EVIL = "\x1b]0;owned\x07\x9b8m\x9d\u202eevil\u2066\u200b\u00ad\ufeff[red]x[/red][/]\ttab"
FILE = EVIL.replace("/", "")
_INVISIBLE = r"\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff"
_OBEYED = re.compile(rf"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f{_INVISIBLE}]")
# colours, the cursor, and what is drawn over
_OF_RICH = re.compile(r"\x1b\[(\d+(;\d+)*m|\?25[hl]|2K|\d+A)")

_MANY = """
import json, sys
from fedsim.cli import main
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as end:
        print("ended with", end.code, flush=True)
"""


def on_a_terminal(folder: Path, *commands: list[str]) -> tuple[list[int], str]:
    """Carry commands out one after another where stdout and stderr are a terminal; how each
    ended, and what was seen.
    """
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _MANY, json.dumps(commands)]
    process = popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            seen += os.read(ours, 65536)
        except OSError:  # nobody has it open any more
            break
    os.close(ours)
    assert process.wait() == 0, seen
    text = seen.decode("utf-8", "surrogateescape")
    return [int(status) for status in re.findall(r"ended with (\d+)", text)], text


def damaged_name(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    told = {"name": EVIL, "strategy": EVIL, "status": EVIL, "stopped": EVIL}
    (run / "summary.json").write_text(json.dumps(summary | told))


def damaged_events(run: Path) -> None:
    table = pq.read_table(run / "events.parquet")
    kinds = table["kind"].cast(pa.string()).to_pylist()
    kinds[5] = EVIL
    at = table.schema.get_field_index("kind")
    pq.write_table(
        table.set_column(at, "kind", pa.array(kinds).cast(table.schema.field("kind").type)),
        run / "events.parquet",
    )


def another_file(run: Path) -> None:
    (run / FILE).touch()


@pytest.fixture
def hostile(
    small: dict[str, Any], tmp_path: Path, made: Callable[[dict[str, Any], Path], Path]
) -> Path:
    """A folder full of what a stranger may send."""
    place = tmp_path / "place"
    place.mkdir()
    small |= {"learning": "off", "stop": {"rounds": 2}}
    run = made(small, tmp_path / "run")
    small["name"] = EVIL
    (place / f"{FILE}.toml").write_text(tomli_w.dumps(small))
    for name, wrong in {
        "kind": {"strategy": {"kind": EVIL}},
        "code": {"strategy": {"kind": f"{EVIL}:{EVIL}"}},
        "key": {EVIL: 1},
        "data": {"data": {"source": {"kind": "npz", "path": "evil.npz"}, "partition": "iid"}},
        "file": {"data": {"source": {"kind": "npz", "path": FILE}, "partition": "iid"}},
        "device": {"training": {"device": EVIL}},
    }.items():
        (place / f"{name}.toml").write_text(tomli_w.dumps(small | wrong))
    np.savez(place / "evil.npz", **{EVIL: np.zeros(3)})
    (place / "broken.toml").write_text(f"name = {EVIL}")
    study = {
        "name": EVIL,
        "base": small,
        "variants": {EVIL: {}, "b": {"strategy.kind": "local", "strategy.local_epochs": 1}},
    }
    (place / "study.toml").write_text(tomli_w.dumps(study))
    (place / "grid.toml").write_text(
        tomli_w.dumps(study | {"variants": {"a": {}}, "grid": {EVIL: [1]}})
    )
    changes: list[Callable[[Path], None]] = [damaged_name, damaged_events, another_file]
    for change in changes:
        change(Path(shutil.copytree(run, place / f"{FILE}{change.__name__}")))
    (place / f"{FILE}folder.toml").mkdir()
    return place


def test_nothing_that_a_terminal_obeys_comes_out_of_a_file(hostile: Path) -> None:
    runs = [f"{FILE}{name}" for name in ("damaged_name", "damaged_events", "another_file")]
    commands = [
        ["list"],
        ["run", f"{FILE}.toml", "--out", f"{FILE}out"],
        ["run", f"{FILE}.toml", "--out", f"{FILE}out", "--set", f"strategy.{EVIL}=1"],
        ["run", f"{FILE}folder.toml", "--out", "x"],
        [EVIL],
        ["check", f"{FILE}.toml", "--no-trial"],
        *(
            ["check", f"{name}.toml", "--no-trial"]
            for name in ("kind", "code", "key", "data", "file", "device", "broken")
        ),
        ["check", "kind.toml", "--debug"],
        ["study", "study.toml", "--out", f"{FILE}study", "--workers", "1"],
        ["study", "study.toml", "--out", f"{FILE}study", "--dry-run", "--no-trial"],
        ["study", "grid.toml", "--out", "x"],
        ["compare", *runs],
        ["compare", *runs, "--csv"],
        ["compare", *runs, "--markdown"],
        *(["audit", run] for run in runs),
        *(["trace", run] for run in runs),
        ["report", *runs],
        ["data", "fetch", EVIL, "--root", "."],
    ]
    if importlib.util.find_spec("tensorboard") is not None:
        commands += [["tensorboard", run, "--out", f"{FILE}board"] for run in runs]
    statuses, seen = on_a_terminal(hostile, *commands)
    assert len(statuses) == len(commands)
    assert set(statuses) == {0, 1, 2}
    assert statuses[:2] == [0, 0]
    assert re.search(_OBEYED, seen) is None, re.search(f".*{_OBEYED.pattern}.*", seen)
    assert "\x1b" not in re.sub(_OF_RICH, "", seen)
    assert "[red]x[/red]" in seen
    assert "\x1b[2K" in seen  # it did take it for a terminal


def test_what_is_printed_is_the_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    text = tomli_w.dumps({EVIL: EVIL})
    assert visible(text.rstrip("\n")).isprintable()
    assert tomllib.loads(visible(text.rstrip("\n"))) == {EVIL: EVIL}
    say("a\nb", "\ud800\U000e0001")
    assert capsys.readouterr().out == "a\\u000ab\n\\ud800\\U000e0001\n"


def test_nothing_is_printed_elsewhere() -> None:
    for path in [*(ROOT / "fedsim").rglob("*.py"), ROOT / "analysis" / "__main__.py"]:
        text = path.read_text()
        if path.name not in ("harmless.py", "terminal.py"):
            assert not re.search(
                r"click\.echo|rich\.console import .*Console\b|\.stderr\.write", text
            ), path


@pytest.mark.parametrize("terminal", [True, False])
def test_it_says_what_is_saved(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("fedsim.lab.terminal.time.perf_counter", lambda: clock[0])
    shown = io.StringIO()
    progress = RunProgress(
        StopSpec(rounds=100), Console(file=shown, force_terminal=terminal, width=200)
    )
    for rounds in (5, 10, 15):
        progress.show_saved(rounds, 2.5 * rounds)
        clock[0] += 0.6
        progress.take(Record(2.5 * rounds + 1, "round", {"round": rounds, "accuracy": None}))
    progress.close()
    text = shown.getvalue()
    said = (
        ["saved at round 15 (37.5 s)"]
        if terminal
        else ["saved at round 5 (12.5 s)", "saved at round 15 (37.5 s)"]
    )
    assert all(line in text for line in said), text
    if not terminal:
        assert [line for line in text.splitlines() if line.startswith("saved")] == said
