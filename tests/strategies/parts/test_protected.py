"""Private averaging: what is clipped, how much noise there is, what it costs; secure aggregation
against the paper's counts.
"""

import asyncio
import importlib.util
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedsim
from fedsim.plugin import Server
from fedsim.strategies.parts.secure import SecureAggregation
from fedsim.toolbox.aggregation import private
from fedsim.toolbox.aggregation.private import Private, epsilon
from tests.strategies.runs import (
    initial_weights,
    made,
    model_after,
    model_of,
    moved,
    of_kind,
    played,
    ran,
    told,
    weights,
)
from tests.strategies.worlds import ROTATED, world

Floats = NDArray[np.float64]

needs_accounting = pytest.mark.skipif(
    importlib.util.find_spec("dp_accounting") is None, reason="the extra 'privacy' is not installed"
)
IID: dict[str, Any] = {"source": "digits", "partition": "iid"}
FEDAVG: dict[str, Any] = {"kind": "fedavg", "clients_per_round": 6, "local_epochs": 1}


def fedavg(**how: Any) -> dict[str, Any]:
    return FEDAVG | {"aggregation": {"kind": "private", "account": False} | how}


@pytest.fixture
def server() -> Server:
    return made({"population": {"devices": 10}}).server


def rounds(
    server: Server, how: Private, changes: list[list[Floats]]
) -> Iterator[tuple[Floats, float]]:
    """The change of the model in each round, of updates that differ from a model by ``changes``;
    and the clip after it.
    """
    state = how.State()
    model = server.models.initial()
    before = asyncio.run(server.models.value(model)).astype(np.float64)
    for number, of_round in enumerate(changes):
        updates = [server.models.given(before + change) for change in of_round]
        entries = [
            {"update": one, "start": model, "task": 100 * number + at}
            for at, one in enumerate(updates)
        ]
        found = how.combine(server, state, entries, how.weights(entries), model)
        clip = how.clip
        if state.clip is not None:
            clip = float(asyncio.run(server.models.value(state.clip))[0])
        yield asyncio.run(server.models.value(found)) - before, clip


def drawn(count: int, length: float, seed: int = 1) -> list[Floats]:
    """Changes of a given length."""
    normal = np.random.default_rng(seed).normal(size=(count, 650))
    return list(length * normal / np.linalg.norm(normal, axis=1, keepdims=True))


def test_what_is_too_long_is_cut_to_the_clip_and_nothing_else() -> None:
    assert private.clipped(np.array([3.0, 4.0]), 1.0) == pytest.approx([0.6, 0.8], abs=1e-15)
    for length in (1e-3, 0.99, 1.0, 1.01, 1e20):
        (one,) = drawn(1, length)
        found = private.clipped(one.astype(np.float32), 1.0)
        assert np.linalg.norm(found) <= 1.0 + 1e-12
        assert found / np.linalg.norm(found) == pytest.approx(one / length, abs=1e-6)
    assert not private.clipped(np.zeros(3), 1.0).any()


def test_without_noise_it_is_the_mean_of_clipped_changes(server: Server) -> None:
    changes = [*drawn(2, 0.5), *drawn(2, 4.0, seed=2)]
    expected = (changes[0] + changes[1] + (changes[2] + changes[3]) / 4) / 4
    for divide_by, share in ((None, 1.0), (8, 0.5)):
        ((found, _),) = rounds(
            server, Private(noise=0.0, divide_by=divide_by, account=False), [changes]
        )
        assert found == pytest.approx(expected * share, abs=1e-6)


def test_an_update_that_is_not_finite_is_left_out(server: Server) -> None:
    changes = drawn(3, 0.5)
    for adaptive in (None, {"count_noise": 0.0}):
        how = Private(noise=0.0, account=False, adaptive=adaptive)
        ((found, clip),) = rounds(server, how, [[changes[0], np.full(650, np.nan), changes[2]]])
        assert found == pytest.approx((changes[0] + changes[2]) / 2, abs=1e-6)
        assert clip == pytest.approx(1.0 if adaptive is None else math.exp(-0.2 * 0.5))
        ((found, _),) = rounds(server, how, [[np.full(650, np.nan)]])
        assert not found.any()


