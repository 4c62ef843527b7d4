"""MIFA against answers by hand: what the server remembers of devices that do not answer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.strategies.runs import model_of, played, told
from tests.strategies.worlds import CENTER, STRENGTH, curved


@pytest.mark.parametrize("unheard", ["left-out", "zero"])
def test_a_device_that_is_not_asked_counts_with_its_last_update(
    unheard: str, tmp_path: Path
) -> None:
    """w <- w - eta mean G_i (Gu et al., Algorithm 1), with G_i of the last answer."""
    strategy: dict[str, Any] = {"kind": "mifa", "clients_per_round": 2, "unheard": unheard}
    run, records = played(curved(tmp_path, strategy, rounds=6, epochs=3))
    device_of = {record.fields["task"]: record.fields["device"] for record in starts(records)}
    w = 5.0
    gradients = dict[int, float]()
    for aggregate in told(records, "aggregate"):
        devices = [device_of[task] for task in aggregate["tasks"]]
        for device in devices:
            end = w
            for _ in range(3):
                end -= 0.1 * STRENGTH[device] * (end - CENTER[device])
            gradients[device] = (w - end) / 0.1
        count = 4 if unheard == "zero" else len(gradients)
        assert aggregate["weights"] == pytest.approx([1 / count] * len(devices))
        w -= 0.1 * sum(gradients.values()) / count
    assert len(gradients) == 4
    assert model_of(run)[0] == pytest.approx(w, abs=1e-5)


def starts(records: Any) -> list[Any]:
    return [record for record in records if record.kind == "task-start"]


def test_with_everybody_it_is_fedavg_with_equal_weights(tmp_path: Path) -> None:
    mifa, _ = played(curved(tmp_path, {"kind": "mifa"}, rounds=5, epochs=2))
    fedavg, _ = played(
        curved(tmp_path, {"kind": "fedavg", "aggregation": "mean"}, rounds=5, epochs=2)
    )
    assert np.allclose(model_of(mifa), model_of(fedavg), atol=1e-6)


def test_a_decayed_learning_rate_scales_what_is_remembered(tmp_path: Path) -> None:
    """With one client a round and the rate halved each round, the memory moves half as far."""
    strategy: dict[str, Any] = {"kind": "mifa", "clients_per_round": 1, "selection": "least-asked"}
    scenario = curved(tmp_path, strategy, rounds=2, epochs=1)
    scenario["training"] |= {"lr_decay": 0.5}
    run, records = played(scenario)
    device_of = {record.fields["task"]: record.fields["device"] for record in starts(records)}
    first, second = [device_of[aggregate["tasks"][0]] for aggregate in told(records, "aggregate")]
    gradient = STRENGTH[first] * (5.0 - CENTER[first])
    w = 5.0 - 0.1 * gradient
    w -= 0.05 * (gradient + STRENGTH[second] * (w - CENTER[second])) / 2
    assert model_of(run)[0] == pytest.approx(w, abs=1e-5)
