"""Studies that are really run: as the command line does it, on Ray too, stopped in any way, and
gone on with.
"""

import io
import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.analysis.report.gather import gather
from fedsim.lab.compare.show import write_tables
from fedsim.lab.study import pool
from fedsim.lab.study.pool import Ended, RunOrder, StudyProgress
from fedsim.lab.terminal import Console
from fedsim.testing import quiet_world
from tests import children
from tests.calls import call, done
from tests.children import wait_until
from tests.lab.conftest import finish, rows_of, write

TABLES = ("compare.csv", "compare.md", "paired.csv", "runs.csv")


def start(*words: str | Path) -> "subprocess.Popen[str]":
    return children.fedsim(
        "study", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def tables_of(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in TABLES}


def states(study: Path, out: Path) -> list[str]:
    return [
        line.split()[0]
        for line in call(
            "study", study, "--out", out, "--dry-run", "--no-trial"
        ).output.splitlines()
    ]


def times_of(out: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*/*")}


def summaries(out: Path) -> dict[str, dict[str, Any]]:
    found = {
        path.parent: json.loads(path.read_text())
        for path in sorted(out.glob("runs/*/*/summary.json"))
    }
    return {str(path.relative_to(out)): summary for path, summary in found.items()}


def test_a_study_from_beginning_to_end(
    study_file: Path,
    tables: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "default::ResourceWarning")
    out = tmp_path / "out"
    assert [
        line.split()
        for line in done("study", study_file, "--out", out, "--dry-run", "--no-trial").splitlines()
    ] == [["new", f"runs/{name}/seed-{seed}"] for seed in (1, 2) for name in ("fedavg", "fedprox")]
    assert not out.exists()
    missing = (
        "study",
        study_file,
        "--out",
        out,
        "--set",
        "data.source=mnist",
        "--set",
        "data.root=nowhere",
    )
    # a list needs no data, a run does
    listed = call(*missing, "--dry-run")
    assert len(listed.stdout.splitlines()) == 4
    assert "what the runs cost cannot be told: variant 'fedavg': data.source" in listed.stderr
    assert "data.source is 'mnist'" in call(*missing).output

    said = done("study", study_file, "--out", out, "--workers", "2")
    assert capfd.readouterr().err == ""  # of the workers, which leave nothing open
    assert ("4/4" in said, "final accuracy (0-1)" in said) == (True, True), said
    assert {path.name for path in out.iterdir()} == {"study.toml", "index.json", "runs", *TABLES}
    assert {summary["status"] for summary in summaries(out).values()} == {"done"}

    before = times_of(out)
    assert (done("study", study_file, "--out", out, "--quiet"), times_of(out)) == ("", before)
    assert states(study_file, out) == ["done"] * 4

    first = summaries(out)["runs/fedprox/seed-1"]["accuracy"]["final"]
    # the other tables follow from it: tests/lab/compare/test_show.py
    runs = rows_of(out / "runs.csv")
    assert [(row["variant"], row["seed"]) for row in runs] == [
        (name, seed) for name in ("fedavg", "fedprox") for seed in "12"
    ]
    assert float(runs[2]["final accuracy (0-1)"]) == pytest.approx(first)
    assert runs[0]["migrations"] == ""  # no groups: nothing, and not 0
    alone = finish(study_file, tmp_path / "one by one")
    assert tables_of(alone) == tables_of(out)
    for path, summary in summaries(out).items():
        assert all(
            summary[key] == summaries(alone)[path][key]
            for key in ("events_sha256", "models_sha256")
        )


def checkpoints(out: Path) -> set[Path]:
    return set(out.glob("runs/*/*/checkpoint/0*/manifest.json"))


def workers_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_killed_study_goes_on_to_the_same_tables(slow_study: Path, tmp_path: Path) -> None:
    whole, out = finish(slow_study, tmp_path / "whole"), tmp_path / "out"
    killed = start(slow_study, "--out", out, "--workers", "2")
    wait_until(lambda: checkpoints(out), killed)
    workers = workers_of(killed.pid)
    killed.kill()
    killed.communicate()
    assert len(workers) == 2
    # the workers save their runs
    wait_until(lambda: not any(map(is_alive, workers)))
    assert not (out / "compare.csv").exists()
    assert "resume" in states(slow_study, out)

    finish(slow_study, out)
    assert tables_of(out) == tables_of(whole)
    for path, summary in summaries(out).items():
        for key in ("events", "events_sha256", "models_sha256", "bytes", "accuracy"):
            assert summary[key] == summaries(whole)[path][key]
        assert call("audit", out / path).exit_code == 0


def test_a_study_under_way_can_be_read_and_interrupted(slow_study: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = (slow_study, "--out", out, "--set", "stop.rounds=100000", "--set", "learning=off")
    process = start(*words, "--workers", "1")
    wait_until(lambda: checkpoints(out), process)
    assert "No run was begun of fedprox." in call("compare", out).output
    ends_with_130(process, signal.SIGINT)
    # the other was not begun
    assert [summary["status"] for summary in summaries(out).values()] == ["interrupted"]

    before = checkpoints(out)
    process = start(*words, "--workers", "2")
    wait_until(
        lambda: {path.parts[-5] for path in checkpoints(out) - before} == {"fedavg", "fedprox"},
        process,
    )
    ends_with_130(process, signal.SIGTERM)
    assert [summary["status"] for summary in summaries(out).values()] == ["interrupted"] * 2
    listed = call("study", *words, "--dry-run", "--no-trial").output.splitlines()
    assert [line.split()[0] for line in listed] == ["resume"] * 2
    assert not (out / "compare.csv").exists()


def ends_with_130(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    process.send_signal(number)
    _, errors = children.ended(process)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors


def test_runs_that_fail_are_reported_from_python_and_again_by_the_verb(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    tables["variants"] = {
        "fails": {"strategy.kind": "tests.lab.study.strategies:Fails"},
        # so that another process does those after it
        "dies": {"strategy.kind": "tests.lab.study.strategies:Dies"},
        **tables["variants"],
    }
    tables["seeds"], tables["base"]["learning"], out = [1], "off", tmp_path / "out"
    with pytest.raises(
        fedsim.SimulationError,
        match=r"2 runs of the study .* failed; fails, seed 1: ValueError: on purpose",
    ):
        fedsim.run_study(tables, out, workers=1, allow_code=True)
    assert tables["base"]["learning"] == "off"  # what was given is as it was
    some = fedsim.run_study(tables, out, only=["variant=fedavg"], allow_code=True)
    assert (some.variants, list(some.runs["variant"])) == (
        ["fails", "dies", "fedavg", "fedprox"],
        ["fedavg", "fedprox"],
    )
    assert [(row["variant"], row["runs"]) for row in rows_of(out / "compare.csv")] == [
        ("fails", "0"), ("dies", "0"), ("fedavg", "1"), ("fedprox", "1")
    ]  # fmt: skip
    assert [bool(row["traffic (bytes)"]) for row in rows_of(out / "compare.csv")] == [
        False,
        False,
        True,
        True,
    ]
    again = call("study", write(tmp_path / "s.toml", tables), "--out", out, "--workers", "1")
    assert again.exit_code == 1
    assert "2 runs to do, 2 done" in again.stderr
    assert "fedsim: fails, seed 1 failed: ValueError: on purpose" in again.stderr
    # when it happens, and at the end
    assert again.stderr.count("failed: its process ended with signal 9") == 2
    assert "The run of fails is not done (seed 1 failed)." in again.stdout


def refused(*words: str | Path) -> str:
    result = call("study", *words)
    assert result.exit_code == 2, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result.output


def test_wrong_files_command_lines_and_folders(
    study_file: Path, tables: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    refused(study_file)
    refused(tmp_path / "none.toml", "--out", out)
    assert "--workers is 0" in refused(study_file, "--out", out, "--workers", "0")
    assert "variant 'fedavg': training has the unknown key" in refused(
        study_file, "--out", out, "--set", "training.l=1"
    )
    message = refused(
        study_file, "--out", out, "--set", "data.source=mnist", "--set", f"data.root={tmp_path}"
    )
    assert message.startswith(
        "fedsim: variant 'fedavg': data.source is 'mnist', whose files are missing"
    )
    for many in (
        {"strategy.clients_per_round": 13},
        {"data.partition": {"kind": "label-groups", "groups": 13}},
    ):
        tables["variants"]["many"] = many  # the second shows only when it is built
        assert "variant 'many'" in refused(write(study_file, tables), "--out", out)
    assert not out.exists()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "precious.txt").write_text("mine")
    assert "already holds files" in refused(study_file, "--out", tmp_path / "used")
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["precious.txt"]
    assert "is a file" in refused(study_file, "--out", study_file)


def test_runs_of_other_scenarios(study_file: Path, tables: dict[str, Any], finished: Path) -> None:
    before = tables_of(finished)
    message = refused(study_file, "--out", finished, "--set", "training.lr=0.2")
    assert (
        "runs/fedavg/seed-1' holds a run of another scenario: training.lr was 0.1, and is 0.2 now"
        in message
    )
    # what a verb has put beside a run is none
    (finished / "runs" / "fedavg" / "seed-1.trace.json").touch()
    fedprox = tables["variants"].pop("fedprox")
    message = refused(write(study_file, tables), "--out", finished)
    assert "holds 'runs/fedprox/seed-1', no run of this study" in message
    tables["variants"]["fedprox"] = fedprox
    write(study_file, tables)
    (finished / "runs" / "fedavg" / "seed-1" / "scenario.toml").unlink()
    assert "it is no run of this study" in refused(study_file, "--out", finished)
    assert tables_of(finished) == before


def test_published_figures_come_beside_those_of_some_of_a_study(
    study_file: Path, tables: dict[str, Any], finished: Path, tmp_path: Path
) -> None:
    table = {
        "title": "Table 1",
        "measures": ["rounds"],
        "rows": ["fedavg"],
        "published": {"fedavg": 2},
    }
    other = {"title": "Table 2", "measures": ["rounds"], "rows": ["fedprox"]}
    paper = {
        "about": "<b>About</b>",
        "measures": {"rounds": {"title": "rounds", "figure": "rounds", "tolerance": 0.5}},
    }
    write(tmp_path / "paper.toml", paper | {"tables": [table, other]})
    write(study_file, tables | {"published": "paper.toml"})
    said = done(
        "study", study_file, "--out", tmp_path / "out", "--only", "fedavg", "--workers", "1"
    )
    assert "2 runs to do, 0 done" in said
    assert "Table 1" in said
    assert set(summaries(tmp_path / "out")) == {"runs/fedavg/seed-1", "runs/fedavg/seed-2"}
    report = (tmp_path / "out" / "published.md").read_text()
    assert report.startswith("# small\n\n&lt;b&gt;About&lt;/b&gt;\n\nA cell has the mean")
    assert (
        "## Table 1\n\n| row | rounds (+-0.5) |\n| --- | ---: |\n| fedavg | **3** *(2)* |\n"
        in report
    )
    assert "Seeds 1, 2.\n\n0 of 1 figure is within the tolerance.\n" in report
    assert report.endswith("## Not run\n\nTable 2.\n")
    finish(tmp_path / "out" / "study.toml", tmp_path / "out")
    assert "Not run" not in (tmp_path / "out" / "published.md").read_text()
    assert tables_of(tmp_path / "out") == tables_of(finished)


@pytest.mark.long
def test_what_is_left_of_a_run_that_had_hardly_begun_is_done_anew(
    study_file: Path, finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    (out / "runs/fedavg/seed-1/summary.json").unlink()  # killed before it was saved
    shutil.rmtree(out / "runs/fedavg/seed-2")
    (out / "runs/fedavg/seed-2").mkdir()  # killed as soon as its folder was there
    (out / "runs/fedprox/seed-1/summary.json").unlink()
    # a checkpoint of nothing
    (out / "runs/fedprox/seed-1/checkpoint/000000000012").mkdir(parents=True)
    assert states(study_file, out) == ["anew", "resume", "anew", "done"]
    assert "fedprox, seed 1: begins anew: the checkpoint" in done(
        "study", study_file, "--out", out, "--workers", "1"
    )
    assert tables_of(out) == tables_of(finished)


def test_a_folder_whose_study_file_nobody_understands_can_be_read(finished: Path) -> None:
    """Whatever a later grammar makes of it: its runs can be compared and shown; without an index
    it says what to do.
    """
    compared, before = call("compare", finished).output, tables_of(finished)
    (finished / "study.toml").write_text("of another grammar =")
    assert call("compare", finished).output == compared
    write_tables(finished)
    assert tables_of(finished) == before
    subject = gather([finished])
    assert (subject.title, len(subject.runs)) == ("small", 4)
    loaded = fedsim.load_study(finished)
    assert (loaded.variants, len(loaded.runs)) == (["fedavg", "fedprox"], 4)
    assert "holds files" not in refused(finished / "study.toml", "--out", finished)
    (finished / "index.json").unlink()
    asked = call("compare", finished)
    assert (
        asked.exit_code,
        f"fedsim study '{finished}/study.toml' --out '{finished}' writes it" in asked.output,
    ) == (2, True)


def test_a_study_without_its_index_is_brought_up_to_date_without_a_run(finished: Path) -> None:
    index, before, times = (
        (finished / "index.json").read_bytes(),
        tables_of(finished),
        times_of(finished),
    )
    (finished / "index.json").unlink()
    assert "no runs to do, 4 done" in done("study", finished / "study.toml", "--out", finished)
    assert ((finished / "index.json").read_bytes(), tables_of(finished), times_of(finished)) == (
        index,
        before,
        times,
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_how_far_it_is(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("fedsim.lab.study.pool.time.perf_counter", lambda: clock[0])
    shown = io.StringIO()
    progress = StudyProgress(Console(file=shown, force_terminal=terminal, width=200))
    labels = ("one [red]x[/red]\x1b[31m, seed 1", "two", "three")
    orders = [RunOrder(name, "", Path(), "resume" if name == "two" else "new") for name in labels]
    progress.begin(orders, 4)
    clock[0] += 10
    progress.take(1, {"event": "progress", "share": 0.5, "rounds": 7})
    progress.take(0, {"event": "note", "text": "begins anew"})
    progress.ended(0, Ended(orders[0], "done", accuracy=0.5, wall_s=10.0))
    progress.ended(2, Ended(orders[2], "failed", "on purpose"))
    progress.ended(1, Ended(orders[1], "interrupted"))
    progress.close()
    text = shown.getvalue()
    for part in (
        *("3 runs to do, 4 done", "begins anew", "two: interrupted, to be gone on with"),
        "1/3, about 10 s left: one [red]x[/red]",  # 1.5 runs took 10 s, and 1.5 are left
        "2/3, about 2 s left: three: failed: on purpose",
    ):
        assert part in text
    assert ("\x1b[31m" in text, "\x1b" in text) == (False, terminal)


@pytest.mark.long
@pytest.mark.parametrize(("most_bytes", "hired"), [(1 << 40, 1), (0, 2)])
def test_a_worker_that_has_had_much_memory_is_replaced(
    most_bytes: int, hired: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes, begun = [], pool.start
    monkeypatch.setattr(
        pool, "start", lambda *words, **how: processes.append(begun(*words, **how)) or processes[-1]
    )
    text = fedsim.Scenario(
        **quiet_world({"kind": "fedavg"}, rounds=1) | {"learning": "off"}
    ).to_toml()
    orders = [RunOrder(str(number), text, tmp_path / str(number), "new") for number in range(2)]
    with closing(StudyProgress(Console(quiet=True))) as progress:
        progress.begin(orders, 0)
        with closing(pool.WorkerPool(1, progress, most_bytes=most_bytes)) as workers:
            assert [run.status for run in workers.run(orders)] == ["done", "done"]
    assert len(processes) == hired


def environment_of(process: int) -> list[bytes]:
    """Return the variables with which a process was started, once its program has been loaded."""
    while not (text := Path(f"/proc/{process}/environ").read_bytes()):
        time.sleep(0.01)
    return text.split(b"\0")


def test_each_worker_sees_one_of_the_gpus() -> None:
    """By the environment of the processes; no GPU is needed."""
    seen = []
    with (
        closing(StudyProgress(Console(quiet=True))) as progress,
        closing(pool.WorkerPool(3, progress, gpus=["GPU-a", "1"])) as workers,
    ):
        for _ in range(3):
            worker = workers._start_worker()
            variables = environment_of(worker.pid)
            seen += [text for text in variables if text.startswith(b"CUDA_VISIBLE_DEVICES=")]
    names = [text.partition(b"=")[2].decode() for text in seen]
    assert names == ["GPU-a", "1", "GPU-a"]


def test_what_does_not_go_together(
    study_file: Path, tables: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert "did you mean 'processes'?" in refused(study_file, "--out", out, "--executor", "process")
    assert "only 'ray' has an address" in refused(study_file, "--out", out, "--address", "auto")
    ray = ("--out", out, "--executor", "ray")
    assert "its own number" in refused(
        study_file, *ray, "--address", "127.0.0.1:1", "--workers", "2"
    )
    tables["base"]["training"]["device"] = "cuda"
    assert "whose tasks have no GPU" in refused(write(tmp_path / "cuda.toml", tables), *ray)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    assert "pip install 'ray>=2.52' 'cloudpickle>=3'" in refused(study_file, *ray)
    assert not out.exists()