@pytest.mark.parametrize(("divide_by", "expected"), [(None, 0.7 * 2.0 / 4), (10, 0.7 * 2.0 / 10)])
def test_the_noise_of_the_server_is_what_is_said(
    server: Server, divide_by: int | None, expected: float
) -> None:
    how = Private(noise=0.7, clip=2.0, divide_by=divide_by, account=False)
    still = [np.zeros(650)] * 4
    noise = np.concatenate([found for found, _ in rounds(server, how, [still] * 100)])
    assert noise.std() == pytest.approx(expected, rel=0.01)
    assert abs(noise.mean()) < 4 * expected / math.sqrt(len(noise))


def test_the_noise_of_the_devices_is_what_is_said() -> None:
    """Each brings its own, so that the mean of n has z C / sqrt(n)."""
    strategy = fedavg(where="local", noise=0.5, clip=3.0) | {"clients_per_round": 40}
    sections = world(IID, 40, strategy, 4, training={"lr": 1e-9})
    run, records = played(sections)
    noise = model_of(run) - initial_weights(sections)
    assert noise.std() == pytest.approx(0.5 * 3.0 / math.sqrt(40) * 2, rel=0.1)  # of four rounds
    discrepancies = [fields["discrepancy_start"] for fields in told(records, "round")]
    # of 40 times 650 draws each
    assert discrepancies == pytest.approx([0.5 * 3.0 * math.sqrt(650)] * 4, rel=0.01)


def test_the_clip_follows_the_quantile_by_hand(server: Server) -> None:
    lengths = [0.2, 0.4, 0.6, 3.0]
    changes = [drawn(1, length, seed)[0] for seed, length in enumerate(lengths)]
    how = Private(
        noise=0.0,
        clip=1.0,
        adaptive={"quantile": 0.25, "lr": 0.5, "count_noise": 0.0},
        account=False,
    )
    clip = 1.0
    for found, after in rounds(server, how, [changes] * 12):
        expected = (
            sum(
                min(1, clip / length) * change
                for length, change in zip(lengths, changes, strict=True)
            )
            / 4
        )
        assert found == pytest.approx(expected, abs=1e-6)
        clip *= math.exp(-0.5 * (np.mean([length <= clip for length in lengths]) - 0.25))
        assert after == pytest.approx(clip, rel=1e-6)
    assert 0.15 < clip < 0.45


def test_the_count_has_noise_which_is_paid_by_that_of_the_sum() -> None:
    how = Private(noise=1.0, adaptive={"count_noise": 2.0}, account=False)
    assert how.noise_of_sum**-2 + (2 * 2.0) ** -2 == pytest.approx(1.0**-2)
    assert Private(noise=1.0, account=False).noise_of_sum == 1.0
    draw, changes = np.random.default_rng(1), [np.zeros(3, np.float32)] * 10
    clips = [
        private.adapted_clip(changes, 1.0, 0.5, 1.0, 2.0, None, draw)[0] for _ in range(20_000)
    ]
    noise = (0.5 - np.log(clips) - 1) * 10  # all ten are short
    assert noise.std() == pytest.approx(2.0, rel=0.02)
    assert abs(noise.mean()) < 0.06


def present(folder: Path, devices: int) -> dict[str, Any]:
    """Only the first devices are ever there."""
    rows = "".join(f"{device},0,1000000\n" for device in range(devices))
    (folder / "there.csv").write_text("device,start,end\n" + rows)
    return {"availability": {"kind": "intervals", "file": str(folder / "there.csv"), "unit": "s"}}


