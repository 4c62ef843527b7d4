"""What is the same on every processor: the world's draws, and the hash table under portable settings."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from fedsim.language.units import SamplesPerSecond
from fedsim.streams import Streams
from fedsim.world.distributions import LogNormal
from fedsim.world.lifetimes import ExponentialStays
from tests.benchmarks.processors import PROCESSORS


def drawn() -> list[float]:
    """Speeds, and when devices leave (s): enough that some would have other last bits."""
    speeds = LogNormal[SamplesPerSecond](median="40 samples/s", spread=2.0).draw(np.random.default_rng(1), 70_000)
    stays = ExponentialStays(mean_stay="1000 h").draw(Streams(2), np.zeros(2_000), None)
    return [*speeds.tolist(), *stays.tolist()]


def test_draws_of_the_world_do_not_depend_on_vector_instructions() -> None:
    """numpy chooses its code when it is loaded; where this processor has no AVX-512 both are the same code."""
    code = "from tests.test_processors import drawn; print(hash(tuple(drawn())))"
    environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": PROCESSORS["haswell"]["NPY_DISABLE_CPU_FEATURES"]}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
    assert int(found) == hash(tuple(drawn()))


@pytest.mark.long  # torch and numba are loaded once more
@pytest.mark.parametrize("name", ["haswell", "epyc"])
def test_the_hash_table_holds_whatever_the_libraries_would_choose(name: str) -> None:
    from tests.benchmarks import hashes

    environment = os.environ | PROCESSORS[name]
    table = json.loads(hashes.TABLE.read_text())
    if table["made_with"] != hashes.made_with():
        pytest.skip(f"the table is of {table['made_with']}")
    command = [sys.executable, "-m", "tests.benchmarks.hashes", "fedavg", "hierfavg"]
    for arguments in ([], ["--native"]):
        done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, check=False)
        assert done.stdout.endswith("all are as they were\n"), done.stdout + done.stderr
