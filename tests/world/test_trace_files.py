"""Files of traces: each published form as a small file, and a message for each mistake in one."""

import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsim
from fedsim.common.errors import DataError, FedsimError
from fedsim.common.notes import collected_notes
from fedsim.toolbox.worlds.trace_files import Recording, averaged
from fedsim.world.network.traces import StepTrace

FCC = """\
"unit_id","dtime","target","address","fetch_time","bytes_total","bytes_sec","bytes_sec_interval","warmup_time","warmup_bytes","sequence","threads","successes","failures","location_id"
872,"2016-06-01 04:00:00",m1,1.2.3.4,5000000,1,1000000,900000,1,1,0,3,1,0,1
872,"2016-06-01 04:00:00",m1,1.2.3.4,10000000,1,1250000,900000,1,1,1,3,1,0,1
901,"2016-06-01 05:00:00",m1,1.2.3.4,10000000,1,500000,900000,1,1,1,3,1,0,1
872,"2016-06-01 03:00:00",m1,1.2.3.4,10000000,1,250000,900000,1,1,1,3,1,0,1
872,"2016-06-01 06:00:00",m1,1.2.3.4,10000000,1,0,0,1,1,1,3,0,1,1
"""
IRISH = """\
Timestamp,Longitude,Latitude,Speed,Operatorname,CellID,NetworkMode,RSRP,RSRQ,SNR,CQI,RSSI,DL_bitrate,UL_bitrate,State,NRxRSRP,NRxRSRQ,ServingCell_Lon,ServingCell_Lat,ServingCell_Distance
2017.11.30_16.48.26,-8.49,51.89,1,A,2,LTE,-95,-13,-3.0,6,-80,0,0,I,-,-,-8.49,51.88,1085.18
2017.11.30_16.48.27,-8.49,51.89,1,A,2,LTE,-95,-13,-3.0,6,-80,800,80,D,-,-,-8.49,51.88,1085.18
2017.11.30_16.48.28,-8.49,51.89,1,A,2,LTE,-95,-13,-3.0,6,-80,2000,160,D,-,-,-8.49,51.88,1085.18
2017.11.30_16.48.28,-8.49,51.89,1,A,2,LTE,-95,-13,-3.0,6,-80,4000,0,D,-,-,-8.49,51.88,1085.18
2017.11.30_16.48.30,-8.49,51.89,1,A,2,LTE,-95,-13,-3.0,6,-80,-,40,D,-,-,-8.49,51.88,1085.18
"""


def read(
    path: Path, direction: str = "down", devices: int = 1, **keys: Any
) -> dict[str, StepTrace]:
    """The traces that devices follow, by name, from the begin, one each."""
    key = {"kind": "trace", "file": str(path), "starts": "begin", "deals": "own", **keys}
    links = {"kind": "star", "device": {direction: key}}
    network = fedsim.build_world({"devices": devices}, links)._processes.network  # type: ignore[attr-defined]
    traces = [network.traces.of(f"device {device} {direction}")[0] for device in range(devices)]
    return {trace.name: trace for trace in traces}


def steps(trace: StepTrace) -> list[tuple[float, float]]:
    """Begins (s) and rates (kB/s)."""
    return [
        (round(begin, 6), round(rate / 1e3, 6))
        for begin, rate in zip(trace.since, trace.values, strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "keys", "expected", "length"),
    [
        ("0 8\n1 0\n3 16\n", {"rate": "Mbit/s"}, [(0, 1000), (1, 0), (3, 2000)], 5),
        ("10, 8\n11, 8\n12.5, 4", {"rate": "kB/s"}, [(0, 8), (2.5, 4)], 4),
        ("0 1\n0 2\n1 3\n1 5\n", {"rate": "kB/s"}, [(0, 2), (1, 5)], 2),
        ("0 1\n500 2\n", {"rate": "kB/s", "time": "ms"}, [(0, 1), (0.5, 2)], 1),
        ("9 1\n", {"rate": "kB/s"}, [(0, 1)], 1),
        ("0 1\n1 3\n2 0\n3 4", {"rate": "kB/s", "average": "2 s"}, [(0, 2)], 4),
        ("9 1\n9 2\n9 4", {"rate": "kB/s", "every": "5 s"}, [(0, 1), (5, 2), (10, 4)], 15),
        (
            "t,Mbps\n2024-03-04 05:00:00,8\n2024-03-04 05:01:00,16",
            {"rate": "Mbit/s"},
            [(0, 1000), (60, 2000)],
            120,
        ),
        (
            "x,when,y\n7,0,5\n7,2,6",
            {"rate": "kB/s", "time_column": "when", "rate_column": "y"},
            [(0, 5), (2, 6)],
            4,
        ),
        # 3 opportunities of 1500 bytes in the first 100 ms, none, 1 in the last 50 ms
        ("0\n1\n100\n250\n", {}, [(0, 45), (0.1, 0), (0.2, 30)], 0.25),
        ("1\n", {"average": "1 ms"}, [(0, 1500)], 0.001),
        (IRISH, {}, [(0, 100), (1, 375)], 2),
        (FCC.replace("901", "872"), {}, [(0, 250), (3600, 1250), (7200, 500)], 10800),
        (FCC.replace("901", "872"), {"every": "5 s"}, [(0, 250), (5, 1250), (10, 500)], 15),
    ],
)
def test_forms(
    tmp_path: Path, text: str, keys: dict[str, Any], expected: Any, length: float
) -> None:
    (tmp_path / "file").write_text(text)
    (trace,) = read(tmp_path / "file", **keys).values()
    assert steps(trace) == expected
    assert trace.length == pytest.approx(length, abs=1e-9)


