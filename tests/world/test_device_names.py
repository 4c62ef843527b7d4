"""One rule for names of devices, in all files that name them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from fedsim.common.device_names import naming_rule, number_devices
from fedsim.common.errors import DataError
from fedsim.toolbox.partitions.plain import _read_entries
from tests.world.test_availability import paths
from tests.world.test_device_table import built, columns

Values = Mapping[str, int]
"""A value of each device, by the name that the file has for it."""


def _write(file: Path, heads: str, values: Values, end: str = "") -> str:
    lines = [heads, *(f"{name},{value}{end}" for name, value in values.items())]
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def of_population(folder: Path, values: Values) -> Sequence[float]:
    """Speeds of a population's table, by its column ``device``."""
    file = _write(folder / "phones.csv", "device,speed", values)
    speed = {"file": file, "column": "speed", "unit": "samples/s"}
    return columns(built({"devices": len(values), "speed": speed}))["speed"]


def of_network(folder: Path, values: Values) -> Sequence[float]:
    """Rates of a network's table (bytes/s)."""
    file = _write(folder / "phones.csv", "device,up", values)
    up = {"file": file, "column": "up", "unit": "B/s"}
    return columns(built({"devices": len(values)}, {"up": up}))["link_up"]


def of_lifetimes(folder: Path, values: Values) -> Sequence[float]:
    """Times of arrival from a table (s)."""
    file = _write(folder / "phones.csv", "device,joins", values)
    arrivals = {"kind": "file", "file": file, "column": "joins", "unit": "s"}
    return columns(built({"devices": len(values), "arrivals": arrivals}))["arrival"]


def of_availability(folder: Path, values: Values) -> Sequence[float]:
    """Begins of the only interval of each device, in a column called ``phone``."""
    text = _write(folder / "on.csv", "phone,start,end", values, ",999")
    online = paths(folder, Path(text).read_text(), unit="s", devices=len(values))
    return [online.next_on(device, 0.0) for device in range(len(values))]


def of_partition(folder: Path, values: Values) -> Sequence[float]:
    """The only sample of each device."""
    file = folder / "partition.json"
    file.write_text(json.dumps({name: [value] for name, value in values.items()}))
    return [entry["train"][0] for entry in _read_entries(file)]  # type: ignore[index]


def of_link_traces(folder: Path, values: Values) -> Sequence[float]:
    """The only rate of each device (bytes/s), in a column called ``phone``."""
    rows = [f"{name},{time},{value}" for name, value in values.items() for time in (0, 1)]
    file = folder / "rates.csv"
    file.write_text("\n".join(["phone,time,rate", *rows]) + "\n")
    up = {"kind": "trace", "file": str(file), "deals": "own", "rate": "B/s"}
    traces = built({"devices": len(values)}, {"up": up}).network.traces
    assert traces is not None
    assignment = traces.of_devices["up"]
    return [assignment.of(device)[0].at(0.0) for device in range(len(values))]


INPUTS: dict[str, Callable[[Path, Values], Sequence[float]]] = {
    "population: file and column": of_population,
    "network.device: file and column": of_network,
    "population.arrivals: file": of_lifetimes,
    "population.availability: intervals": of_availability,
    "data.partition: file": of_partition,
    "network.device: trace": of_link_traces,
}
"""All inputs that name devices. Those that name them in code or in lists take numbers alone:
``world.send``, ``devices`` of processes, of malicious devices and of departures.
"""


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize(
    "names",
    [
        ("0", "1", "2"),
        ("2", "0", "1"),
        ("c10", "c9", "c1"),
        ("anna", "zoe", "ben"),
        ("1", "3", "2"),
    ],
)
def test_every_input_takes_the_same_names(
    name: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    """Numbers from 0 on are indices; other names are numbered in natural order."""
    order = sorted(names, key=lambda text: (len(text) if text[0] == "c" else 0, text))
    values = {device: 5 + order.index(device) for device in names}
    assert list(INPUTS[name](tmp_path, values)) == [5, 6, 7]


@pytest.mark.parametrize("name", [name for name in INPUTS if name != "network.device: trace"])
def test_every_input_refuses_other_names_with_one_message(name: str, tmp_path: Path) -> None:
    """Link traces name no more than their order: whatever they are called, there are three."""
    with pytest.raises(DataError) as caught:
        INPUTS[name](tmp_path, {"0": 1, "1": 2, "zoe": 3})
    assert "zoe" in str(caught.value)
    assert str(caught.value).endswith(naming_rule(3))


def test_numbers_from_0_may_be_missing_and_other_names_may_not() -> None:
    assert number_devices(["4", "0"], 9) == {"4": 4, "0": 0}
    assert number_devices(["4", "1"], 9) == {"4": 4, "1": 1}
    assert number_devices(["9", "1"], 9) == "9"
    assert number_devices(["b", "a"], 3) == "b"
    assert number_devices(["01", "00"], 2) == {"00": 0, "01": 1}
    assert number_devices(["-1", "0"], 2) == "-1"
    assert number_devices([], 2) == {}
