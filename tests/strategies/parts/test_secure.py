"""Secure aggregation against the paper's counts."""

from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedsim.strategies.parts.secure import SecureAggregation
from fedsim.testing import StrategyContract
from tests.strategies.runs import initial_weights, model_after, model_of, moved, of_kind, played, ran, told, weights
from tests.strategies.worlds import ROTATED, world

SECURE = {"neighbours": 4, "key": "32 B", "share": "48 B"}
D = 650


def fedavg(**others: Any) -> dict[str, Any]:
    return {"kind": "fedavg", "clients_per_round": 8, "secure_aggregation": SECURE} | others


@pytest.mark.parametrize(("neighbours", "k"), [(4, 4), (None, 7)])
def test_a_client_moves_what_the_paper_counts(tmp_path: Path, neighbours: int | None, k: int) -> None:
    """Per client and round (2 k + 2) keys, 5 k shares and d numbers up, beside the model that comes down."""
    secure = {name: value for name, value in SECURE.items() if name != "neighbours"} | ({"neighbours": k} if neighbours else {})
    run = ran(world(ROTATED, 12, fedavg(secure_aggregation=secure), 2), tmp_path / "run")
    phases = {"secure-keys": (2 * k + 2) * 32, "secure-shares": 4 * k * 48, "secure-unmask": k * 48}
    sent = {"model": 4 * D, "update": 4 * D} | phases
    assert moved(run) == {purpose: 2 * 8 * size for purpose, size in sent.items()}


def test_what_is_learnt_is_the_same(tmp_path: Path) -> None:
    training = {"batch_size": 10_000}  # whole batches: the order of others is another draw, as devices have had more tasks
    secure, plain = (world(ROTATED, 12, how, 3, training=training) for how in (fedavg(), fedavg(secure_aggregation=None)))
    assert model_after(secure) == pytest.approx(model_after(plain), abs=1e-6)


def test_a_round_lasts_for_its_phases(tmp_path: Path) -> None:
    """Keys up; keys down and shares up; shares and model down, training, update up; shares up; then 8 masks."""
    up, down, latency, k = 1_000.0, 2_000.0, 0.5, 4
    network = {"kind": "star", "device": {"up": "8 kbit/s", "down": "16 kbit/s", "latency": "500 ms"}}
    strategy, people = fedavg(secure_aggregation=SECURE | {"mask_rate": "16 kbit/s"}), {"speed": "100 samples/s"}
    run = ran(world(ROTATED, 8, strategy, 1, population=people, network=network), tmp_path / "run")
    before = (64 / up + latency) + (2 * k * 32 / down + latency + 2 * k * 48 / up + latency)
    most = max(row["samples"] for row in run.devices) / 100
    training = (2 * k * 48 + 4 * D) / down + latency + most + 4 * D / up + latency
    after = k * 48 / up + latency + 8 * 4 * D / 2_000
    assert run.rounds[0]["time"] == pytest.approx(before + training + after, abs=1e-5)
    (begin,) = of_kind(run, "round-start")
    assert begin["time"] == pytest.approx(before, abs=1e-5)


def test_who_drops_out_costs_a_mask_for_each_neighbour_and_is_not_in_the_sum() -> None:
    secure = SecureAggregation(neighbours=2, mask_rate="4 B/s")
    graph = secure.graph([5, 3, 8, 1])
    assert graph == {5: [1, 3], 3: [5, 8], 8: [3, 1], 1: [8, 5]}
    assert secure.recovery_s(graph, [5, 3, 8, 1], [5, 3, 8, 1], 10) == 10 * 4
    assert secure.recovery_s(graph, [5, 3, 8, 1], [5, 3, 8], 10) == 10 * (3 + 2)
    assert secure.recovery_s(graph, [5, 3, 8, 1], [5, 8], 10) == 10 * (2 + 2 + 2)
    assert secure.recovery_s(graph, [5, 3, 8], [5, 3, 8], 10) == 10 * 3  # who sent no shares has no mask


