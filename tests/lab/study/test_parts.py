"""Run folders that are copied in parts, and inputs that travel with a run."""

import shutil
from collections.abc import Callable
from contextlib import ExitStack, chdir
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.clock.executors import Inline
from fedsim.common.errors import DataError, SimulationError
from fedsim.common.files import WRITING
from fedsim.lab.study import parts
from fedsim.lab.study.conduct import try_to_build
from fedsim.lab.study.inputs import StudyInputs
from fedsim.lab.study.parts import PartReceiver, PartSender, list_files, read_folder, write_pieces
from fedsim.lab.study.plan import read_study
from fedsim.lab.study.worker import Worker
from fedsim.running.runner import Job


def sender_to(receiver: PartReceiver, source: Path) -> PartSender:
    def send(*, event: str, **news: Any) -> None:
        if event == "file-piece":
            receiver.take_piece(news["path"], news["content"])
        else:
            receiver.complete_part(news["files"])

    return PartSender(source, send)


def texts(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in list_files(folder)}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_each_part_brings_what_changed_and_removes_what_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PIECE_BYTES", 3)
    source = tmp_path / "source"
    receiver = PartReceiver(tmp_path / "copies" / "seed-1")
    sender = sender_to(receiver, source)
    write(source, {"a": "1234567", "empty": "", "checkpoint/5/state": "five", "live/x": "1"})
    write(source, {"fedsim.lock": "me", f"half{WRITING}": "x", f"live{WRITING}/x": "2"})
    sender.send_part()
    copy = tmp_path / "copies" / "seed-1"
    assert texts(copy) == texts(source)
    assert set(texts(copy)) == {"a", "empty", "checkpoint/5/state", "live/x"}
    shutil.rmtree(source / "checkpoint/5")
    shutil.rmtree(source / "live")
    write(source, {"checkpoint/9/state": "nine", "a": "12", "summary.json": "{}"})
    sender.send_part()
    assert texts(copy) == texts(source)
    assert not (copy / "live").exists()
    sent: list[str] = []
    PartSender(source, lambda **news: sent.append(news["event"])).send_part()
    assert sent.count("part-complete") == 1
    sender._send = lambda **news: sent.append("too much")  # type: ignore[method-assign]
    sender.send_part()
    assert "too much" not in sent


def test_a_part_that_was_not_completed_leaves_the_copy_as_it_was(tmp_path: Path) -> None:
    copy = tmp_path / "seed-1"
    receiver = PartReceiver(copy)
    receiver.take_piece("a", b"old")
    receiver.complete_part(["a"])
    receiver.take_piece("a", b"new, but of a worker that is lo")
    receiver.drop()
    receiver.take_piece("b", b"of the next worker")
    receiver.complete_part(["a", "b"])
    assert texts(copy) == {"a": b"old", "b": b"of the next worker"}
    assert [path.name for path in tmp_path.iterdir()] == ["seed-1"]


@pytest.mark.parametrize("name", ["/etc/passwd", "../beside", "a/../../b"])
def test_a_worker_writes_only_into_its_run(name: str, tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="outside of its run"):
        PartReceiver(tmp_path / "seed-1").take_piece(name, b"")


@pytest.fixture
def study(tmp_path: Path, tables: dict[str, Any]) -> dict[str, Any]:
    """A study whose samples and speeds lie in the working directory."""
    generator = np.random.default_rng(1)
    y = np.arange(200) % 4
    x = generator.normal(size=(200, 6)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=x + y[:, None], y=y)
    rows = "".join(f"{10 + device} samples/s\n" for device in range(8))
    (tmp_path / "speeds.csv").write_text(f"speed\n{rows}")
    tables["base"]["data"] = {"source": {"kind": "npz", "path": "samples.npz"}, "partition": "iid"}
    tables["base"]["population"] = {
        "devices": 8,
        "speed": {"file": "speeds.csv", "column": "speed"},
    }
    tables["base"] |= {"stop": {"rounds": 6}, "checkpoint": {"rounds": 2}}
    return tables


def test_a_run_begins_here_and_goes_on_from_its_parts_where_no_file_is(
    study: dict[str, Any], tmp_path: Path
) -> None:
    inputs = StudyInputs()
    with chdir(tmp_path):
        planned = read_study(study).runs[0]
        inputs.record(planned.scenario, lambda: try_to_build(planned))
        reference = fedsim.run(planned.scenario, tmp_path / "reference").summary
    text = planned.scenario.to_toml()
    run_inputs = inputs.of(text)
    (dataset,) = run_inputs.data.datasets.values()
    assert not dataset.pool.x.flags.writeable
    assert [file.name for file in run_inputs.files] == ["speeds.csv"]
    with chdir(make(tmp_path / "elsewhere")), pytest.raises(DataError):
        Job(planned.scenario, None, Inline())

    class LostError(Exception):
        pass

    copy = tmp_path / "copy" / "seed-1"

    def carry_out(node: str, begun: dict[str, Any], look: Callable[[PartSender], None]) -> Any:
        place = make(tmp_path / node / "inputs")
        run = tmp_path / node / "run"
        for name, pieces in begun.items():
            write_pieces(run / name, pieces)
        sender = sender_to(PartReceiver(copy), run)
        news: list[dict[str, Any]] = []
        worker = Worker(lambda **item: news.append(item), lambda: look(sender))
        with ExitStack() as stack:
            stack.enter_context(chdir(make(tmp_path / "elsewhere")))
            stack.enter_context(run_inputs.in_use(place))
            worker._carry_out_alone(text, run, waits=True)
        sender.send_part()

    def lose(sender: PartSender) -> None:
        sender.send_part()
        if any("checkpoint" in name for name in sender._sent):
            raise LostError

    with pytest.raises(LostError):
        carry_out("first", {}, lose)
    assert list(copy.glob("checkpoint/*"))
    carry_out("second", read_folder(copy), lambda sender: None)
    resumed = fedsim.load_run(copy)
    for key in ("events_sha256", "models_sha256", "rounds", "bytes"):
        assert resumed.summary[key] == reference[key]


def test_a_run_writes_only_the_files_that_it_reads(study: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text((tmp_path / "speeds.csv").read_text())
    speed = study["base"]["population"]["speed"]
    study["variants"]["other"] = {"population": {"speed": speed | {"file": "other.csv"}}}
    inputs = StudyInputs()
    with chdir(tmp_path):
        runs = read_study(study).runs
        for planned in runs:
            inputs.record(planned.scenario, partial(try_to_build, planned))
    files = set()
    for planned in runs:
        run_inputs = inputs.of(planned.scenario.to_toml())
        assert {file.name for file in run_inputs.files} == {"speeds.csv", "other.csv"}
        folder = make(tmp_path / "inputs" / planned.folder)
        with chdir(make(tmp_path / "elsewhere")), run_inputs.in_use(folder):
            Job(planned.scenario, None, Inline())
        (path,) = [path for path in folder.rglob("*") if path.is_file()]
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()
        files.add((planned.variant.name, path.name))
    assert files == {
        ("fedavg", "speeds.csv"),
        ("fedprox", "speeds.csv"),
        ("other", "other.csv"),
    }


def make(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
