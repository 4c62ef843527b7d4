"""Rounds over real TCP, predicted with the preset ``tcp``."""

import numpy as np
import pytest

from fedsim.world.network.protocol import Fluid, Tcp
from tests.world import realrun

if not realrun.FOLDER.is_dir():
    pytest.skip("needs the logs of real rounds beside the checkout: shared/oracles/realrun", allow_module_level=True)

WORLDS = {world.name: world for world in realrun.worlds()}


@pytest.mark.parametrize("name", WORLDS)
def test_tcp_predicts_rounds_within_3_percent_and_transfers_within_10(name: str) -> None:
    """In ``equal`` all share one link, and who is first is chance: there by the mean of runs (a single one: 10.9 %)."""
    rounds, transfers, expected = realrun.errors(WORLDS[name], Tcp(), seeds=20)
    assert abs(rounds).mean() < 0.03
    assert np.percentile(abs(rounds), 95) < 0.06
    assert abs(expected if name == "equal" else transfers).mean() < 0.10


def test_fluid_does_not() -> None:
    """So the test above can fail."""
    errors = [realrun.errors(world, Fluid(), seeds=1) for world in WORLDS.values()]
    assert max(abs(rounds).mean() for rounds, _, _ in errors) > 0.03
    assert max(abs(transfers).mean() for _, transfers, _ in errors) > 0.3
