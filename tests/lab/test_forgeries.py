"""Forgeries that contradict the folder's own files, sealed again as a capable forger would: all
are found.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from safetensors.numpy import load_file, save_file

from fedsim.common.files import read_toml
from fedsim.lab.audit import CHECKS, audit
from fedsim.records import folder as files
from fedsim.testing import run
from fedsim.world.meters.energy import SETTING, TABLE
from tests.lab.test_audit import found, reseal

Forge = Callable[[Path], None]

ENERGY: dict[str, Any] = {
    "idle": "1 W",
    "compute": {"kind": "uniform", "low": "3 W", "high": "5 W"},
    "receive": "2 W",
    "send": "2 W",
    "send_byte": "1 J/MB",
    "tail": "1 W",
    "tail_lasts": "3 s",
    "server": {"idle": "20 W", "byte": "1 Wh/GB", "update": "2 J"},
    "carbon": {
        "zones": [
            {"intensity": [f"{300 + 10 * hour} g/kWh" for hour in range(24)], "share": 0.5},
            {"intensity": "100 g/kWh"},
        ]
    },
    "battery": {
        "capacity": {"kind": "lognormal", "median": "150 J", "spread": 1.5},
        "initial": {"kind": "uniform", "low": 0.5, "high": 1.0},
        "charge": "2 W",
        "charging": {"kind": "renewal", "mean_on": "1 min", "mean_off": "1 min"},
    },
}
WORLD: dict[str, Any] = {
    "seed": 4,
    "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 1.0}},
    "model": {"kind": "mlp", "hidden": [9]},
    "population": {
        "devices": 20,
        "speed": {"kind": "lognormal", "median": "40 samples/s", "spread": 2.0},
        "jitter": 0.2,
        "stragglers": {"share": 0.3, "factor": 0.5},
        "availability": {"kind": "renewal", "mean_on": "60 s", "mean_off": "10 s"},
    },
    "network": {
        "kind": "star",
        "protocol": "tcp",
        "server": {"down": "400 kbit/s", "up": "100 kbit/s"},
        "device": {
            "down": {"kind": "choice", "values": ["200 kbit/s", "100 kbit/s"]},
            "up": "20 kbit/s",
            "latency": "50 ms",
        },
    },
    "stop": {"rounds": 5, "simulated_time": "1 h"},
}
RUNS: dict[str, dict[str, Any]] = {
    "fedavg": WORLD
    | {"strategy": {"kind": "fedavg", "clients_per_round": 6, "local_epochs": 2}, "energy": ENERGY},
    "ditto": WORLD | {"strategy": {"kind": "ditto", "clients_per_round": 6}},
    "ifca": WORLD | {"strategy": {"kind": "ifca", "groups": 2, "clients_per_round": 6}},
    "fedbuff": WORLD
    | {
        "strategy": {"kind": "fedbuff", "concurrency": 6, "buffer": 3},
        "learning": "off",
        "stop": {"simulated_time": "2 min"},
    }
    | {"population": WORLD["population"] | {"samples": {"low": 20, "high": 200}}},
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The folders of honest runs, by their strategies; not to be changed."""
    place = tmp_path_factory.mktemp("honest")
    for name, sections in RUNS.items():
        run(sections, place / name)
    return {name: place / name for name in RUNS}


# What a forger does. Each changes one thing, and what follows from it in the figures that sum it
# up.


def say(folder: Path, key: str, value: Any) -> None:
    """Another value for a key of the scenario; None takes it away."""
    scenario = read_toml(folder / files.SCENARIO)
    *path, last = key.split(".")
    place: Any = scenario
    for part in path:
        place = place[int(part) if part.isdigit() else part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    (folder / files.SCENARIO).write_text(tomli_w.dumps(scenario), encoding="utf-8")
    summary = json.loads((folder / files.SUMMARY).read_text())
    summary |= {"seed": scenario["seed"], "strategy": scenario["strategy"]["kind"]}
    files.write_summary(folder, summary)


def column(
    folder: Path, name: str, key: str, change: Callable[[np.ndarray[Any, Any]], Any]
) -> None:
    """Another content for a column of numbers."""
    table = pq.read_table(folder / name)
    place = table.schema.get_field_index(key)
    field = table.schema.field(place)
    values = change(np.array(table[key].to_numpy()))
    pq.write_table(table.set_column(place, field, pa.array(values).cast(field.type)), folder / name)


def times(factor: float, only: int | None = None) -> Callable[[np.ndarray[Any, Any]], Any]:
    def change(values: np.ndarray[Any, Any]) -> Any:
        factors = (
            np.full(len(values), factor)
            if only is None
            else np.where(np.arange(len(values)) == only, factor, 1.0)
        )
        return (values * factors).astype(values.dtype)

    return change


def moved(amount: float) -> Callable[[np.ndarray[Any, Any]], Any]:
    """From the third to the second."""
    return lambda values: (
        values + amount * (np.arange(len(values)) == 1) - amount * (np.arange(len(values)) == 2)
    )


def record(
    folder: Path, kind: str, change: Callable[[dict[str, Any]], Any], step: str | None = None
) -> None:
    """Other data in the fifth record of a kind."""
    rows = pq.read_table(folder / files.EVENTS).to_pylist()
    row = [
        row
        for row in rows
        if row["kind"] == kind and (step is None or (row["step"], row["outcome"]) == (step, "done"))
    ][4]
    data = json.loads(row["data"])
    change(data)
    row["data"] = json.dumps(data, sort_keys=True, separators=(",", ":"))
    pq.write_table(
        pa.Table.from_pylist(rows, schema=pq.read_schema(folder / files.EVENTS)),
        folder / files.EVENTS,
    )


def setting(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / SETTING
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told, indent=1) + "\n")


