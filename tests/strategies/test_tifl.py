"""TiFL against known answers, and in worlds where devices come and go."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.lab.compare.published import Reading
from fedsim.records.reading import RunFolder
from fedsim.toolbox.strategies.tiers import equal_width_bins, tier_numbers
from fedsim.toolbox.strategies.tifl import credit_probabilities
from tests.lab.test_audit import aggregated_never, events, found
from tests.strategies.runs import model_after, model_of, moved, of_kind, played, ran
from tests.strategies.worlds import PULLS, curved, file_data, world


def tiers_of(sizes: list[float], tiers: int) -> list[int]:
    values = np.array(sizes, dtype=np.float64)
    return tier_numbers(values, tiers, equal_width_bins(values, tiers)).tolist()  # type: ignore[no-any-return]


def test_bins_are_of_equal_width_an_outlier_takes_them_all_and_who_comes_later_is_sorted_in() -> (
    None
):
    assert tiers_of([100, 399, 400, 699, 700, 1000], 3) == [0, 0, 1, 1, 2, 2]
    assert tiers_of([*range(100, 1001, 100), 5000], 3) == [0] * 10 + [2]
    assert tiers_of([7, 7, 7], 4) == [0, 0, 0]
    assert tier_numbers(np.array([5.0, 100.0, 250.0, 9000.0]), 3, (100.0, 100.0)).tolist() == [
        0,
        0,
        1,
        2,
    ]
    assert tier_numbers(np.array([6.0, 7.0, 8.0]), 3, (7.0, 0.0)).tolist() == [0, 0, 2]


def test_the_least_accurate_tier_is_the_likeliest() -> None:
    assert credit_probabilities([0.9, 0.5, 0.7, 0.8], [1, 1, 1, 1]) == pytest.approx(
        [0.1, 0.4, 0.3, 0.2]
    )
    assert credit_probabilities([0.9, 0.5, 0.7, 0.8], [3, 0, 1, 2]) == pytest.approx(
        [1 / 6, 0, 3 / 6, 2 / 6]
    )
    assert credit_probabilities([0.5, 0.5, 0.5], [1, 1, 1]) == pytest.approx([3 / 6, 2 / 6, 1 / 6])
    assert credit_probabilities([0.5, None], [1, 1]) == pytest.approx([1 / 3, 2 / 3])
    assert credit_probabilities([0.1, 0.2], [0, 0]) == [0, 0]


def sections(devices: int, rounds: int, **strategy: Any) -> dict[str, Any]:
    return {
        "learning": "off",
        "population": {
            "devices": devices,
            "samples": {"low": 100, "high": 3000},
            "speed": "100 samples/s",
        },
        "strategy": {"kind": "tifl"} | strategy,
        "stop": {"rounds": rounds},
    }


def drawn(run: RunFolder) -> list[int]:
    return [event["group"] for event in of_kind(run, "tier")]


@pytest.mark.parametrize(
    "shares",
    [None, [0.7, 0.1, 0.1, 0.05, 0.05], [0, 0, 0, 0, 1]],
    ids=["uniform", "random", "slow"],
)
def test_tiers_are_drawn_uniformly_or_as_a_static_policy_says_and_their_members_uniformly(
    shares: Any, tmp_path: Path
) -> None:
    how = {} if shares is None else {"mode": "static", "probabilities": shares}
    run = ran(sections(60, 500, tiers=5, clients_per_round=3, **how), tmp_path / "run")
    counts = Counter(drawn(run))
    for tier, share in enumerate(shares or [0.2] * 5):
        assert counts[tier] == pytest.approx(
            500 * share, abs=4 * (500 * share * (1 - share)) ** 0.5
        )
    chosen = Counter(
        event["device"] for event in of_kind(run, "task-start") if event["round"] is not None
    )
    for tier in range(5):
        members = [row["device"] for row in run.devices if row["group"] == tier]
        expected = counts[tier] * 3 / len(members)
        margin = 4.5 * (expected * (1 - 3 / len(members))) ** 0.5
        assert [chosen[device] for device in members] == pytest.approx(
            [expected] * len(members), abs=margin
        )


def test_a_small_tier_gives_all_its_members_and_an_empty_one_is_passed_over(
    small: dict[str, Any], tmp_path: Path
) -> None:
    small |= {"learning": "off"}
    small["population"] = {"devices": 40, "samples": "long-tail", "speed": "100 samples/s"}
    small["strategy"] = {"kind": "tifl", "tiers": 10, "clients_per_round": 8}
    small["stop"] = {"rounds": 60}
    run = ran(small, tmp_path / "run")
    members = Counter(row["group"] for row in run.devices)
    assert len(members) < 10
    assert set(drawn(run)) == set(members)
    for row, tier in zip(run.rounds, drawn(run), strict=True):
        assert row["selected"] == min(8, members[tier])


def test_credits_run_out_and_are_never_negative(small: dict[str, Any], tmp_path: Path) -> None:
    small["population"] |= {"availability": {"kind": "always"}}
    small["strategy"] = {
        "kind": "tifl",
        "tiers": 3,
        "mode": "credits",
        "credits": 4,
        "clients_per_round": 2,
    }
    small["strategy"] |= {"interval": 3}
    small["stop"] = {"rounds": 20}
    run = ran(small, tmp_path / "run")
    inhabited = len({row["group"] for row in run.devices})
    left = [event["data"]["credits"] for event in of_kind(run, "tier")]
    assert min(left) == 0
    assert Counter(drawn(run)[: 4 * inhabited]) == Counter(
        dict.fromkeys(sorted(set(drawn(run))), 4)
    )
    assert all(credit == 0 for credit in left[4 * inhabited :])
    tests = [event["data"] for event in of_kind(run, "tier-test")]
    assert len(tests) == 7  # before rounds 0, 3, .. 18
    assert tests[0]["probabilities"] == [1.0] * 3
    asked = [row for row in run.transfers if row["purpose"] == "test-accuracy"]
    assert all(row["bytes"] == 4.0 for row in asked)
    assert asked
    tested = sum(event["step"] == "evaluate" for event in of_kind(run, "step-end"))
    assert moved(run)["model"] == sum(row["selected"] for row in run.rounds) * 2600 + tested * 2600


def test_credits_follow_accuracies_on_test_samples(tmp_path: Path) -> None:
    """Three tiers that learn the same; the test labels of the first are all wrong, of the second
    half, of the third none.
    """
    draw = np.random.default_rng(1)
    shards, tests = [], []
    for device in range(6):
        x = draw.choice([-1.0, 1.0], size=(20 * (device // 2 + 1), 4))
        y = (x[:, 0] > 0).astype(np.int64)
        shards.append((x, y.tolist()))
        right = np.arange(8) < 4 * (device // 2)
        tests.append((x[:8], np.where(right, y[:8], 1 - y[:8]).tolist()))
    strategy = {
        "kind": "tifl",
        "tiers": 3,
        "mode": "credits",
        "interval": 20,
        "credits": 40,
        "clients_per_round": 2,
    }
    run = ran(
        world(file_data(tmp_path / "data", shards, tests), 6, strategy, 21, training={"lr": 0.5}),
        tmp_path / "run",
    )
    assert [row["group"] for row in run.devices] == [0, 0, 1, 1, 2, 2]
    last = [event["data"] for event in of_kind(run, "tier-test")][-1]
    assert last["accuracies"] == [0.0, 0.5, 1.0]
    assert last["probabilities"] == pytest.approx([3 / 6, 2 / 6, 1 / 6])


def test_probabilities_change_without_improvement(small: dict[str, Any], tmp_path: Path) -> None:
    small["population"] |= {"availability": {"kind": "always"}}
    small["strategy"] = {
        "kind": "tifl",
        "tiers": 3,
        "mode": "credits",
        "clients_per_round": 2,
        "interval": 2,
    }
    run = ran(small | {"stop": {"rounds": 24}}, tmp_path / "run")
    tests = [event["data"] for event in of_kind(run, "tier-test")]
    assert len(tests) == 12
    current = drawn(run)[1::2]  # the tier drawn last before each test but the first
    stays = 0
    for before, entry, tier in zip(tests, tests[1:], current, strict=False):
        if entry["accuracies"][tier] > before["accuracies"][tier]:
            assert entry["probabilities"] == before["probabilities"]
            stays += 1
        else:
            able = [tier for tier in range(3) if entry["probabilities"][tier]]
            assert max(entry["probabilities"]) == pytest.approx(2 / (len(able) + 1))
            assert max(able, key=lambda tier: entry["probabilities"][tier]) == min(
                able, key=lambda t: entry["accuracies"][t]
            )
    assert 0 < stays < len(tests) - 1


@pytest.mark.parametrize(
    ("back", "stopped"), [(50, "3 rounds"), (None, "no device can be put into a tier")]
)
def test_without_devices_at_first_it_waits_for_those_that_return(
    back: int | None, stopped: str, tmp_path: Path
) -> None:
    rows = "0,0,1" if back is None else f"0,{back},1000\n1,{back + 1},1000"
    (tmp_path / "there.csv").write_text(f"device,start,end\n{rows}\n")
    scenario = sections(2, 3, tiers=1, tiers_from="latency", clients_per_round=1)
    scenario["population"]["availability"] = {
        "kind": "intervals",
        "file": str(tmp_path / "there.csv"),
        "unit": "s",
    }
    assert ran(scenario, tmp_path / "run").summary["stopped"] == stopped


def test_profiled_latency_makes_tiers(tmp_path: Path) -> None:
    run = ran(sections(30, 5, tiers=3, tiers_from="latency", clients_per_round=3), tmp_path / "run")
    seconds = [row["samples"] / 100 for row in run.devices]  # one epoch, no network time
    assert [row["group"] for row in run.devices] == tiers_of(seconds, 3)


def test_a_deadline_shorter_than_a_tier_needs_leaves_its_rounds_without_an_update(
    tmp_path: Path,
) -> None:
    """T = 1 is the mean of 10 and 100 samples: nobody of the slow tier is ever in time, and
    `published.toml` says how often.
    """
    scenario = sections(
        8,
        30,
        tiers=2,
        clients_per_round=3,
        local_epochs=5,
        deadline={"kind": "relative", "times": 1.0},
    )
    scenario["population"] = {
        "devices": 8,
        "samples": [10] * 4 + [100] * 4,
        "speed": "10 samples/s",
    }
    run = ran(scenario, tmp_path / "run")
    asked = {event["round"]: event["device"] for event in of_kind(run, "task-start")}
    assert [row["valid"] for row in run.rounds] == [
        3 * (asked[row["round"]] < 4) for row in run.rounds
    ]
    slow = sum(asked[number] >= 4 for number in range(30))
    assert 0 < slow < 30
    assert Reading(title="x", take="zeros", column="valid").of(run) == pytest.approx(slow / 30)


# FedAT against known answers.

SPEEDS = {"kind": "lognormal", "median": "40 samples/s", "spread": 3.0}
FEDAT: dict[str, Any] = {"kind": "fedat", "tiers": 2, "clients_per_round": 2, "mu": 0.4}


def tiered(strategy: dict[str, Any], rounds: int) -> dict[str, Any]:
    population = {"devices": 12, "speed": SPEEDS}
    return {
        "seed": 2,
        "population": population,
        "strategy": FEDAT | strategy,
        "stop": {"rounds": rounds},
    }


def test_a_whole_run_replayed_by_hand(tmp_path: Path) -> None:
    """From the order of events alone: who was asked at which version, and whose updates made
    which.
    """
    population = {"devices": 4, "speed": SPEEDS, "jitter": 0.3}
    run, records = played(curved(tmp_path, FEDAT, 9, 3, population=population))
    begun, versions = {}, [5.0]
    tiers, counts = [5.0, 5.0], [0, 0]
    for record in records:
        if record.kind == "task-start" and record.fields["round"] is not None:
            assert record.fields["round"] == len(versions) - 1
            begun[record.fields["task"]] = (record.fields["device"], len(versions) - 1)
        elif record.kind == "aggregate":
            tier, ends = record.fields["group"], []
            for task, staleness in zip(
                record.fields["tasks"], record.fields["staleness"], strict=True
            ):
                device, version = begun.pop(task)
                assert staleness == len(versions) - 1 - version
                center, strength = PULLS[device]
                here = start = versions[version]
                for _ in range(3):
                    here -= 0.1 * (strength * (here - center) + 0.4 * (here - start))
                ends.append(here)
            tiers[tier], counts[tier] = float(np.mean(ends)), counts[tier] + 1
            versions.append((counts[1] * tiers[0] + counts[0] * tiers[1]) / sum(counts))
    assert min(counts) > 0
    assert counts[0] > counts[1], "the faster tier was not updated more often"
    assert model_of(run)[0] == pytest.approx(versions[-1], abs=1e-5)


def test_tiers_are_as_many_devices_each_by_measured_latency(tmp_path: Path) -> None:
    run = ran(tiered({"tiers": 3}, 6), tmp_path / "run")
    (made,) = of_kind(run, "latency-tiers")
    assert made["data"]["members"] == [4, 4, 4]
    expected = np.argsort(np.argsort([row["samples"] / row["speed"] for row in run.devices])) // 4
    assert [row["group"] for row in run.devices] == expected.tolist()
    assert moved(run)["profiling"] == 2 * 12 * 650 * 4


def test_the_audit_misses_an_update_of_the_tier_that_was_aggregated(tmp_path: Path) -> None:
    ran(tiered({"tiers": 3}, 6), tmp_path / "run")
    events(aggregated_never)(tmp_path / "run")
    assert "every valid update was aggregated once" in found(tmp_path / "run")


def test_private_aggregation_is_one_of_what_has_changed_in_the_model_that_was_sent(
    tmp_path: Path,
) -> None:
    how = {"kind": "private", "clip": 1e6, "noise": 0.0, "account": False}
    plain, private, clipped = (
        model_after(
            curved(
                tmp_path,
                FEDAT | {"aggregation": way},
                6,
                3,
                population={"devices": 4, "speed": SPEEDS},
            )
        )[0]
        for way in ("mean", how, how | {"where": "local", "clip": 1e-9})
    )
    assert private == pytest.approx(plain, abs=1e-5)
    assert clipped == pytest.approx(5.0, abs=1e-5), "clients did not clip what they have changed"


def test_devices_without_room_for_the_training_are_in_no_tier(tmp_path: Path) -> None:
    small = {"like": "raspberry-pi-zero-2w", "memory": "250 kB"}
    others = {
        "learning": "off",
        "data": {"source": "digits"},
        "model": {"kind": "mlp", "hidden": [200]},
    }
    others["population"] = {
        "devices": 8,
        "device": ["small", "raspberry-pi-4"] * 4,
        "kinds": {"small": small},
    }
    run = ran(tiered({"tiers": 4, "clients_per_round": 1}, 4) | others, tmp_path / "run")
    assert sorted(event["device"] for event in of_kind(run, "tier-drop")) == [0, 2, 4, 6]
    assert [row["group"] is None for row in run.devices] == [True, False] * 4
    few = ran(tiered({"tiers": 5, "clients_per_round": 1}, 4) | others, tmp_path / "few")
    assert few.summary["stopped"] == "fewer than 5 devices have room for the training"