def test_the_column_of_uploads(tmp_path: Path) -> None:
    (tmp_path / "drive.csv").write_text(IRISH)
    (trace,) = read(tmp_path / "drive.csv", direction="up").values()
    assert steps(trace) == [(0, 10), (3, 5)]


def test_units_of_the_fcc_are_devices(tmp_path: Path) -> None:
    (tmp_path / "curr_httpgetmt.csv").write_text(FCC)
    with collected_notes() as notes:
        traces = read(tmp_path / "curr_httpgetmt.csv", devices=2)
    assert steps(traces["872"]) == [(0, 250), (3600, 1250)]
    assert steps(traces["901"]) == [(0, 500)]
    (line,) = notes
    assert "2 traces (FCC's tests), 1 to 7200 s long, means 4 to 6 Mbit/s" in line


def test_folders_and_archives_hold_a_trace_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    (folder / "bus").mkdir(parents=True)
    names = ["bus/2", "bus/10", "walk"]
    for number, name in enumerate(names):
        (folder / name).write_text(f"0 {number + 1}\n")
    with tarfile.open(tmp_path / "traces.tar.xz", "w:xz") as tar:
        tar.add(folder, "traces")
    with zipfile.ZipFile(tmp_path / "traces.zip", "w") as archive:
        for name in names:
            archive.write(folder / name, name)
    for path in (folder, tmp_path / "traces.tar.xz", tmp_path / "traces.zip"):
        traces = read(path, devices=3, rate="kB/s")
        # in order of names, numbers by size
        assert [name.removeprefix("traces/") for name in traces] == names
        bus = read(path, devices=2, rate="kB/s", members="*bus/*")
        assert [trace.mean for trace in bus.values()] == [1000, 2000]


def test_a_column_names_devices(tmp_path: Path) -> None:
    rows = [
        "phone,t,rate",
        *[f"{10 - phone},{time},{phone + 1}" for time in (0, 2) for phone in range(3)],
    ]
    (tmp_path / "all.csv").write_text("\n".join(rows))
    traces = read(tmp_path / "all.csv", devices=3, rate="kB/s")
    assert {name: trace.mean for name, trace in traces.items()} == {
        "8": 3000,
        "9": 2000,
        "10": 1000,
    }


@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0, 1e6)), min_size=1, max_size=20),
    st.floats(0.01, 9.0),
)
def test_averages_carry_the_same_bytes(pieces: list[tuple[int, float]], step: float) -> None:
    begins = np.concatenate(([0.0], np.cumsum([length / 10 for length, _ in pieces]))).tolist()
    rates = [rate for _, rate in pieces]
    result = averaged(Recording("", begins[:-1], rates, begins[-1]), step)
    ends = [*result.times[1:], result.end]
    carried = sum(
        rate * (end - begin)
        for begin, end, rate in zip(result.times, ends, result.values, strict=True)
    )
    total = sum(rate * length / 10 for length, rate in pieces)
    assert carried == pytest.approx(total, rel=1e-9, abs=1e-6)
    assert result.end == begins[-1]


