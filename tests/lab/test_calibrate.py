"""fedsim calibrate, as a user meets it: a known world is found again; real rounds, of the kept
study too, are predicted.
"""

import json
import socket
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

import fedsim
from fedsim.cli import main
from fedsim.lab.calibrate import calibrate
from fedsim.lab.calibrate.log import LogDefaults, read_log
from fedsim.lab.calibrate.tasks import durations
from fedsim.running.scenarios.validation import real_rounds
from fedsim.world.network.protocol import Tcp
from tests.conftest import module_at
from tests.lab.test_log import DEVICES, round_s, rounds, written

REAL = Path(__file__).resolve().parents[3] / "shared" / "oracles" / "realrun"
WORLD: dict[str, Any] = {
    "seed": 5,
    "learning": "off",
    "model": {"kind": "size", "bytes": "2 MB"},
    "population": {
        "devices": 12,
        "samples": {"low": 50, "high": 300},
        "speed": {"kind": "lognormal", "median": "30 samples/s", "spread": 1.8},
    },
    "network": {
        "kind": "star",
        "server": {"up": "20 Mbit/s"},
        "device": {
            "down": {"kind": "lognormal", "median": "20 Mbit/s", "spread": 1.6},
            "up": {"kind": "lognormal", "median": "8 Mbit/s", "spread": 1.6},
        },
    },
    "strategy": {"kind": "fedavg", "clients_per_round": 7, "local_epochs": 2},
    "stop": {"rounds": 24},
}


def call(*words: object) -> Result:
    return CliRunner().invoke(main, ["calibrate", *map(str, words)])


def calibrated(log: Path, out: Path, *words: object) -> str:
    result = call(log, "--out", out, *words)
    assert result.exit_code == 0, result.output
    return result.output


