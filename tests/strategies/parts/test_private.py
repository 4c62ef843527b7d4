"""Private averaging: what is clipped, how much noise there is, and what it costs."""

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
from fedsim.toolbox.aggregation import private
from fedsim.toolbox.aggregation.private import Private, epsilon
from tests.strategies.runs import initial_weights, made, model_after, model_of, played, ran, told
from tests.strategies.worlds import world

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


def rounds(server: Server, how: Private, changes: list[list[Floats]]) -> Iterator[tuple[Floats, float]]:
    """The change of the model in each round, of updates that differ from a model by ``changes``; and the clip after it."""
    state: dict[str, Any] = {}
    model = server.models.initial()
    before = asyncio.run(server.models.value(model)).astype(np.float64)
    for number, of_round in enumerate(changes):
        updates = [server.models.given(before + change) for change in of_round]
        entries = [{"update": one, "start": model, "task": 100 * number + at} for at, one in enumerate(updates)]
        found = how.combine(server, state, entries, how.weights(entries), model)
        clip = float(asyncio.run(server.models.value(state["clip"]))[0]) if "clip" in state else how.clip
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
        ((found, _),) = rounds(server, Private(noise=0.0, divide_by=divide_by, account=False), [changes])
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
def test_the_noise_of_the_server_is_what_is_said(server: Server, divide_by: int | None, expected: float) -> None:
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
    assert discrepancies == pytest.approx([0.5 * 3.0 * math.sqrt(650)] * 4, rel=0.01)  # of 40 times 650 draws each


def test_the_clip_follows_the_quantile_by_hand(server: Server) -> None:
    lengths = [0.2, 0.4, 0.6, 3.0]
    changes = [drawn(1, length, seed)[0] for seed, length in enumerate(lengths)]
    how = Private(noise=0.0, clip=1.0, adaptive={"quantile": 0.25, "lr": 0.5, "count_noise": 0.0}, account=False)
    clip = 1.0
    for found, after in rounds(server, how, [changes] * 12):
        expected = sum(min(1, clip / length) * change for length, change in zip(lengths, changes, strict=True)) / 4
        assert found == pytest.approx(expected, abs=1e-6)
        clip *= math.exp(-0.5 * (np.mean([length <= clip for length in lengths]) - 0.25))
        assert after == pytest.approx(clip, rel=1e-6)
    assert 0.15 < clip < 0.45


def test_the_count_has_noise_which_is_paid_by_that_of_the_sum() -> None:
    how = Private(noise=1.0, adaptive={"count_noise": 2.0}, account=False)
    assert how.noise_of_sum**-2 + (2 * 2.0) ** -2 == pytest.approx(1.0**-2)
    assert Private(noise=1.0, account=False).noise_of_sum == 1.0
    draw, changes = np.random.default_rng(1), [np.zeros(3, np.float32)] * 10
    clips = [private.adapted_clip(changes, 1.0, 0.5, 1.0, 2.0, None, draw)[0] for _ in range(20_000)]
    noise = (0.5 - np.log(clips) - 1) * 10  # all ten are short
    assert noise.std() == pytest.approx(2.0, rel=0.02)
    assert abs(noise.mean()) < 0.06


def exact_epsilon(noise: float, rounds: int, delta: float, q: float = 1.0) -> float:
    """Epsilon at ``delta`` of Gaussian noise with Poisson sampling: privacy losses integrated on a grid, then convolved.

    Both directions of one device more or less; the integral of max(0, 1 - e^(epsilon - loss)) is delta.
    """
    x, step = np.linspace(-9 * noise, 9 * noise + 1, 50_001), 1e-3
    without = np.exp(-(x**2) / (2 * noise**2))
    mixed = (1 - q) * without + q * np.exp(-((x - 1) ** 2) / (2 * noise**2))
    found = []
    for one, other in ((mixed, without), (without, mixed)):
        loss = np.log(one / other)
        single = np.bincount(np.round((loss - loss.min()) / step).astype(int), weights=one / one.sum())
        size = 1 << int(rounds * len(single)).bit_length()
        density = np.fft.irfft(np.fft.rfft(single, size) ** rounds, size).clip(0)
        losses = rounds * loss.min() + step * np.arange(size)
        kept = (losses > 0) & (losses < 100)
        density, losses = density[kept], losses[kept]
        over, weighed = (np.cumsum(values[::-1])[::-1] for values in (density, density * np.exp(-losses)))
        found.append(losses[np.argmax(over - np.exp(losses) * weighed <= delta)])
    return float(max(found))


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
def test_epsilon_counts_how_clients_were_really_drawn(
    tmp_path: Path, strategy: dict[str, Any], there: int, uniform_rounds: int
) -> None:
    """4 of 12 devices, z = 1, six rounds, by Renyi's theory: 2.23 if each was drawn at random from all, 7.27 if none was."""
    asked = FEDAVG | {"clients_per_round": 4, "aggregation": {"kind": "private"}} | strategy
    run = ran(world(IID, 12, asked, 6, population=present(tmp_path, there)), tmp_path / "run")
    told = [row["epsilon"] for row in run.rounds]
    if uniform_rounds == 3:
        assert 4.0 < told[2] < told[-1] < 6.0
    else:
        assert told[-1] == pytest.approx(2.227 if uniform_rounds else 7.271, abs=1e-3)
    assert sorted(set(told)) == told


