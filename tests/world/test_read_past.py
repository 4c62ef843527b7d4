"""No reader reads past a field or an order: an unknown one is refused by name, or makes a
difference, or is printed.
"""

import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsim.common.errors import DataError, FedsimError
from fedsim.common.notes import collected_notes
from fedsim.common.streams import Streams
from fedsim.common.units import SamplesPerSecond
from fedsim.lab.calibrate.log import LogDefaults, read_log
from fedsim.toolbox.sources.own import HuggingFace, Npz
from fedsim.toolbox.worlds.availability import Intervals, read_flash
from fedsim.toolbox.worlds.capacities import read_capacities
from fedsim.toolbox.worlds.regions import RegionsSpec
from fedsim.world.calendar import Calendar
from fedsim.world.device_table import IDS
from fedsim.world.distributions import FromFile
from fedsim.world.energy.spec import ZoneSpec
from tests.lab.test_log import GOOD, HEAD
from tests.learning.test_sources import save

DEVICES = 12
SPEEDS = [10.0 + device for device in range(DEVICES)]
STRANGE = ("state", "loss", "weight", "unit", "Device ", "speed2", "enabled", "devise")
ORDERS = (
    [*range(DEVICES)][::-1],
    sorted(range(DEVICES), key=str),
    random.Random(4).sample(range(DEVICES), DEVICES),
)


def speeds(path: Path) -> list[float]:
    column = FromFile[SamplesPerSecond](
        kind="file", file=str(path), column="speed", unit="samples/s"
    )
    return column.by_device("population.speed", np.random.default_rng(1), DEVICES, None).tolist()  # type: ignore[no-any-return]


def written(path: Path, table: dict[str, Any]) -> Path:
    frame = pd.DataFrame(table)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    return path


def test_rows_go_by_any_usual_name_of_a_column_of_numbers(tmp_path: Path) -> None:
    assert {"Device_ID", "clientId", "client", "CLIENT_ID", "id", "Unnamed: 0", "user id"} < {*IDS}
    for place, name in enumerate(IDS):
        order = ORDERS[place % len(ORDERS)]
        path = tmp_path / ("a.parquet" if place % 8 == 0 else "a.csv")
        assert (
            speeds(written(path, {"speed": [SPEEDS[device] for device in order], name: order}))
            == SPEEDS
        )


@pytest.mark.parametrize("name", ["id", "Client", "Unnamed: 0"])
def test_rows_by_names_are_in_their_order_or_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.csv"
    for names in (
        [f"phone-{device}" for device in range(DEVICES)],
        [str(1 + device) for device in range(DEVICES)],
    ):
        assert speeds(written(path, {name: names, "speed": SPEEDS})) == SPEEDS
        for order in ORDERS:
            written(path, {name: [names[device] for device in order], "speed": SPEEDS})
            with pytest.raises(
                DataError, match="sort the rows, or name the device of each in a column 'device'"
            ):
                speeds(path)
        written(path, {name: [names[0], names[0], *names[2:]], "speed": SPEEDS})
        with pytest.raises(DataError, match=r"row 1 has the same; allowed is one a device"):
            speeds(path)


def test_an_index_that_pandas_has_written(tmp_path: Path) -> None:
    frame = pd.DataFrame({"speed": SPEEDS}).iloc[ORDERS[2]]
    frame.to_csv(tmp_path / "a.csv")
    frame.to_parquet(tmp_path / "a.parquet")
    assert speeds(tmp_path / "a.csv") == speeds(tmp_path / "a.parquet") == SPEEDS


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("speed,speed\n1,2\n")
    with pytest.raises(DataError, match="has the column 'speed' twice"):
        speeds(tmp_path / "a.csv")