def table(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    columns = pd.read_csv(path)
    return {name: columns[name].to_numpy(float) for name in columns if name != "client"}


def of_devices(run: Path) -> dict[str, np.ndarray[Any, Any]]:
    columns = pd.read_parquet(run / "devices.parquet")
    return {name: columns[name].to_numpy() for name in ("speed", "link_down", "link_up", "samples")}


def errors(run: Path) -> np.ndarray[Any, Any]:
    found = table(run / "rounds.csv")
    held = found["held_out"] == 1
    assert 0 < held.sum() < len(held)
    return np.asarray(np.abs(found["predicted"] / found["measured"] - 1)[held])


def test_a_world_of_fedsims_own_is_found_again(
    tmp_path: Path, made: Callable[[dict[str, Any], Path], Path]
) -> None:
    run, out = made(WORLD, tmp_path / "run"), tmp_path / "out"
    calibrated(run, out)
    true, found = of_devices(run), table(out / "clients.csv")
    np.testing.assert_allclose(found["speed"], true["speed"], rtol=0.02)
    np.testing.assert_allclose(found["down"], true["link_down"], rtol=0.02)
    np.testing.assert_array_equal(found["samples"], true["samples"])
    # the fastest are always held up by the server's link
    assert np.median(np.abs(found["up"] / true["link_up"] - 1)) < 0.02
    scenario = fedsim.load(out / "scenario.toml")
    assert scenario.network.server.up == pytest.approx(20 * 125e3, rel=0.02)  # type: ignore[union-attr]
    assert scenario.network.server.down == np.inf  # type: ignore[union-attr]
    said = scenario.strategy.model_dump()
    assert (said["clients_per_round"], said["local_epochs"]) == (7, 2)
    assert errors(out).mean() < 0.01


def of_tcp(server: dict[str, str]) -> dict[str, Any]:
    device = WORLD["network"]["device"] | {"latency": "40 ms"}
    return WORLD | {
        "network": WORLD["network"] | {"protocol": "tcp", "server": server, "device": device}
    }


def test_a_world_of_tcp_is_found_again(
    tmp_path: Path, made: Callable[[dict[str, Any], Path], Path]
) -> None:
    """Links by what is on the wire, with slow start taken off; the protocol is the run's, and is
    written.
    """
    everyone = {"kind": "fedavg", "clients_per_round": 12, "local_epochs": 2}
    run, out = (
        made(of_tcp({}) | {"strategy": everyone, "stop": {"rounds": 6}}, tmp_path / "run"),
        tmp_path / "out",
    )
    calibrated(run, out, "--latency", "40 ms", "--by-client")
    true, found = of_devices(run), table(out / "clients.csv")
    np.testing.assert_allclose(found["down"], true["link_down"], rtol=0.02)
    np.testing.assert_allclose(found["up"], true["link_up"], rtol=0.02)
    assert errors(out).max() < 0.01
    scenario = fedsim.load(out / "scenario.toml")
    assert scenario.network.protocol == Tcp()
    again = fedsim.run(scenario, tmp_path / "again")
    before = pd.read_parquet(run / "rounds.parquet")["time"]
    np.testing.assert_allclose(again.rounds["time"], before, rtol=0.02)
    calibrated(run, out, "--latency", "40 ms", "--protocol", "fluid")
    # as if headers were not there
    assert (table(out / "clients.csv")["up"] < 0.96 * true["link_up"]).all()


def test_a_limit_at_the_server_is_found_behind_tcp(
    tmp_path: Path, made: Callable[[dict[str, Any], Path], Path]
) -> None:
    """Shares differ by chance there, so that it is found by what all send together."""
    run, out = (
        made(of_tcp({"up": "20 Mbit/s"}) | {"stop": {"rounds": 12}}, tmp_path / "run"),
        tmp_path / "out",
    )
    calibrated(run, out, "--latency", "40 ms", "--by-client")
    scenario = fedsim.load(out / "scenario.toml")
    assert scenario.network.server.up == pytest.approx(20 * 125e3, rel=0.02)  # type: ignore[union-attr]
    assert errors(out).mean() < 0.03


def with_clients(count: int, server: dict[str, str]) -> dict[str, Any]:
    """Rounds of all of ``count`` clients, whose own links differ behind a link of the server."""
    down = {"kind": "lognormal", "median": "12 Mbit/s", "spread": 1.5}
    return WORLD | {
        "seed": 3,
        "population": {
            "devices": count,
            "speed": "100 samples/s",
            "samples": {"low": 60, "high": 60},
        },
        "network": {"kind": "star", "server": server, "device": {"down": down, "up": "8 Mbit/s"}},
        "strategy": {"kind": "fedavg", "clients_per_round": count, "local_epochs": 1},
        "stop": {"rounds": 9},
    }


@pytest.mark.parametrize("server", [{}, {"down": "50 Mbit/s"}, {"up": "16 Mbit/s"}])
def test_rounds_of_other_counts_of_clients_lie_in_the_intervals(
    server: dict[str, str], tmp_path: Path, made: Callable[[dict[str, Any], Path], Path]
) -> None:
    """Fast clients that share a link look as if they had equal links of their own."""
    run = made(with_clients(8, server), tmp_path / "run")
    told = calibrated(run, tmp_path / "out")
    for count in (4, 16):
        line = next(line for line in told.splitlines() if f"outlook    with {count} " in line)
        least, _, most = line.rpartition(" take ")[2].removesuffix(" s").split()
        rounds = fedsim.run(fedsim.Scenario(**with_clients(count, server))).rounds["time"]
        assert float(least) <= 1.001 * np.diff(rounds).mean()
        assert float(most) >= 0.999 * np.diff(rounds).mean()


def test_a_buffered_server_is_found_again(
    tmp_path: Path, made: Callable[[dict[str, Any], Path], Path]
) -> None:
    population = WORLD["population"] | {"jitter": 0.1}
    strategy = {"kind": "fedbuff", "concurrency": 5, "buffer": 4, "local_epochs": 2}
    run, out = (
        made(WORLD | {"population": population, "strategy": strategy}, tmp_path / "run"),
        tmp_path / "out",
    )
    told = calibrated(run, out)
    scenario = fedsim.load(out / "scenario.toml")
    said = scenario.strategy.model_dump()
    assert (said["kind"], said["concurrency"], said["buffer"]) == ("fedbuff", 5, 4)
    jitter = tomllib.loads((out / "scenario.toml").read_text())["population"]["jitter"]
    assert jitter == pytest.approx(0.1, rel=0.3)  # of a hundred trainings
    line = next(line for line in told.splitlines() if "updates/s" in line)
    assert float(line.rpartition("error ")[2].rstrip("%")) < 10


@pytest.mark.parametrize("name", ["own", "cell", "own20ms", "small20ms", "equal"])
def test_real_rounds_are_predicted(name: str, tmp_path: Path) -> None:
    if not REAL.is_dir():
        pytest.skip("needs the logs of real rounds, shared/oracles/realrun")
    size = json.loads((REAL / "worlds.json").read_text())[name]["bytes"]
    told = calibrated(
        REAL / f"{name}-cubic.csv", tmp_path / "out", "--bytes", f"{size} B", "--samples", 100
    )
    assert "columns that are not used: retrans, srtt_us" in told
    # found as one link that all share evenly, where the first flow really keeps more
    allowed = {"equal": 0.05}
    assert errors(tmp_path / "out").mean() < allowed.get(name, 0.01)


def test_rounds_without_noise(tmp_path: Path) -> None:
    path = written(tmp_path / "a log.csv", rounds(9))
    assert "all clients are in every round" in calibrated(path, tmp_path / "out")
    found = table(tmp_path / "out" / "rounds.csv")
    assert np.flatnonzero(found["held_out"]).tolist() == [2, 5, 8]
    np.testing.assert_allclose(found["predicted"], round_s(), rtol=1e-6)
    np.testing.assert_allclose(found["measured"], round_s(), rtol=1e-6)
    scenario = fedsim.load(tmp_path / "out" / "scenario.toml")
    assert scenario.population.devices == 3
    assert scenario.population.speed.median == pytest.approx(
        np.prod([device[0] for device in DEVICES]) ** (1 / 3), rel=1e-4
    )  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["log.csv", "--bytes", "2"], "'2'"),
        (["log.csv", "--latency", "2 parsecs"], "a time is a number and a unit out of"),
        (["log.csv", "--protocol", "udp"], "tcp"),
        (["folder"], "is not a run folder"),
    ],
)
def test_mistakes(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "log.csv", rounds(3))
    (tmp_path / "folder").mkdir()
    result = call(*words, "--out", "out")
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "out").exists()