def test_a_sum_is_read_with_enough_shares_of_every_secret() -> None:
    secure = SecureAggregation(neighbours=2, threshold=0.6)
    graph = secure.graph([5, 3, 8, 1])
    everybody = [5, 3, 8, 1]
    assert secure.can_be_read(graph, everybody, everybody)
    assert not secure.can_be_read(graph, everybody, [5, 3, 8])  # of 5 and 8 one share each
    assert secure.can_be_read(graph, [5, 3, 8], [5, 3, 8])
    half = SecureAggregation(neighbours=2)
    assert half.can_be_read(graph, everybody, [5, 3])
    assert not half.can_be_read(graph, everybody, [5, 8])  # of 5 and 8 none


def unread(strategy: dict[str, Any], devices: int, rounds: int, slow: float) -> dict[str, Any]:
    """Devices that are slow come too late for the last phase: their shares are missing."""
    secure = SECURE | {"threshold": 1.0, "patience": "1 s", "share": "20 B"}
    speed = {"kind": "choice", "values": ["1000 samples/s", "10 samples/s"], "shares": [1 - slow, slow]}
    network = {"kind": "star", "server": {"up": "1 Mbit/s"}, "device": {"up": "8 kbit/s"}}
    strategy = strategy | {"secure_aggregation": secure}
    return world(ROTATED, devices, strategy, rounds, population={"speed": speed}, network=network)


def test_a_round_that_cannot_be_read_changes_no_model() -> None:
    sections = unread({"kind": "fedavg", "clients_per_round": 8, "deadline": "6 s"}, 8, 2, slow=0.5)
    run, records = played(sections)
    assert told(records, "round")[0]["valid"] < 8
    assert {weight for fields in told(records, "aggregate") for weight in fields["weights"]} == {0.0}
    assert (initial_weights(sections) == model_of(run)).all()


@pytest.mark.parametrize(("kind", "parts"), [("fedavg", 1.0), ("scaffold", 2.0), ("fedper", None)])
def test_masks_are_made_for_all_numbers_that_are_sent(tmp_path: Path, kind: str, parts: float | None) -> None:
    """Of FedPer, with a hidden layer of 20, the first layer alone."""
    network = {"kind": "star", "device": {"up": "100 Mbit/s", "down": "100 Mbit/s"}}
    model = {"model": {"kind": "mlp", "hidden": [20]}} if parts is None else {}
    numbers = 64 * 20 + 20 if parts is None else parts * D
    rounds = []
    for rate in (None, "40 kB/s"):
        strategy = {"kind": kind, "clients_per_round": 8, "secure_aggregation": SECURE | {"mask_rate": rate}}
        run = ran(world(ROTATED, 8, strategy, 1, network=network, **model), tmp_path / f"{rate is None}")
        rounds.append(run.rounds[0]["time"])
    assert rounds[1] - rounds[0] == pytest.approx(8 * 4 * numbers / 40_000, abs=1e-6)


@pytest.mark.parametrize(("kind", "state"), [("scaffold", "control"), ("feddyn", "moved")])
def test_devices_take_back_what_the_server_could_not_read(kind: str, state: str) -> None:
    """The server's c (s) is the sum of the devices' c_i (s_k) over N, where some sums were read and others were not."""
    run, records = played(unread({"kind": kind, "clients_per_round": 5, "deadline": "9 s"}, 12, 8, slow=0.1))
    assert {any(fields["weights"]) for fields in told(records, "aggregate")} == {True, False}
    own = []
    for number, remembered in run.dispatch.devices.states.items():
        now = remembered["before_sum"] if number in run.strategy.state.get("take_back", ()) else remembered
        own += [now[state]] if state in now else []
    server, *devices = weights(run, [run.strategy.state[state], *own])
    assert sum(devices) / 12 == pytest.approx(server, abs=1e-5)
    assert abs(server).max() > 1e-3


class TestContract(StrategyContract):
    strategy: ClassVar[dict[str, Any]] = {
        "kind": "scaffold",
        "clients_per_round": 7,
        "deadline": "20 s",
        "selection": {"kind": "power-of-choice", "candidates": 8, "patience": "20 s"},
        "secure_aggregation": {"neighbours": 4, "patience": "5 s", "mask_rate": "100 kB/s"},
    }