MISTAKES: dict[str, tuple[str | bytes, dict[str, Any], str]] = {
    "a missing unit": ("0 1", {}, "has bare rates; give their unit, such as rate = 'Mbit/s'"),
    "a wrong unit": ("0 1", {"rate": "mbps"}, r"rate is 'mbps'.*allowed are bit/s.*did you mean 'Mbit/s'"),
    "a wrong unit of time": ("0 1", {"time": "sec."}, r"time is 'sec\.'.*allowed are ns"),
    "a negative rate": ("0 1\n1 -2", {"rate": "kB/s"}, "line 2 of 'file': the rate is '-2'; allowed is a number from 0"),
    "NaN": ("0 1\n1 nan", {"rate": "kB/s"}, "line 2 of 'file': the rate is 'nan'; allowed"),
    "infinity": ("0 inf", {"rate": "kB/s"}, "line 1 of 'file': the rate is 'inf'; allowed"),
    "words": ("0 1\n1 fast", {"rate": "kB/s"}, "line 2 of 'file': the rate is 'fast'; it must be a number"),
    "times out of order": ("0 1\n5 1\n3 2", {"rate": "kB/s"}, "the time 3 s comes after 5 s; times must ascend"),
    "a negative time": ("-1 1", {"rate": "kB/s"}, "line 1 of 'file': the time is '-1'"),
    "nothing": ("", {"rate": "kB/s"}, "'file' is empty"),
    "only 0": ("0 0\n1 0", {"rate": "kB/s"}, "the trace 'file', which is 0 throughout; nothing would arrive"),
    "a line of three": ("0 1\n1 2 3", {"rate": "kB/s"}, "line 2 of 'file': it has 3 cells"),
    "three columns": ("0 1 2", {"rate": "kB/s"}, "has 3 columns and no header"),
    "no rows": ("t,rate\n", {"rate": "kB/s"}, "has a header and no rows"),
    "a short row": ("t,rate\n0,1\n1", {"rate": "kB/s"}, "line 3 of 'file': it has 1 cells, and the header 2"),
    "an unknown column": ("t,speed\n0,1", {"rate": "kB/s", "rate_column": "sped"}, "no column 'sped'.*did you mean 'speed'"),
    "no usual column": ("t,speed\n0,1", {"rate": "kB/s"}, "none of the columns rate, throughput.*rate_column names it"),
    "a unit of packets": ("1\n2", {"rate": "kB/s"}, "is a packet file, whose rates have a unit; leave 'rate' out"),
    "a time between packets": ("1\n2", {"every": "1 s"}, "whose lines are times; leave 'every' out"),
    "packets out of order": ("5\n2", {}, "line 2 of 'file': 2 ms comes before"),
    "packets of no time": ("0\n0", {}, "ends at 0 ms"),
    "a number of bytes": (b"\xff\xfe\x00\x01", {"rate": "kB/s"}, "'file' is no text"),
    "an unknown key": ("0 1", {"rates": "kB/s"}, "unknown key 'rates'.*did you mean 'rate'"),
    "an unknown end": ("0 1", {"rate": "kB/s", "ends": "repeat"}, "ends is 'repeat'"),
    "an average of no time": ("0 1", {"rate": "kB/s", "average": "0 s"}, "average is '0 s'.*above 0"),
    "as many": ("0 1", {"rate": "kB/s", "devices": 3}, r"deals is 'own', and .*1 traces for 3 links"),
    "failed tests": (FCC.splitlines()[0] + "\n" + FCC.splitlines()[-1], {}, "has no test that succeeded"),
    "an idle drive": ("\n".join(IRISH.splitlines()[:2]), {}, "no sample in which something was transferred"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(tmp_path: Path, mistake: str) -> None:
    text, keys, message = MISTAKES[mistake]
    content = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(FedsimError, match=f"(?s){message}"):
        read(tmp_path / "file", **keys)


def test_files_that_are_not_there_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"network\.device\.down: there is no file .*sought in"):
        read(tmp_path / "none", rate="kB/s")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no file whose name fits members = '\\*'"):
        read(tmp_path / "empty", rate="kB/s")
    (tmp_path / "a").write_text("0 1\n" * 500)
    with tarfile.open(tmp_path / "cut.tar.xz", "w:xz") as tar:
        tar.add(tmp_path / "a", "a")
    whole = (tmp_path / "cut.tar.xz").read_bytes()
    (tmp_path / "cut.tar.xz").write_bytes(whole[:-60])
    with pytest.raises(DataError, match=r"cut\.tar\.xz' (is damaged|cannot be read)|is no text"):
        read(tmp_path / "cut.tar.xz", rate="kB/s")


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"server": {"up": {"kind": "trail", "file": "x"}}}, r"server\.up.*'trail'; allowed are trace.*did you mean 'trace'"),
        ({"server": {"up": {"file": "x"}}}, r"server\.up.*kind is missing; allowed are trace"),
        ({"server": {"up": {"kind": "trace"}}}, r"server\.up\.file is missing"),
        ({"server": {"up": "fast"}}, r"server\.up is 'fast': a data rate is a number and a unit"),
        ({"device": {"up": {"kind": "traces", "file": "x"}}}, "did you mean 'trace'"),
        ({"device": {"latency": {"kind": "trace", "file": "x"}}}, "device.latency is a trace.*'window'"),
        ({"device": {"loss": 1.5}}, "device.loss is 1.5; it must be at most 0.999"),
        ({"device": {"loss": -0.1}}, "device.loss is -0.1; it must be 0 or more"),
        ({"device": {"loss": {"kind": "trace", "file": "x", "loss": "permille"}}}, "loss.loss is 'permille'"),
        ({"device": {"latency": {"kind": "trace", "file": "x", "latency": "Mbit/s"}}}, "no unit of a time"),
    ],
)  # fmt: skip
def test_mistakes_of_kinds(network: dict[str, Any], message: str) -> None:
    with pytest.raises(FedsimError, match=f"(?s){message}"):
        fedsim.build_world({"devices": 2}, {"kind": "star", **network})