STUDY = Path(__file__).resolve().parents[2] / "scenarios" / "validation"
WORLDS: dict[str, dict[str, Any]] = tomllib.loads((STUDY / "worlds.toml").read_text())


@pytest.fixture(scope="module")
def testbed() -> ModuleType:
    return module_at(STUDY / "testbed.py")


def played(testbed: ModuleType, world: dict[str, Any], path: Path) -> None:
    pairs = [socket.socketpair() for _ in world["clients"]]
    clients = [
        threading.Thread(target=testbed.client, args=(world, number, pair[1]))
        for number, pair in enumerate(pairs)
    ]
    for client in clients:
        client.start()
    served = {
        testbed._ORDER.unpack(testbed._receive(pair[0], testbed._ORDER.size))[0]: pair[0]
        for pair in pairs
    }
    testbed.write(path, testbed.Server(world, served).serve())
    for client in clients:
        client.join()
    for pair in pairs:
        for end in pair:
            end.close()


def test_rounds_and_versions_are_written_down(
    testbed: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testbed, "_PAUSE_S", 0.0)
    world = {"bytes": 200_000, "rounds": 4, "clients": [{"train": 0.02}, {"train": 0.05}]}
    played(testbed, world, tmp_path / "rounds.csv")
    log = read_log(tmp_path / "rounds.csv", LogDefaults())
    assert log.synchronous
    assert log.tasks.number.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (log.rounds.end - log.rounds.start >= 0.05).all()
    assert (durations(log.tasks.train)[log.tasks.client == 0] >= 0.02).all()
    assert set(log.tasks.up.amount) == {200_000}

    played(testbed, world | {"buffer": 3}, tmp_path / "versions.csv")
    log = read_log(tmp_path / "versions.csv", LogDefaults())
    assert log.rounds.number.tolist() == [0, 1, 2, 3]
    # four versions of three, and who is at work at the end
    assert 12 <= len(log.tasks.client) <= 13


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="only Linux has it")
@pytest.mark.parametrize(("world", "name"), [({}, "cubic"), ({"congestion": "reno"}, "reno")])
def test_connections_of_the_testbed_have_their_control_from_the_first_packet_on(
    testbed: ModuleType, world: dict[str, Any], name: str
) -> None:
    with testbed.listen(world, ("127.0.0.1", 0)) as door:
        assert testbed.congestion_of(door) == name
        with testbed.connect(world, door.getsockname()) as here, door.accept()[0] as there:
            assert testbed.congestion_of(here) == testbed.congestion_of(there) == name


