"""Files that a user names: pipes, devices, and nesting without end are refused, not waited for
or followed.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from fedsim.common.files import read_json, read_toml
from fedsim.common.units import GramsPerJoule
from fedsim.testing import quiet_world
from fedsim.world.device_table import DeviceTable
from tests.calls import call

DEEP = "[" * 100_000 + "]" * 100_000
PLACES: dict[str, dict[str, Any]] = {
    "data.source": {"data": {"source": {"kind": "npz", "path": "FILE"}}},
    "data.partition": {"data": {"source": "digits", "partition": {"kind": "file", "path": "FILE"}}},
    "population.availability": {
        "population": {"devices": 24, "availability": {"kind": "flash", "file": "FILE"}}
    },
    "population.capacity": {
        "population": {"devices": 24, "capacity": {"file": "FILE"}},
        "network": {"kind": "star"},
    },
    "network.file": {"network": {"kind": "graph", "file": "FILE", "server": "a", "attach": ["a"]}},
}


def filled(value: Any, path: Path) -> Any:
    if isinstance(value, dict):
        return {key: filled(item, path) for key, item in value.items()}
    return str(path) if value == "FILE" else value


def refusal(sections: dict[str, Any], tmp_path: Path) -> str:
    (tmp_path / "s.toml").write_text(tomli_w.dumps(sections))
    return refused(tmp_path / "s.toml", tmp_path / "out")


def refused(scenario: Path, out: Path, *words: str) -> str:
    told = call("run", str(scenario), "--out", str(out), "--quiet", "--executor", "inline", *words)
    assert told.exit_code == 2, told.output
    assert not out.exists()
    assert len(told.output) < 1000
    return told.output


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_not_waited_for(place: str, kind: str, tmp_path: Path) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / "pipe"
    if kind == "pipe":
        os.mkfifo(path)
    message = refusal(quiet_world({"kind": "fedavg"}) | filled(PLACES[place], path), tmp_path)
    assert str(path) in message
    assert "it is a pipe or a device; allowed are files" in message


@pytest.mark.parametrize("place", ["data.partition", "population.availability", "network.file"])
def test_json_nested_without_end(place: str, tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text(DEEP)
    assert "deep.json" in refusal(
        quiet_world({"kind": "fedavg"}) | filled(PLACES[place], tmp_path / "deep.json"), tmp_path
    )


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (None, (), "it is a pipe or a device"),
        (None, ("--set", "name=x"), "it is a pipe or a device"),
        (f"name = {DEEP}", (), "nested too deeply"),
        ("seed = 1", ("--set", f"name={DEEP}"), "nested too deeply"),
        (f"seed = {'9' * 5000}", (), "is not valid TOML"),
        ('name = "whole"', ("--set", f"seed={'9' * 5000}"), "seed is '999"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_odd_scenarios(text: str | None, words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    if text is None:
        os.mkfifo(tmp_path / "s.toml")
    else:
        (tmp_path / "s.toml").write_text(text)
    assert said in refused(tmp_path / "s.toml", tmp_path / "out", *words)


HEAD = "computation_ms_per_sample,dl_kbps,ul_kbps\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"{HEAD}1,1,{'9' * 200_000}\n", "ul_kbps is '999"),
        (f"{HEAD}1e-320,1,1\n", "computation_ms_per_sample is '1e-320': it must be 1e-06 or more"),
        (f"{HEAD}1,1e300,1\n", "dl_kbps is '1e300'"),
        (
            {"y": np.append(np.zeros(59, int), 2**31 - 2)},
            "has the label 2147483646; allowed are 0 to 99999",
        ),
        ({"x": np.zeros((60, 0), dtype=np.float32)}, "'x' is of shape (60, 0)"),
        ({"x": np.array(3)}, "'x' is of shape ()"),
        ({"x": np.full((60, 3), 1e300)}, "values that are not finite"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_numbers_that_cannot_be_computed_with(content: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    if isinstance(content, str):
        path.write_text(content)
    else:
        with path.open("wb") as file:
            np.savez(
                file, **{"x": np.ones((60, 3), dtype=np.float32), "y": np.arange(60) % 3} | content
            )
    place = PLACES["population.capacity" if isinstance(content, str) else "data.source"]
    assert said in refusal(quiet_world({"kind": "fedavg"}) | filled(place, path), tmp_path)


def test_files_as_windows_writes_them(tmp_path: Path) -> None:
    """With a byte order mark, and lines that end in CR LF."""
    (tmp_path / "a.toml").write_text(
        "\ufeffname = 'é'\r\nseed = 2\r\n", encoding="utf-8", newline=""
    )
    (tmp_path / "a.json").write_text('\ufeff{"name":\r\n"é"}', encoding="utf-8", newline="")
    (tmp_path / "a.csv").write_text(
        "\ufeffintensity\r\n" + "36 g/kWh\r\n" * 24, encoding="utf-8", newline=""
    )
    assert read_toml(tmp_path / "a.toml") == {"name": "é", "seed": 2}
    assert read_json(tmp_path / "a.json") == {"name": "é"}
    hours = DeviceTable("a.csv", tmp_path / "a.csv", ("intensity",)).values(
        "intensity", GramsPerJoule
    )
    assert hours == pytest.approx([1e-5] * 24)


CASES = {"scenarios": 5, "folders": 2, "inputs": 8}


@pytest.mark.skipif(
    sys.platform != "linux", reason="watches forked processes as only Linux lets one"
)
def test_it_is_done_or_refused(tmp_path: Path) -> None:
    counts = [word for kind, count in CASES.items() for word in (f"--{kind}", str(count))]
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.fuzz",
        *counts,
        "--out",
        str(tmp_path / "out"),
    ]
    told = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout[-5000:] + told.stderr[-2000:]