def test_how_many_answer_does_not_change_what_one_counts(tmp_path: Path, server: Server) -> None:
    """Of six clients that are wanted three are ever there: the model moves by half the clip at most, and so does b."""
    how = fedavg(noise=0.0, clip=1e-3)
    sections = world(IID, 12, how, 1, population=present(tmp_path, 3))
    assert 0.3e-3 < np.linalg.norm(model_after(sections).astype(np.float64) - initial_weights(sections)) < 0.501e-3
    private = Private(noise=0.0, account=False, adaptive={"count_noise": 0.0, "lr": 1.0}).for_rounds_of(10)
    ((_, clip),) = rounds(server, private, [drawn(4, 0.5)])
    assert clip == pytest.approx(math.exp(-4 * 0.5 / 10))
    assert Private(where="local", account=False).for_rounds_of(10).divide_by is None  # type: ignore[attr-defined]


@needs_accounting
@pytest.mark.parametrize(("noise", "rounds", "q"), [(1.0, 1, 1.0), (0.7, 9, 1.0), (1.1, 3, 0.2), (0.8, 10, 0.02)])
def test_epsilon_is_that_of_an_accountant_written_here(noise: float, rounds: int, q: float) -> None:
    for delta in (1e-5, 1e-2):
        exact, draws = exact_epsilon(noise, rounds, delta, q), {(round(100 * q), 100): rounds}
        assert epsilon(noise, "poisson", draws, delta, "pld") == pytest.approx(exact, rel=3e-3, abs=2e-3)
        assert exact <= epsilon(noise, "poisson", draws, delta) * 1.001
        assert epsilon(noise, "poisson", draws, delta) < 2.5 * exact + 0.5
    assert exact_epsilon(1.0, 6, 12**-1.1, 1 / 3) == pytest.approx(1.404, abs=2e-3)  # of the test above
    halves = {(round(100 * q), 100): rounds - rounds // 2} | ({(round(200 * q), 200): rounds // 2} if rounds > 1 else {})
    for accountant in ("rdp", "pld"):
        whole, parts = (epsilon(noise, "poisson", drawn, 1e-2, accountant) for drawn in (draws, halves))
        assert parts == pytest.approx(whole, rel=1e-3)


@needs_accounting
def test_without_replacement_is_dp_accountings_own_and_at_least_what_full_rounds_give_half_the_noise() -> None:
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp.SampledWithoutReplacementDpEvent(30, 6, dp.GaussianDpEvent(0.55)), 3)
    assert epsilon(1.1, "without-replacement", {(6, 30): 3}, 1e-3) == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-9)
    assert epsilon(1.1, "without-replacement", {(1, 1): 3}, 1e-3) == epsilon(0.55, "none", {(1, 1): 3}, 1e-3)


@needs_accounting
def test_local_noise_is_accounted_between_any_two_updates() -> None:
    from dp_accounting import get_epsilon_gaussian

    how = Private(noise=4.0, where="local", delta=1e-5)
    found, exact = how.spent({(10, 100): 1}, 100), get_epsilon_gaussian(2.0, 1e-5)
    assert exact <= found["epsilon"] < 1.3 * exact  # Renyi's is above it
    assert found == how.spent({(50, 50): 1}, 50)


def test_without_the_package_an_account_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.toolbox.aggregation.private.find_spec", lambda name: None)
    with pytest.raises(fedsim.ScenarioError, match=r"strategy.aggregation: .* needs the package dp-acc"):
        fedsim.Scenario(strategy=fedavg(account=True))
    fedsim.Scenario(strategy=fedavg(account=True, noise=0.0))