@needs_accounting
@pytest.mark.parametrize(
    ("strategy", "there", "uniform_rounds"),
    [
        ({}, 12, 6),
        ({"over_selection": 4 / 3, "clients_per_round": 3}, 12, 6),
        ({}, 4, 0),
        ({"selection": "least-asked"}, 12, 0),
        ({"selection": "least-available"}, 12, 0),
        ({"selection": {"kind": "fedcs", "time": "1 h"}}, 12, 0),
        ({"kind": "tifl", "tiers": 2}, 12, 0),
        ({"kind": "refl", "selection": "random", "stale_weights": "equal"}, 12, 0),
        ({"kind": "ifca", "groups": 1, "local_epochs": 1}, 12, 3),  # half of the rounds sweep
    ],
    ids=str,
)
def test_epsilon_counts_how_clients_were_drawn(
    tmp_path: Path, strategy: dict[str, Any], there: int, uniform_rounds: int
) -> None:
    """4 of 12 devices, z = 1, six rounds, by Renyi's theory: 2.23 if each was drawn at random
    from all, 7.27 if none was.
    """
    asked = FEDAVG | {"clients_per_round": 4, "aggregation": {"kind": "private"}} | strategy
    run = ran(world(IID, 12, asked, 6, population=present(tmp_path, there)), tmp_path / "run")
    told = [row["epsilon"] for row in run.rounds]
    if uniform_rounds == 3:
        assert 4.0 < told[2] < told[-1] < 6.0
    else:
        assert told[-1] == pytest.approx(2.227 if uniform_rounds else 7.271, abs=1e-3)
    assert sorted(set(told)) == told


def test_how_many_answer_does_not_change_what_one_counts(tmp_path: Path, server: Server) -> None:
    """Of six clients that are wanted three are ever there: the model moves by half the clip at
    most, and so does b.
    """
    how = fedavg(noise=0.0, clip=1e-3)
    sections = world(IID, 12, how, 1, population=present(tmp_path, 3))
    assert (
        0.3e-3
        < np.linalg.norm(model_after(sections).astype(np.float64) - initial_weights(sections))
        < 0.501e-3
    )
    private = Private(
        noise=0.0, account=False, adaptive={"count_noise": 0.0, "lr": 1.0}
    ).for_rounds_of(10)
    ((_, clip),) = rounds(server, private, [drawn(4, 0.5)])
    assert clip == pytest.approx(math.exp(-4 * 0.5 / 10))
    assert Private(where="local", account=False).for_rounds_of(10).divide_by is None  # type: ignore[attr-defined]