def dirtier(folder: Path, factor: float) -> None:
    """Another intensity of the grid, in all books."""
    setting(
        folder,
        lambda told: [
            zone.update(hours=[factor * hour for hour in zone["hours"]]) for zone in told["zones"]
        ],
    )
    for name in (files.ROUNDS, TABLE):
        column(folder, name, "grams", times(factor))
    summary = json.loads((folder / files.SUMMARY).read_text())
    summary["energy"]["grams"] *= factor
    files.write_summary(folder, summary)


def no_model(folder: Path, name: str, member: str = "") -> None:
    """A file of models removed, or one model of it."""
    path = folder / files.MODELS / f"{name}.safetensors"
    kept = {
        key: values
        for key, values in load_file(path).items()
        if member and not key.startswith(f"{member}/")
    }
    path.unlink()
    if kept:
        save_file(kept, path)


def wider(folder: Path) -> None:
    """A layer with more outputs."""
    path = folder / files.MODELS / "global.safetensors"
    tensors = load_file(path)
    save_file(
        {
            key: np.concatenate([one, one]) if key.startswith("1.") else one
            for key, one in tensors.items()
        },
        path,
    )


OF_TRAINING: dict[str, Callable[[dict[str, Any]], Any]] = {
    "epochs": lambda data: data.update(epochs=1),
    "ends": lambda data: data.update(epoch_ends=data["epoch_ends"][:1]),
    "order": lambda data: data.update(epoch_ends=data["epoch_ends"][::-1]),
    "asked": lambda data: data.update(asked=1),
    "more": lambda data: data.update(epochs=3, asked=3),
    "sooner": lambda data: data.update(
        epoch_ends=[data["epoch_ends"][0], sum(data["epoch_ends"]) / 2]
    ),
}


SAID: dict[str, list[tuple[str, Any]]] = {
    "fedavg": [
        *(("strategy.clients_per_round", count) for count in (1, 3, 5)),
        *(("stop.rounds", count) for count in (1, 4, 9)),
        *(("stop.simulated_time", time) for time in ("1 s", "10 s")),
        ("stop.accuracy", 0.01),
        *(("model", {"kind": kind}) for kind in ("logistic", "femnist-mlp", "mnist-cnn", "cnn5")),
        ("model.hidden", [10]),
        ("seed", 5),
        ("population.speed.median", "80 samples/s"),
        ("population.speed.spread", 1.5),
        ("population.stragglers.share", 0.6),
        ("population.jitter.value", 0.1),
        ("network.device.down.values", ["200 kbit/s", "50 kbit/s"]),
        ("network.device.up.value", "40 kbit/s"),
        ("network.device.latency.value", "10 ms"),
        ("network.server.up", "10 kbit/s"),
        ("network.protocol.header", "40 B"),
        ("energy.battery.capacity.median", "300 J"),
        ("energy.battery.initial.low", 0.4),
        ("energy.battery.charge.value", "3 W"),
        ("energy.compute.high", "6 W"),
        ("energy.utilisation", 0.5),
        ("energy.tail_lasts.value", "4 s"),
        ("energy.send_byte.value", "2 J/MB"),
        ("energy.carbon.zones.1.intensity", ["200 g/kWh"] * 24),
        ("energy.carbon.zones.0.ahead", "1 h"),
        ("energy.starts", "2 h"),
        ("energy.server.idle", "10 W"),
        ("energy.server.update", "1 J"),
        ("energy.idle_while", "there"),
        ("energy", None),
    ],
    "fedbuff": [
        ("strategy.concurrency", 4),
        ("stop.simulated_time", "110 s"),
        ("stop.simulated_time", "3 min"),
        ("population.samples.high", 300),
    ],
    "ifca": [("strategy.kind", "fedavg"), ("strategy.clients_per_round", 5)],
}
DONE: dict[str, dict[str, Forge]] = {
    "fedavg": {
        **{
            f"speed x {factor}": partial(
                column, name=files.DEVICES, key="speed", change=times(factor)
            )
            for factor in (0.5, 2)
        },
        "one speed": partial(column, name=files.DEVICES, key="speed", change=times(1.1, 3)),
        **{
            f"samples x {factor}": partial(
                column, name=files.DEVICES, key="samples", change=times(factor)
            )
            for factor in (2, 3)
        },
        "links": partial(column, name=files.DEVICES, key="link_up", change=times(2)),
        "latency": partial(column, name=files.DEVICES, key="latency", change=times(0.5)),
        "capacity": partial(column, name=TABLE, key="capacity_j", change=times(2)),
        "one capacity": partial(column, name=TABLE, key="capacity_j", change=times(1.2, 7)),
        "zones": partial(column, name=TABLE, key="zone", change=lambda zone: 1 - zone),
        "joules": partial(column, name=files.ROUNDS, key="joules", change=moved(10.0)),
        "a joule": partial(column, name=files.ROUNDS, key="joules", change=moved(1.0)),
        "grams": partial(column, name=files.ROUNDS, key="grams", change=moved(1e-3)),
        "bytes": partial(column, name=files.ROUNDS, key="bytes_down", change=moved(1000.0)),
        "half the carbon": partial(dirtier, factor=0.5),
        "twice the carbon": partial(dirtier, factor=2.0),
        "server": partial(setting, change=lambda told: told["server"].update(j_byte=0.0)),
        "no model": partial(no_model, name="global"),
        "wider": wider,
        **{
            what: partial(record, kind="step-end", step="train", change=change)
            for what, change in OF_TRAINING.items()
        },
    },
    "ditto": {
        "no own models": partial(no_model, name="device"),
        "no common model": partial(no_model, name="global"),
    },
    "ifca": {
        "no group": partial(no_model, name="group", member="0"),
        "other groups": partial(
            column, name=files.DEVICES, key="group", change=lambda group: np.nan_to_num(group) + 7
        ),
    },
}
CASES: dict[str, tuple[str, Forge]] = {
    f"{of}: {key} = {json.dumps(value)[:40]}": (of, partial(say, key=key, value=value))
    for of, said in SAID.items()
    for key, value in said
} | {f"{of}: {name}": (of, forge) for of, forges in DONE.items() for name, forge in forges.items()}


