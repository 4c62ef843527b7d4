"""CA2FL against its paper's algorithm, by hand."""

from typing import Any

import pytest

from tests.strategies.runs import initial_weights, model_after, played, told
from tests.strategies.test_asynchronous import local, three_wells

__all__ = ["three_wells"]


def test_three_versions_by_hand(three_wells: dict[str, Any]) -> None:
    """Algorithm 2 of Wang et al. with M = 2 and eta = .8: v = h + mean (Delta_i - h_i)."""
    three_wells["strategy"] = {
        "kind": "ca2fl",
        "concurrency": 3,
        "buffer": 2,
        "server": {"kind": "sgd", "lr": 0.8},
    }
    three_wells["stop"] = {"rounds": 3}
    versions = [float(initial_weights(three_wells)[0])]
    cache = [0.0, 0.0, 0.0]
    # (device, its a, the version that it trained from) of each update, in the order of arrival
    for buffer in (
        [(0, -2.0, 0), (0, -2.0, 0)],
        [(1, 1.0, 0), (0, -2.0, 1)],
        [(0, -2.0, 2), (2, 5.0, 0)],
    ):
        moves = [
            (device, local(versions[start], a) - versions[start]) for device, a, start in buffer
        ]
        step = sum(cache) / 3 + sum(move - cache[device] for device, move in moves) / 2
        for device, move in moves:
            cache[device] = move
        versions.append(versions[-1] + 0.8 * step)
    assert model_after(three_wells)[0] == pytest.approx(versions[-1], rel=1e-5)
    recorded = told(played(three_wells)[1], "aggregate")
    assert [entry["weights"] for entry in recorded] == [[0.5, 0.5]] * 3
