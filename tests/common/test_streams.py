"""Keyed randomness, and whom the server draws by it: uniformly, without replacement, looking at
few devices of many.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import fedsim
from fedsim.common.streams import Shuffle, Streams
from fedsim.running.assembly import Run
from tests.benchmarks import hashes
from tests.benchmarks.processors import PROCESSORS


@given(
    st.integers(0, 2**31),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=4),
    st.integers(1, 4),
)
def test_scalars_and_arrays_of_entities_and_counts_agree(
    seed: int, entities: list[int], counts: int
) -> None:
    streams = Streams(seed)
    table = streams.uniforms("p", np.array(entities)[:, None], np.arange(counts)[None, :])
    assert table.tolist() == [
        [streams.uniform("p", entity, count) for count in range(counts)] for entity in entities
    ]


@given(st.integers(0, 30), st.lists(st.integers(1, 9), max_size=8))
def test_a_shuffle_is_a_permutation_however_it_is_drawn(numbers: int, steps: list[int]) -> None:
    parts, whole = (
        Shuffle(np.random.default_rng(1), numbers),
        Shuffle(np.random.default_rng(1), numbers),
    )
    drawn = [number for step in [*steps, numbers] for number in parts.draw(step)]
    assert drawn == whole.draw(99)
    assert sorted(drawn) == list(range(numbers))
    assert parts.remaining == whole.remaining == 0


def test_names_tell_streams_apart() -> None:
    words = {
        Streams(seed).word(purpose, entity, count)
        for seed in range(3)
        for purpose in ("world/speed", "world/jitter")
        for entity in range(5)
        for count in range(5)
    }
    assert len(words) == 150


@pytest.mark.parametrize("axis", ["entity", "count"])
def test_uniforms_are_uniform_and_uncorrelated(axis: str) -> None:
    streams = Streams(11)
    draws = [
        streams.uniform("u", i, 0) if axis == "entity" else streams.uniform("u", 0, i)
        for i in range(40_000)
    ]
    values = np.array(draws)
    counts, _ = np.histogram(values, bins=50, range=(0, 1))
    chi2 = ((counts - 800.0) ** 2 / 800.0).sum()
    # chi-square with 49 degrees of freedom: outside with probability below 1e-4
    assert 20 < chi2 < 95
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.02


def test_normal_has_its_moments() -> None:
    streams = Streams(5)
    normal = np.array([streams.normal("n", 1, i) for i in range(20_000)])
    assert normal.mean() == pytest.approx(0.0, abs=0.03)
    assert normal.std() == pytest.approx(1.0, rel=0.03)


DRAWN = """
import numpy as np
import fedsim
from fedsim.common.units import SamplesPerSecond
from fedsim.common.streams import Streams
from fedsim.world.distributions import LogNormal

speeds = LogNormal[SamplesPerSecond](median="40 samples/s", spread=2.0).draw(np.random.default_rng(1), 70_000)
leaving = fedsim.Scenario(population={"departures": {"kind": "exponential", "mean_stay": "1000 h"}}).population.departures
print(hash((*speeds.tolist(), *leaving.draw("", Streams(2), np.zeros(2_000), np.inf, None).tolist())))
"""
"""Speeds, and when devices leave (s): enough that some would have other last bits."""


def test_draws_of_the_world_do_not_depend_on_vector_instructions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """numpy chooses its code when it is loaded; where this processor has no AVX-512 both are the
    same code.
    """
    environment = os.environ | {
        "NPY_DISABLE_CPU_FEATURES": PROCESSORS["haswell"]["NPY_DISABLE_CPU_FEATURES"]
    }
    found = subprocess.run(
        [sys.executable, "-c", DRAWN], env=environment, capture_output=True, text=True, check=True
    ).stdout
    exec(DRAWN, {})
    assert found == capsys.readouterr().out


@pytest.mark.long  # torch and numba are loaded once more
@pytest.mark.parametrize("name", ["haswell", "epyc"])
def test_the_hash_table_holds_whatever_the_libraries_would_choose(name: str) -> None:
    environment = os.environ | PROCESSORS[name]
    table = json.loads(hashes.TABLE.read_text())
    if table["made_with"] != hashes.made_with():
        pytest.skip(f"the table is of {table['made_with']}")
    command = [sys.executable, "-m", "tests.benchmarks.hashes", "fedavg", "hierfavg"]
    for arguments in ([], ["--native"]):
        done = subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert done.stdout.endswith("all are as they were\n"), done.stdout + done.stderr


def world(
    devices: int, now: float, availability: dict[str, Any] | None = None, **population: Any
) -> Run:
    if availability is None:
        availability = {"kind": "renewal", "mean_on": "20 min", "mean_off": "40 min"}
    samples = {"low": 10, "high": 20}
    people = {"devices": devices, "samples": samples, "availability": availability} | population
    scenario = fedsim.Scenario(
        learning="off", population=people, strategy={"kind": "fedavg", "clients_per_round": 1}
    )
    run: Run = fedsim.Simulation(scenario).installed
    run.simulation.env.restart(now)
    return run


def drawn_one_by_one(
    run: Run, count: int, purpose: str, number: int, among: Sequence[int] | None
) -> list[int]:
    """Walk a random permutation, device by device, and take the first that can be had."""
    order = list(range(run.server.devices) if among is None else among)
    draws = iter(run.server.rng(purpose, number).random(len(order)).tolist())
    chosen: list[int] = []
    while order and len(chosen) < count:
        position = int(next(draws) * len(order))
        order[position], order[-1] = order[-1], order[position]
        device = order.pop()
        if run.tasks.is_idle(device):
            chosen.append(device)
    return chosen


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(0, 70),
    number=st.integers(0, 1000),
    now=st.floats(0, 1e6),
    among=st.none() | st.lists(st.integers(0, 59), unique=True),
    busy=st.sets(st.integers(0, 59)),
)
def test_it_is_a_walk_along_a_random_permutation(
    count: int, number: int, now: float, among: list[int] | None, busy: set[int]
) -> None:
    run = world(60, now)
    for device in busy:
        run.server.ask(device, {"model": run.server.models.initial()})
    expected = drawn_one_by_one(run, count, "x", number, among)
    assert run.server.clients.sample(count, "x", number, among=among) == expected
    assert run.server.clients.idle_devices() == [
        device for device in range(60) if run.tasks.is_idle(device)
    ]


@pytest.mark.parametrize("devices", [1_000, 1_000_000])
def test_the_devices_looked_at_do_not_grow_with_the_population(
    devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world(devices, 3 * 86400.0)
    looked = 0
    idle = run.tasks.idle

    def count(asked: NDArray[np.int64]) -> NDArray[np.bool_]:
        nonlocal looked
        looked += len(asked)
        return idle(asked)

    monkeypatch.setattr(run.tasks, "idle", count)
    assert len(run.server.clients.sample(100, "x")) == 100
    assert looked < 450  # a third of them is on