OF_ENERGY = [name for name in CHECKS if "energy" in name or "battery" in name]


FEW = [
    *(
        "fedavg: strategy.clients_per_round = 5",
        "fedavg: stop.rounds = 4",
        'fedavg: stop.simulated_time = "10 s"',
    ),
    *(
        'fedavg: model = {"kind": "logistic"}',
        "fedavg: no model",
        "fedavg: one speed",
        "fedavg: samples x 2",
        "fedavg: epochs",
    ),
    *("fedavg: a joule", "fedavg: twice the carbon", "fedavg: one capacity", "fedavg: bytes"),
    'fedavg: network.protocol.header = "40 B"',
]
"""One of each kind."""


def passing(honest: Mapping[str, Path], place: Path, cases: Iterable[str]) -> Iterator[str]:
    """The forgeries that the audit does not find."""
    for name in cases:
        of, forge = CASES[name]
        folder = shutil.copytree(honest[of], place / "forged")
        forge(folder)
        reseal(folder)
        problems = {check: told for check, told in audit(folder).items() if told}
        if not problems:
            yield name
        assert "every file is there, whole and as it was sealed" not in problems, name
        assert not any(
            "cannot be checked" in text for told in problems.values() for text in told
        ), (name, problems)
        shutil.rmtree(folder)


def test_forgeries_of_each_kind_are_found(honest: Mapping[str, Path], tmp_path: Path) -> None:
    assert list(passing(honest, tmp_path, FEW)) == []


def test_sealed_again_and_not_changed_a_run_passes(
    honest: Mapping[str, Path], tmp_path: Path
) -> None:
    for of, whole in honest.items():
        reseal(shutil.copytree(whole, tmp_path / of))
        assert found(tmp_path / of) == set()


@pytest.mark.long
def test_all_forgeries_are_found(honest: Mapping[str, Path], tmp_path: Path) -> None:
    assert len(CASES) >= 70
    assert list(passing(honest, tmp_path, CASES)) == []


def test_a_damaged_table_of_energy_is_a_finding_and_no_warning(
    honest: Mapping[str, Path], tmp_path: Path
) -> None:
    """Numbers that are none, infinite or missing, and zones that do not exist: warnings are
    errors here.
    """
    folder = shutil.copytree(honest["fedavg"], tmp_path / "run")
    whole = pq.read_table(folder / TABLE)
    for name, wrong in zip(
        whole.column_names[1:], cycle((math.nan, math.inf, -math.inf, 1e308, None)), strict=False
    ):
        place = whole.schema.get_field_index(name)
        field = whole.schema.field(place)
        values = [wrong if field.type == pa.float64() else 10**6, *whole[name].to_pylist()[1:]]
        pq.write_table(whole.set_column(place, field, pa.array(values, field.type)), folder / TABLE)
        assert found(folder, OF_ENERGY), (name, wrong)