@needs_accounting
@pytest.mark.parametrize(
    ("noise", "rounds", "q"), [(1.0, 1, 1.0), (0.7, 9, 1.0), (1.1, 3, 0.2), (0.8, 10, 0.02)]
)
def test_epsilon_is_dp_accountings_own(noise: float, rounds: int, q: float) -> None:
    """However the rounds are counted, and by Renyi's theory above the nearly exact one."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    found, event = [], PoissonSampledDpEvent(q, GaussianDpEvent(noise))
    draws = {(round(100 * q), 100): rounds - rounds // 2} | (
        {(round(200 * q), 200): rounds // 2} if rounds > 1 else {}
    )
    for name, accountant in (("rdp", RdpAccountant()), ("pld", PLDAccountant())):
        found.append(accountant.compose(event, rounds).get_epsilon(1e-3))
        assert epsilon(noise, draws, 1e-3, name) == pytest.approx(found[-1], rel=3e-3, abs=2e-3)  # type: ignore[arg-type]
    assert found[1] <= found[0] < 2.5 * found[1] + 0.5


@needs_accounting
def test_local_noise_is_accounted_between_any_two_updates() -> None:
    from dp_accounting import get_epsilon_gaussian

    how = Private(noise=4.0, where="local", delta=1e-5)
    found, exact = how.spent({(10, 100): 1}, 100), get_epsilon_gaussian(2.0, 1e-5)
    assert exact <= found["epsilon"] < 1.3 * exact  # Renyi's is above it
    assert found == how.spent({(50, 50): 1}, 50)


def test_without_the_package_an_account_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.toolbox.aggregation.private.find_spec", lambda name: None)
    with pytest.raises(
        fedsim.ScenarioError, match=r"strategy.aggregation: .* needs a package: pip install .dp-acc"
    ):
        fedsim.Scenario(strategy=fedavg(account=True))
    fedsim.Scenario(strategy=fedavg(account=True, noise=0.0))


# Secure aggregation.


SECURE = {"neighbors": 4, "key": "32 B", "share": "48 B"}
D = 650


def secured(**others: Any) -> dict[str, Any]:
    return {"kind": "fedavg", "clients_per_round": 8, "secure_aggregation": SECURE} | others


@pytest.mark.parametrize(("neighbours", "k"), [(4, 4), (None, 7)])
def test_a_client_moves_what_the_paper_counts(
    tmp_path: Path, neighbours: int | None, k: int
) -> None:
    """Per client and round (2 k + 2) keys, 5 k shares and d numbers up, beside the model that
    comes down.
    """
    secure = {name: value for name, value in SECURE.items() if name != "neighbors"} | (
        {"neighbors": k} if neighbours else {}
    )
    run = ran(world(ROTATED, 12, secured(secure_aggregation=secure), 2), tmp_path / "run")
    phases = {"secure-keys": (2 * k + 2) * 32, "secure-shares": 4 * k * 48, "secure-unmask": k * 48}
    sent = {"model": 4 * D, "update": 4 * D} | phases
    assert moved(run) == {purpose: 2 * 8 * size for purpose, size in sent.items()}


def test_what_is_learnt_is_the_same(tmp_path: Path) -> None:
    # whole batches: the order of others is another draw, as devices have had more tasks
    training = {"batch_size": 10_000}
    secure, plain = (
        world(ROTATED, 12, how, 3, training=training)
        for how in (secured(), secured(secure_aggregation=None))
    )
    assert model_after(secure) == pytest.approx(model_after(plain), abs=1e-6)


def test_a_round_lasts_for_its_phases(tmp_path: Path) -> None:
    """Keys up; keys down and shares up; shares and model down, training, update up; shares up;
    then 8 masks.
    """
    up, down, latency, k = 1_000.0, 2_000.0, 0.5, 4
    network = {
        "kind": "star",
        "device": {"up": "8 kbit/s", "down": "16 kbit/s", "latency": "500 ms"},
    }
    strategy, people = (
        secured(secure_aggregation=SECURE | {"mask_rate": "16 kbit/s"}),
        {"speed": "100 samples/s"},
    )
    run = ran(world(ROTATED, 8, strategy, 1, population=people, network=network), tmp_path / "run")
    before = (64 / up + latency) + (2 * k * 32 / down + latency + 2 * k * 48 / up + latency)
    most = max(row["samples"] for row in run.devices) / 100
    training = (2 * k * 48 + 4 * D) / down + latency + most + 4 * D / up + latency
    after = k * 48 / up + latency + 8 * 4 * D / 2_000
    assert run.rounds[0]["time"] == pytest.approx(before + training + after, abs=1e-5)
    (begin,) = of_kind(run, "round-start")
    assert begin["time"] == pytest.approx(before, abs=1e-5)


def test_who_drops_out_costs_a_mask_for_each_neighbour_and_is_not_in_the_sum() -> None:
    secure = SecureAggregation(neighbors=2, mask_rate="4 B/s")
    graph = secure.graph([5, 3, 8, 1])
    assert graph == {5: [1, 3], 3: [5, 8], 8: [3, 1], 1: [8, 5]}
    assert secure.recovery_s(graph, [5, 3, 8, 1], [5, 3, 8, 1], 10) == 10 * 4
    assert secure.recovery_s(graph, [5, 3, 8, 1], [5, 3, 8], 10) == 10 * (3 + 2)
    assert secure.recovery_s(graph, [5, 3, 8, 1], [5, 8], 10) == 10 * (2 + 2 + 2)
    # who sent no shares has no mask
    assert secure.recovery_s(graph, [5, 3, 8], [5, 3, 8], 10) == 10 * 3


def test_a_sum_is_read_with_enough_shares_of_every_secret() -> None:
    secure = SecureAggregation(neighbors=2, threshold=0.6)
    graph = secure.graph([5, 3, 8, 1])
    everybody = [5, 3, 8, 1]
    assert secure.can_be_read(graph, everybody, everybody)
    assert not secure.can_be_read(graph, everybody, [5, 3, 8])  # of 5 and 8 one share each
    assert secure.can_be_read(graph, [5, 3, 8], [5, 3, 8])
    half = SecureAggregation(neighbors=2)
    assert half.can_be_read(graph, everybody, [5, 3])
    assert not half.can_be_read(graph, everybody, [5, 8])  # of 5 and 8 none


def unread(strategy: dict[str, Any], devices: int, rounds: int, slow: float) -> dict[str, Any]:
    """Devices that are slow come too late for the last phase: their shares are missing."""
    secure = SECURE | {"threshold": 1.0, "patience": "1 s", "share": "20 B"}
    speed = {
        "kind": "choice",
        "values": ["1000 samples/s", "10 samples/s"],
        "shares": [1 - slow, slow],
    }
    network = {"kind": "star", "server": {"up": "1 Mbit/s"}, "device": {"up": "8 kbit/s"}}
    strategy = strategy | {"secure_aggregation": secure}
    return world(ROTATED, devices, strategy, rounds, population={"speed": speed}, network=network)


def test_a_round_that_cannot_be_read_changes_no_model() -> None:
    sections = unread({"kind": "fedavg", "clients_per_round": 8, "deadline": "6 s"}, 8, 2, slow=0.5)
    run, records = played(sections)
    assert told(records, "round")[0]["valid"] < 8
    assert {weight for fields in told(records, "aggregate") for weight in fields["weights"]} == {
        0.0
    }
    assert (initial_weights(sections) == model_of(run)).all()


@pytest.mark.parametrize(("kind", "parts"), [("fedavg", 1.0), ("scaffold", 2.0), ("fedper", None)])
def test_masks_are_made_for_all_numbers_that_are_sent(
    tmp_path: Path, kind: str, parts: float | None
) -> None:
    """Of FedPer, with a hidden layer of 20, the first layer alone."""
    network = {"kind": "star", "device": {"up": "100 Mbit/s", "down": "100 Mbit/s"}}
    model = {"model": {"kind": "mlp", "hidden": [20]}} if parts is None else {}
    numbers = 64 * 20 + 20 if parts is None else parts * D
    rounds = []
    for rate in (None, "40 kB/s"):
        strategy = {
            "kind": kind,
            "clients_per_round": 8,
            "secure_aggregation": SECURE | {"mask_rate": rate},
        }
        run = ran(
            world(ROTATED, 8, strategy, 1, network=network, **model), tmp_path / f"{rate is None}"
        )
        rounds.append(run.rounds[0]["time"])
    assert rounds[1] - rounds[0] == pytest.approx(8 * 4 * numbers / 40_000, abs=1e-6)


@pytest.mark.parametrize(("kind", "state"), [("scaffold", "control"), ("feddyn", "moved")])
def test_devices_take_back_what_the_server_could_not_read(kind: str, state: str) -> None:
    """The server's c (s) is the sum of the devices' c_i (s_k) over N, where some sums were read
    and others were not.
    """
    run, records = played(
        unread({"kind": kind, "clients_per_round": 5, "deadline": "9 s"}, 12, 8, slow=0.1)
    )
    assert {any(fields["weights"]) for fields in told(records, "aggregate")} == {True, False}
    own = []
    for number, remembered in run.dispatch.devices.states.items():
        now = (
            remembered["before_sum"]
            if number in run.strategy.state.secure.take_back
            else remembered
        )
        own += [now[state]] if state in now else []
    server, *devices = weights(run, [run.strategy.state[state], *own])
    assert sum(devices) / 12 == pytest.approx(server, abs=1e-5)
    assert abs(server).max() > 1e-3
