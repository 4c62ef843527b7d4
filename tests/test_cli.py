"""The command line, as a user meets it: what it prints, what it leaves, and what it makes of
mistakes.
"""

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import click
import pytest
import tomli_w
from click.testing import CliRunner

import fedsim
from fedsim.common.errors import DataError, FedsimError
from fedsim.common.registry import Registry
from fedsim.running.mistakes import explained
from tests import children
from tests.calls import call, done
from tests.test_public import MODULES

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def scenario(small: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "a scenario.toml"
    path.write_text(tomli_w.dumps(small))
    return path


def test_run_audit_compare(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "a run"
    assert "8 rounds" in done("run", scenario, "--out", out, "--workers", "2")
    names = {path.name for path in out.iterdir()}
    assert names == {
        "scenario.toml", "events.parquet", "transfers.parquet", "rounds.parquet", "devices.parquet", "availability.parquet",
        "summary.json", "models"
    }  # fmt: skip
    summary = json.loads((out / "summary.json").read_text())
    assert summary["rounds"] == 8
    assert 0 < summary["accuracy"]["final"] <= summary["accuracy"]["best"] <= 1

    again = tmp_path / "again"
    assert (
        call("run", out / "scenario.toml", "--out", again, "--executor", "inline", "--quiet").output
        == ""
    )
    repeated = json.loads((again / "summary.json").read_text())
    for key in ("events", "events_sha256", "models_sha256", "bytes", "accuracy", "simulated_s"):
        assert repeated[key] == summary[key]

    assert "FAIL" not in done("audit", out)
    assert "rounds to target" in done("compare", out, again, "--target", "0.2", "--all")


def test_an_audit_that_finds_something_ends_with_1(tiny_run: Path) -> None:
    (tiny_run / "rounds.parquet").unlink()
    result = call("audit", tiny_run)
    assert result.exit_code == 1
    assert "rounds.parquet is missing" in result.output


def test_check_prints_the_resolved_scenario_and_its_cost(scenario: Path, tmp_path: Path) -> None:
    short = call("check", scenario).output.splitlines()
    assert short[0].startswith("data: ")
    assert short[1].startswith("20 devices with ")
    assert not any("=" in line for line in short)
    printed = done("check", scenario, "--toml")
    assert "momentum = 0.0" in printed
    assert re.search(r"# here a run takes about .* s: .* s to simulate \d+ events, .* SGD", printed)
    assert "# a model of 650 parameters; 2.6 kB down, 2.6 kB up" in printed
    (tmp_path / "resolved.toml").write_text(printed)
    assert _without_real_times(
        done("check", tmp_path / "resolved.toml", "--toml")
    ) == _without_real_times(printed)


def test_a_run_of_more_than_97_days_says_how_exact_its_times_are(
    scenario: Path, tmp_path: Path
) -> None:
    note, long = (
        "after 97 d 02 h, .* at its end times are 60 ns apart",
        ("--set", "stop.simulated_time=3650 day"),
    )
    assert re.search(note, call("check", scenario, "--no-trial", *long).output)
    assert re.search(note, call("run", scenario, "--out", tmp_path / "run", *long).output)
    assert (
        "97 d 02 h"
        not in call("check", scenario, "--no-trial", "--set", "stop.simulated_time=97 day").output
    )


def _without_real_times(output: str) -> str:
    return re.sub(r"\(?[\d.]+ m?s\b|[\d.]+ MB\b", "", output)


def test_list_names_everything() -> None:
    listed = set(re.findall(r"^  (\S+) +\S", call("list").output, re.MULTILINE))
    written = [
        name
        for name, path in MODULES.items()
        if re.search(r"= (?:Registry|_\w+)\(\n", path.read_text())
    ]
    values = [value for name in written for value in vars(import_module(name)).values()]
    families = [value for value in values if isinstance(value, Registry)]
    assert len(families) >= 7
    assert {name for family in families for name in family} | _kinds(fedsim.Scenario) <= listed


def _kinds(annotation: Any) -> set[str]:
    fields = getattr(annotation, "model_fields", {})
    own = (
        {str(kind) for kind in get_args(fields["kind"].annotation)[:1]}
        if "kind" in fields
        else set()
    )
    return own.union(
        *(
            _kinds(part)
            for part in [*get_args(annotation), *(field.annotation for field in fields.values())]
        )
    )


class TestMistakes:
    """Each ends with 2, one line, no traceback, and nothing written."""

    def refused(self, *words: str | Path) -> str:
        result = call(*words)
        assert result.exit_code == 2, (result.output, result.exception)
        assert "Traceback" not in result.output
        return result.output

    def test_wrong_command_lines(self, scenario: Path, tmp_path: Path) -> None:
        for words in (
            ["run", scenario],
            ["fly"],
            ["compare"],
            ["audit", tmp_path],
            ["trace", tmp_path],
        ):
            self.refused(*words)
        for words in (
            ["none.toml"],
            [scenario, "--workers", "0"],
            [scenario, "--executor", "treads"],
        ):
            self.refused("run", *words, "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_an_output_folder_that_cannot_be_used(self, scenario: Path, tmp_path: Path) -> None:
        if Path("/proc").is_dir() or os.geteuid():
            # which the system refuses
            self.refused("run", scenario, "--out", Path("/proc/fedsim-run"))
        used = tmp_path / "used"
        used.mkdir()
        (used / "precious.txt").write_text("mine")
        assert "already holds files" in self.refused("run", scenario, "--out", used)
        assert [path.name for path in used.iterdir()] == ["precious.txt"]
        (used / "checkpoint" / "000000000001").mkdir(parents=True)
        assert "already holds an unfinished run; --resume goes on with it" in self.refused(
            "run", scenario, "--out", used
        )
        assert "is a file" in self.refused("run", scenario, "--out", scenario)
        assert "is not a folder" in self.refused("run", scenario, "--out", scenario / "below")
        assert "is no text in UTF-8" in self.refused(
            "run", scenario, "--out", tmp_path / os.fsdecode(b"by\xe9")
        )

    @pytest.mark.parametrize("verb", ["audit", "trace", "report", "compare"])
    def test_a_folder_that_is_not_there_or_cannot_be(self, verb: str, tmp_path: Path) -> None:
        for name, says in (
            ("none", "does not exist"),
            ("x" * 300, "cannot be used: File name too long"),
        ):
            assert self.refused(verb, tmp_path / name) == f"fedsim: '{tmp_path / name}' {says}\n"


def test_ctrl_c_keeps_what_there_is_and_ends_with_130(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [
        "run",
        scenario,
        "--out",
        out,
        "--set",
        "stop.rounds=100000",
        "--set",
        "checkpoint.rounds=1",
    ]
    process = children.fedsim(*words, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    # it has done a round
    children.wait_until(lambda: any((out / "checkpoint").glob("[0-9]*[0-9]")), process)
    process.send_signal(signal.SIGINT)
    _, errors = children.ended(process)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "\x1b" not in errors  # without a terminal progress is plain lines
    assert "saved at round 1 (" in errors
    again = errors.splitlines()[-1].removeprefix("interrupted; to go on: ")
    assert again == f"fedsim run {out}/scenario.toml --out {out} --resume"
    refused = call(*shlex.split(again)[1:-1])
    assert "--resume goes on with it" in refused.output
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert summary["rounds"] > 0
    assert call("audit", out).exit_code == 0


def test_who_has_seen_enough_is_not_told_of_it() -> None:
    command = f"{shlex.quote(sys.executable)} -c 'from fedsim.cli import main; main()' list | true"
    assert (
        subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, cwd=ROOT, check=True
        ).stderr
        == ""
    )


def told(error: BaseException, *words: str) -> tuple[int, str]:
    @click.command()
    @explained("fedsim")
    def command() -> None:
        raise error

    result = CliRunner().invoke(command, list(words))
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (DataError("data is missing"), 2, "fedsim: data is missing\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "a.parquet"),
            1,
            "fedsim: the disk that holds '.' is full; ",
        ),
        (
            OSError(errno.EACCES, "Permission denied", "a.txt"),
            1,
            "fedsim: 'a.txt' cannot be used: Permission denied\n",
        ),
        (OSError("no port"), 1, "fedsim: no port\n"),
        (MemoryError("3 GiB"), 1, "fedsim: there is not enough memory: 3 GiB\n"),
        (ZeroDivisionError("a bug"), 1, "fedsim: ZeroDivisionError: a bug, in test_cli.py, line "),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_one_message_and_an_exit_status(error: BaseException, status: int, text: str) -> None:
    found, output = told(error)
    assert (found, output[: len(text)], output.count("\n")) == (status, text, bool(text))


@pytest.mark.parametrize(
    ("do", "words", "both", "in_python", "on_command_line"),
    [
        (
            lambda: fedsim.run("quickstart", workers=0),
            ["--workers", "0"],
            "workers is 0; ",
            "workers",
            "--workers",
        ),
        (
            lambda: fedsim.load("quickstart", ["seed"]),
            ["--set", "seed"],
            "'seed' is not of the form",
            "changes",
            "--set",
        ),
        (
            lambda: fedsim.run("quickstart", __file__),
            ["--out", __file__],
            " is a file; give a folder",
            "out",
            "--out",
        ),
        (
            lambda: fedsim.load("communication"),
            [],
            "is a study",
            "fedsim.run_study runs it",
            "'fedsim study' runs it",
        ),
    ],
)
def test_errors_speak_the_language_of_who_reads_them(
    do: Callable[[], object], words: list[str], both: str, in_python: str, on_command_line: str
) -> None:
    with pytest.raises(FedsimError) as caught:
        do()
    output = call("run", "quickstart" if words else "communication", "--out", "out", *words).output
    assert (both in output, on_command_line in output) == (True, True)
    assert (both in str(caught.value), in_python in str(caught.value)) == (True, True)
    assert on_command_line not in str(caught.value)  # nothing of the command line is left


def test_what_is_no_scenario_is_refused_in_python_and_debug_shows_where() -> None:
    assert "Traceback" in told(ZeroDivisionError("a bug"), "--debug")[1]
    with pytest.raises(
        FedsimError,
        match=r"^\{'seed': 3\} is no file's path or name; .* by fedsim.Scenario\(\*\*tables\)",
    ):
        fedsim.load({"seed": 3})  # type: ignore[arg-type]
    with pytest.raises(FedsimError, match=r"'quikstart' does not exist.*did you mean 'quickstart'"):
        fedsim.run("quikstart")


def test_a_full_disk_is_named_and_the_run_goes_on_once_there_is_room(tmp_path: Path) -> None:
    """On a disk of 200 kB, which a name space of its own has to mount."""
    changes = "--set learning=off --set checkpoint.rounds=1 --set evaluation.every=100"
    run = f"{shlex.quote(sys.executable)} -m fedsim run quickstart {changes} --out {tmp_path}/run"
    script = f"mount -t tmpfs -o size=200k none {tmp_path} && {run} && exit"
    script += f"; mount -o remount,size=9M {tmp_path}; {run} --resume --quiet"
    try:
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip("this system lets nobody mount a disk of their own")
    assert (
        f"the disk that holds '{tmp_path}/run' is full; make room there, and --resume goes on"
        in done.stderr
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("inside", ["new", "new/further.html"])
def test_no_verb_writes_into_a_run_folder(tiny_run: Path, inside: str) -> None:
    out = tiny_run / inside
    before = sorted(tiny_run.rglob("*"))
    verbs = [[verb, tiny_run] for verb in ("trace", "tensorboard", "mlflow", "wandb", "report")]
    for words in (*verbs, ["run", "quickstart"], ["study", "communication"]):
        result = call(*words, "--out", str(out))
        assert result.exit_code == 2, words
        assert (
            "lies in the run folder 'run'" in result.output
            or "already holds files" in result.output
        ), result.output
    assert sorted(tiny_run.rglob("*")) == before