@pytest.mark.parametrize("name", WORLDS)
def test_kept_logs_are_of_their_worlds(name: str) -> None:
    world, log = WORLDS[name], read_log(STUDY / "logs" / f"{name}.csv", LogDefaults())
    assert (STUDY / "logs" / f"{name}.csv").stat().st_size < 20_000
    assert log.clients == tuple(str(number) for number in range(len(world["clients"])))
    assert len(log.rounds.number) == world["rounds"]
    assert log.synchronous == ("buffer" not in world)
    assert set(log.tasks.down.amount) == {world["bytes"]}
    assert len(json.loads((STUDY / "logs" / "index.json").read_text())[name]["load"]) == 2
    for number, client in enumerate(world["clients"]):
        own = log.tasks[log.tasks.client == number]
        if "train" in client:
            assert np.median(durations(own.train)) == pytest.approx(client["train"], abs=0.01)
        # no link carries more than it can, but for a burst
        for way, steps in (("down", own.down), ("up", own.up)):
            least = client["latency"] / 1e3 + (world["bytes"] * 1514 / 1448 - 20_000) / (
                client[way] * 125e3
            )
            assert durations(steps).min() > least


# rounds of these differ by whom a full queue hits, which a calibrated world does not have
BY_LOSSES = ("near-far", "far-slow", "mixed-rates")


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, world in WORLDS.items()
        if "buffer" not in world and name not in ("torch", *BY_LOSSES)
    ],
)
def test_held_out_rounds_of_the_kept_logs_are_predicted(name: str, tmp_path: Path) -> None:
    calibrate(STUDY / "logs" / f"{name}.csv", tmp_path / "out", LogDefaults())
    # as far as rounds of these are from each other
    apart = {"fair": 0.06, "twelve": 0.08, "twelve-torch": 0.09}
    assert errors(tmp_path / "out").mean() < apart.get(name, 0.02)


@pytest.mark.parametrize("name", ["mixed", "small", "buffered", "torch"])
def test_worlds_that_are_told_to_fedsim_take_as_long(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By preset ``tcp``, with nothing fitted but how long trainings take."""
    compare = module_at(STUDY / "compare.py")
    monkeypatch.setattr(compare, "SEEDS", range(1, 2))
    (found,) = compare.compared(name, WORLDS[name], models=("tcp",))
    assert abs(found.error) < 0.02
    assert abs(found.late_error) < 0.02


def test_the_table_of_real_rounds_has_every_world_misses_first() -> None:
    rows = [*real_rounds.read(real_rounds.TESTBED), *real_rounds.read(real_rounds.OTHERS)]
    assert {row.world for row in rows} >= set(WORLDS)
    assert {row.world for row in rows} == set(real_rounds.read_known())
    errors = {row.world: row for row in rows if row.model == "window"}
    names = real_rounds.misses_first(rows)
    worst = [max(abs(errors[name].error), abs(errors[name].late_error)) for name in names]
    assert worst == sorted(worst, reverse=True)
    lines = real_rounds.table(rows)[2:]
    assert [line.split(" | ")[0] for line in lines] == [f"| {name}" for name in names]
    of_models = real_rounds.table_of_models(rows)[2:]
    assert [line.split(" | ")[1] for line in of_models] == [str(len(names))] * 3
    assert len(real_rounds.table_of_predicted(rows)) == 2 + 3


def test_the_page_of_evidence_has_the_real_rounds() -> None:
    rows = [*real_rounds.read(real_rounds.TESTBED), *real_rounds.read(real_rounds.OTHERS)]
    page = (STUDY.parents[1] / "docs" / "validation.md").read_text()
    for line in (*real_rounds.table(rows), *real_rounds.table_of_models(rows)):
        assert line in page


def test_percentiles_are_of_single_runs() -> None:
    slow_start = np.array([3.0, 1.0, 1.0, 1.0])
    one, five = (real_rounds.mean_and_late([slow_start] * runs) for runs in (1, 5))
    assert one == pytest.approx(five)


def test_the_page_of_evidence_has_every_study_of_others_measurements() -> None:
    evidence = module_at(STUDY.parent / "outside" / "evidence.py")
    page = (STUDY.parents[1] / "docs" / "validation.md").read_text()
    for path in sorted((STUDY.parent / "outside").glob("*/predicted.csv")):
        rows = [evidence.Row(path.parent.name, of) for of in evidence.read(path)]
        assert rows
        assert all(row.of.predicted >= 0 for row in rows)
        assert "rule" in (path.parent / "README.md").read_text()
        assert path.parent.name in page
        assert len(evidence.table(rows)) > 2