def test_columns_that_the_scenario_does_not_name_are_printed(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", {"speed": SPEEDS, "id": range(DEVICES), "note": "x"})
    with collected_notes() as notes:
        speeds(path)
    (line,) = notes
    assert (
        line
        == f"population.speed from {str(path)!r} (columns 'speed', 'id', 'note'): column 'speed', "
        "rows by 'id'"
    )


# Tables whose columns fedsim names.


def spans(path: Path) -> Any:
    built = Intervals(file=str(path), unit="s").build_on(Streams(1), 3, None, Calendar.assumed(3))
    return [built.span(device, float(time)) for device in range(3) for time in range(60)]


def connection(path: Path) -> Any:
    section = RegionsSpec.model_validate({"kind": "regions", "file": str(path), "of": ["a", "b"]})
    from fedsim.clock.simulation import Simulation

    network = section.build(Simulation(), Streams(1), 2)
    return network.latencies.tolist(), network.lone_rates("up").tolist()


def carbon(path: Path) -> Any:
    return ZoneSpec(file=str(path)).profile(0, None, 0.0)["hours"]


def rows_of_log(path: Path) -> Any:
    log = read_log(path, LogDefaults())
    return log.tasks.tolist()


TABLES: dict[str, tuple[Callable[[Path], Any], dict[str, list[Any]]]] = {
    "intervals": (spans, {"device": [0, 1, 1, 2], "start": [0, 5, 30, 7], "end": [20, 9, 40, 50]}),
    "regions": (
        connection,
        {
            "from": ["a", "b", "a"],
            "to": ["b", "a", "a"],
            "rtt_ms": [20, 30, 1],
            "mbit_s": [5, 6, 100],
        },
    ),
    "carbon": (
        carbon,
        {"hour": [*range(24)], "intensity": [f"{400 + hour} g/kWh" for hour in range(24)]},
    ),
    "fedscale": (
        read_capacities,
        {"computation_ms_per_sample": [4, 5], "dl_kbps": [6, 7], "ul_kbps": [8, 9]},
    ),
}


@pytest.mark.parametrize("form", ["a.csv", "a.parquet"])
@pytest.mark.parametrize("name", TABLES)
def test_further_columns_of_a_table_are_refused_and_orders_change_nothing(
    tmp_path: Path, name: str, form: str
) -> None:
    read, table = TABLES[name]
    right = read(written(tmp_path / form, table))
    size = len(next(iter(table.values())))
    for further in STRANGE:
        with pytest.raises(DataError, match="which nothing uses; known are") as caught:
            read(written(tmp_path / form, table | {further: [1] * size}))
        assert repr(further) in str(caught.value)
    turned = read(
        written(tmp_path / form, {column: cells[::-1] for column, cells in table.items()})
    )
    if name == "fedscale":  # rows are drawn
        assert np.array_equal(turned[::-1], right)
    else:
        assert turned == right
    assert np.array_equal(read(written(tmp_path / form, dict(reversed(table.items())))), right)
    for column in table:
        renamed = {f"{key}s" if key == column else key: cells for key, cells in table.items()}
        with pytest.raises(FedsimError):
            read(written(tmp_path / form, renamed))


def test_a_connection_that_is_there_twice_and_hours_that_are_not_all_there(tmp_path: Path) -> None:
    twice = {key: [*cells, cells[0]] for key, cells in TABLES["regions"][1].items()}
    with pytest.raises(DataError, match="there is a row from 'a' to 'b' already"):
        connection(written(tmp_path / "a.csv", twice))
    hours = TABLES["carbon"][1] | {"hour": [0, *range(23)]}
    with pytest.raises(DataError, match="not each hour from 0 to 23 once"):
        carbon(written(tmp_path / "a.csv", hours))


def test_columns_of_a_log_that_nothing_uses_are_printed_or_refused(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(f"{HEAD}\n{GOOD}")
    right = rows_of_log(tmp_path / "log.csv")
    header, *lines = (tmp_path / "log.csv").read_text().splitlines()
    for further in ("state", "loss", "weight", "enabled", "host"):
        (tmp_path / "log.csv").write_text(
            "\n".join([f"{header},{further}", *(f"{line},1" for line in lines[::-1])])
        )
        log = read_log(tmp_path / "log.csv", LogDefaults())
        assert log.notes == (f"columns that are not used: {further}",)
        assert log.tasks.tolist() == right


# Objects.

OURS = {"start": 0, "end": 100, "ready": [[10, 20]], "ok": True}
TIMERS = {"isSuccess": True, "trace_start": 0, "trace_end": 100, "ready_time": [[10, 20]]}
LOGS = {
    "messages": "2020-02-03 01:00:00\tscreen_lock\n2020-02-03 01:00:20\tWIFI\n2020-02-03 "
    "01:01:00\tbattery_charged_on\n"
}
LOGS = {"messages": LOGS["messages"] + "2020-02-03 01:02:00\tscreen_unlock\n"}
FEDSCALE = {"duration": 10, "active": [10], "inactive": [20], "finish_time": 100, "model": "m"}


@pytest.mark.parametrize(
    "entry", [OURS, TIMERS, LOGS, FEDSCALE], ids=["ours", "timers", "logs", "fedscale"]
)
@pytest.mark.parametrize("form", ["json", "pickle"])
def test_further_fields_of_phones_are_refused(
    tmp_path: Path, entry: dict[str, Any], form: str
) -> None:
    def read(phone: dict[str, Any]) -> Any:
        content = {"a": entry, "b": phone}
        path = tmp_path / "phones"
        path.write_bytes(
            pickle.dumps(content) if form == "pickle" else json.dumps(content).encode()
        )
        return read_flash(path)

    assert read(entry) == read(dict(reversed(entry.items())))
    for further in STRANGE:
        with pytest.raises(DataError, match=f"phone 'b' has '{further}', which nothing uses"):
            read(entry | {further: 1})


@pytest.mark.parametrize("further", STRANGE)
def test_further_arrays_are_refused(tmp_path: Path, further: str) -> None:
    arrays = {"x": np.ones((10, 3)), "y": np.arange(10) % 2}
    np.savez(tmp_path / "a.npz", **arrays | {further: np.ones(10)})
    with pytest.raises(DataError, match=f"nothing uses the array '{further}'"):
        Npz(path="a.npz").load(tmp_path)


def test_columns_and_splits_of_a_saved_data_set_that_nothing_uses_are_printed(
    tmp_path: Path,
) -> None:
    table = {"image": [[1.0, 2.0]] * 4, "label": [0, 1, 0, 1], "weight": [1.0] * 4}
    for split in ("train", "test", "validation"):
        save(tmp_path / "set" / split, table)
    (tmp_path / "set" / "dataset_dict.json").write_text(
        '{"splits": ["train", "test", "validation"]}'
    )
    with collected_notes() as notes:
        HuggingFace(path="set").load(tmp_path)
    assert any("not used: weight, the split validation" in line for line in notes)
    state = json.loads((tmp_path / "set" / "train" / "state.json").read_text())
    (tmp_path / "set" / "train" / "state.json").write_text(
        json.dumps(state | {"_indices_data_files": [{"filename": "i"}]})
    )
    with pytest.raises(DataError, match="call flatten_indices"):
        HuggingFace(path="set").load(tmp_path)
