"""Files that change behind a run's back: while it runs they are nothing to it, and one that was
stopped does not go on.
"""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.clock.executors import Threads
from fedsim.clock.simulation import Record
from fedsim.common.errors import DataError
from fedsim.running.runner import Job
from fedsim.testing import assert_same_run, assert_sound, go_on, run, run_until
from tests.strategies.worlds import opposite_groups
from tests.test_resume import content, refused

DEVICES = 8
FILES = ("data.npz", "who.json", "speeds.csv", "phones.json", "network.json", "devices.csv")


def written(folder: Path, *, seed: int = 1) -> dict[str, Any]:
    """A scenario all of whose data, speeds, phases and links come from files in a folder."""
    data = opposite_groups(folder, [10 + 2 * device + seed for device in range(DEVICES)], seed=seed)
    draw = np.random.default_rng(seed)
    rows = [
        f"{milliseconds:.3f},{down:.3f},{up:.3f}"
        for milliseconds, down, up in draw.uniform(5, 20, (DEVICES, 3))
    ]
    (folder / "speeds.csv").write_text(
        "\n".join(["computation_ms_per_sample,dl_kbps,ul_kbps", *rows]) + "\n"
    )
    phones = {
        str(phone): {"start": 0, "end": 20, "ok": True, "ready": [[0, on], [on + 1, 20]]}
        for phone, on in enumerate(draw.uniform(8, 18, 5).tolist())
    }
    (folder / "phones.json").write_text(json.dumps(phones))
    latencies = [
        f"{device},{latency:.3f} ms" for device, latency in enumerate(draw.uniform(10, 90, DEVICES))
    ]
    (folder / "devices.csv").write_text("\n".join(["device,latency", *latencies]) + "\n")
    edges = [
        {"source": "server", "target": f"cell {cell}", "capacity": f"{9 + seed + cell} kbit/s"}
        for cell in range(2)
    ]
    nodes = [{"id": name} for name in ("server", "cell 0", "cell 1")]
    (folder / "network.json").write_text(
        json.dumps({"directed": False, "nodes": nodes, "edges": edges})
    )
    return {
        "seed": 3,
        "data": data,
        "training": {"lr": 0.1, "batch_size": 5},
        "population": {
            "devices": DEVICES,
            "capacity": {"kind": "fedscale", "file": "speeds.csv"},
            "availability": {"kind": "flash", "file": "phones.json"},
        },
        "network": {
            "kind": "graph",
            "file": "network.json",
            "server": "server",
            "attach": ["cell 0", "cell 1"],
            "device": {"latency": {"file": "devices.csv", "column": "latency"}},
        },
        "drift": {"kind": "swap-all", "probability": 0.5},
        "strategy": {"kind": "ifca", "groups": 2, "clients_per_round": 4, "local_epochs": 2},
        "checkpoint": {"rounds": 2},
        "stop": {"rounds": 7},
    }


@pytest.fixture
def world(tmp_path: Path) -> tuple[dict[str, Any], Path]:
    return written(tmp_path / "files"), tmp_path / "files"


def replaced(path: Path) -> None:
    written(path.parent.with_name("others"), seed=2)
    shutil.copy(path.parent.with_name("others") / path.name, path)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("harm", [replaced, truncated, Path.unlink])
def test_a_run_reads_its_files_once(
    world: tuple[dict[str, Any], Path], tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    sections, files = world
    run(sections, tmp_path / "still")
    job = Job(fedsim.Scenario(**sections), tmp_path / "harmed", Threads(2))
    rounds: list[int] = []

    def interfere(record: Record) -> None:
        if record.kind == "round":
            rounds.append(record.fields["round"])
            if len(rounds) == 1:
                for name in FILES:
                    harm(files / name)

    job.simulation.listen(interfere)
    asyncio.run(job.execute())
    assert rounds == list(range(7))
    assert_same_run(tmp_path / "still", tmp_path / "harmed")
    assert_sound(tmp_path / "harmed")


@pytest.fixture
def stopped(
    world: tuple[dict[str, Any], Path], tmp_path: Path
) -> tuple[dict[str, Any], Path, Path]:
    sections, files = world
    run(sections, tmp_path / "whole")
    assert run_until(sections, tmp_path / "cut", 150) == "interrupted"
    shutil.copytree(files, tmp_path / "kept")
    return sections, files, tmp_path / "cut"


class TestResume:
    @pytest.mark.parametrize(
        ("what", "section"),
        [
            ("speeds.csv", "population.capacity"),
            ("phones.json", "population.availability"),
            ("network.json", "network"),
            ("devices.csv", "network.device.latency"),
            *(
                (what, "data")
                for what in ("a pixel", "a label", "a sample's device", "two devices")
            ),
        ],
    )
    def test_other_files_are_refused(
        self, stopped: tuple[dict[str, Any], Path, Path], tmp_path: Path, what: str, section: str
    ) -> None:
        sections, files, cut = stopped
        arrays, who = (
            dict(np.load(files / "data.npz")),
            json.loads((files / "who.json").read_text()),
        )
        match what:
            case "a pixel":
                arrays["x_test"][3, 1] += 2.0**-10
            case "a label":
                arrays["y_train"][5] = 1 - arrays["y_train"][5]
            case "a sample's device":
                who["1"]["train"].append(who["2"]["train"].pop())
            case "two devices":
                who["3"], who["4"] = who["4"], who["3"]
            case _:
                replaced(files / what)
        np.savez(files / "data.npz", **arrays)
        (files / "who.json").write_text(json.dumps(who))
        refused(
            (sections, cut),
            rf"files of \[{section}\] .* changed since the checkpoint.* put the old files back",
        )
        shutil.copytree(tmp_path / "kept", files, dirs_exist_ok=True)
        # the same data in another file serve
        np.savez_compressed(files / "data.npz", **dict(np.load(files / "data.npz")))
        assert (files / "data.npz").read_bytes() != (tmp_path / "kept" / "data.npz").read_bytes()
        go_on(sections, cut)
        assert_same_run(tmp_path / "whole", cut)

    @pytest.mark.parametrize("name", FILES[::2])
    def test_files_that_are_gone_are_named(
        self, stopped: tuple[dict[str, Any], Path, Path], name: str
    ) -> None:
        sections, files, cut = stopped
        before = content(cut)
        (files / name).unlink()
        with pytest.raises((DataError, fedsim.ScenarioError), match=name):
            go_on(sections, cut)
        assert content(cut) == before

    def test_samples_of_another_shape_are_refused_even_where_none_are_trained_on(
        self, tmp_path: Path
    ) -> None:
        files = tmp_path / "files"
        sections = {
            "data": opposite_groups(files, [9] * DEVICES),
            "learning": "off",
            "stop": {"rounds": 9},
        }
        sections |= {
            "population": {
                "devices": DEVICES,
                "speed": "10 samples/s",
                "samples": {"low": 5, "high": 9},
            }
        }
        sections |= {"strategy": {"kind": "fedavg", "clients_per_round": 3}}
        assert run_until(sections, tmp_path / "cut", 40) == "interrupted"
        arrays = dict(np.load(files / "data.npz"))
        np.savez(
            files / "data.npz",
            **arrays | {name: arrays[name][:, :3] for name in ("x_train", "x_test")},
        )
        refused((sections, tmp_path / "cut"), r"files of \[data\]")
