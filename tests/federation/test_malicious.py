"""Malicious devices: drawn by the world, unknown to the strategies, and what they do is what is
said.
"""

import asyncio
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.common.streams import Streams
from fedsim.federation.malicious import ATTACKS, MaliciousSpec
from fedsim.learning.data.shifts import SwapAll
from fedsim.learning.models import Logistic
from fedsim.toolbox.attacks import Attack
from tests.learning.small import federation, learning
from tests.strategies.runs import made, played, ran, weights
from tests.strategies.worlds import world

FEDAVG: dict[str, Any] = {"kind": "fedavg", "clients_per_round": 8, "local_epochs": 1}
IID: dict[str, Any] = {"source": "digits", "partition": "iid"}


def attacked(spec: dict[str, Any], start: Any, update: Any, key: int = 0) -> Any:
    core, _ = learning(federation([30]), Logistic())
    attack: Attack = ATTACKS.spec(spec["kind"])(**spec)  # type: ignore[assignment]
    found = attack.update(core, core.given(update), core.given(start), ("world/attack", 3, key))
    return asyncio.run(core.value(found))


def test_attacks_on_updates_by_hand() -> None:
    start, update = np.full(21, 1.0), np.arange(21.0)
    assert attacked({"kind": "sign-flip"}, start, update) == pytest.approx(2 - update)
    assert attacked({"kind": "sign-flip", "factor": 3.0}, start, update) == pytest.approx(
        1 - 3 * (update - 1)
    )
    assert attacked({"kind": "scaled", "factor": 10.0}, start, update) == pytest.approx(
        1 + 10 * (update - 1)
    )
    assert attacked({"kind": "label-flip"}, start, update) == pytest.approx(update)
    noise = [
        attacked({"kind": "gaussian", "deviation": 2.0}, start, update, key) - 1
        for key in range(300)
    ]
    assert np.std(noise) == pytest.approx(2.0, rel=0.03)
    assert np.mean(noise) == pytest.approx(0.0, abs=0.1)


def test_a_larger_share_has_the_same_devices_and_more() -> None:
    def members(share: float, seed: int = 3) -> list[int]:
        return MaliciousSpec(attack="sign-flip", share=share).members(Streams(seed), 50)

    assert [len(members(share)) for share in (0.0, 0.1, 0.5, 1.0)] == [0, 5, 25, 50]
    assert set(members(0.1)) < set(members(0.5))
    assert members(0.5) != members(0.5, seed=4)


def test_training_labels_are_turned_around_and_stay_so_when_data_are_exchanged() -> None:
    sections = world(IID, 10, FEDAVG, 1, malicious={"attack": "label-flip", "devices": [2, 5]})
    data, clean = (made(sections | extra).data for extra in ({}, {"malicious": None}))
    for _ in range(2):
        for device in range(10):
            mine, theirs = data.current(device), clean.current(device)
            true = clean.train_labels(theirs)
            expected = 9 - true if device in (2, 5) else true
            assert (
                data.train_labels(mine).tolist()
                == data.train_samples(mine)[1].tolist()
                == expected.tolist()
            )
            assert data.label_counts(mine).tolist() == np.bincount(expected, minlength=10).tolist()
            assert data.test_labels(mine).tolist() == clean.test_labels(theirs).tolist()
        for each in (data, clean):
            assert SwapAll(probability=1.0).apply(each, 0, np.arange(10), Streams(1))


@pytest.mark.parametrize(
    "strategy",
    [FEDAVG, {"kind": "ifca", "groups": 2, "clients_per_round": 8, "local_epochs": 1}],
    ids=str,
)
def test_with_everybody_going_the_other_way_models_do(strategy: dict[str, Any]) -> None:
    sections = world(IID, 8, strategy, 1)
    clean, turned = (
        played(sections | {"malicious": malicious})[0]
        for malicious in (None, {"attack": "sign-flip", "share": 1.0})
    )
    served = [[model for model, _ in run.strategy.models().values()] for run in (clean, turned)]
    starts = weights(clean, [clean.learner.initial(group) for group in range(len(served[0]))])
    for start, there, back in zip(
        starts, weights(clean, served[0]), weights(turned, served[1]), strict=True
    ):
        assert back == pytest.approx(2 * start - there, abs=1e-6)


def test_nothing_that_moves_tells_who_is_malicious(tmp_path: Any) -> None:
    sections = world(IID, 12, FEDAVG, 3)
    clean = ran(sections, tmp_path / "clean")
    evil = ran(sections | {"malicious": {"attack": "gaussian", "share": 0.25}}, tmp_path / "evil")
    assert evil.transfers == clean.transfers
    (record,) = [event for event in evil.events if event["kind"] == "malicious"]
    members = MaliciousSpec(attack="gaussian", share=0.25).members(Streams(3), 12)
    assert record["data"] == {"attack": "gaussian", "devices": members}


@pytest.mark.parametrize(
    ("malicious", "message"),
    [
        (
            {"share": 0.1, "attack": "signflip"},
            r"malicious.attack.kind is 'signflip'; allowed are .*did you mean 'sign-flip'",
        ),
        ({"attack": "sign-flip"}, r"malicious: 'share' and 'devices' both say"),
        (
            {"attack": "sign-flip", "share": 0.1, "devices": [1]},
            r"malicious: 'share' and 'devices' both say",
        ),
        (
            {"attack": "sign-flip", "devices": [3, 100]},
            r"malicious.devices has 100; allowed are 0 to 99",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(malicious: dict[str, Any], message: str) -> None:
    with pytest.raises(fedsim.ScenarioError, match=message):
        fedsim.Scenario(malicious=malicious)


@pytest.mark.parametrize(
    "others",
    [
        {"messages": {"up": {"kind": "top-k", "share": 0.1}}},
        {"malicious": {"attack": "sign-flip", "share": 1.0}},
        {"strategy": {"kind": "fedper", "clients_per_round": 3, "head": ["*.bias"]}},
    ],
    ids=["codec", "attack", "part"],
)
def test_what_is_made_of_an_update_reports_the_loss_of_its_training(others: dict[str, Any]) -> None:
    """In the first round all train alike, from the same model."""
    plain = {"strategy": {"kind": "fedavg", "clients_per_round": 3}}
    losses = []
    for sections in (plain, plain | others):
        _, records = played(
            {"seed": 2, "population": {"devices": 8}, "stop": {"rounds": 1}} | sections
        )
        losses += [record.fields["train_loss"] for record in records if record.kind == "round"]
    assert losses[0] == losses[1] is not None
