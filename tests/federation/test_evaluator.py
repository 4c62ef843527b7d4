"""When and how accuracy is counted, against a naive loop over devices; agreement of groups with
the true ones.
"""

import asyncio
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from torch import nn
from torch.nn import functional

import fedsim
from fedsim.clock.executors import Threads
from fedsim.common.stop import StopSpec
from fedsim.federation.evaluation_spec import EvaluationSpec
from fedsim.federation.evaluator import Evaluator, WorldView
from fedsim.federation.group_agreement import measure_agreement
from fedsim.federation.stop_rules import StopRules
from fedsim.lab.terminal import summary_lines
from fedsim.learning import Learner, testsets
from fedsim.learning.data.federated import FederatedData, Shard
from fedsim.learning.engine import Learning
from fedsim.learning.evaluation import Evaluation
from fedsim.learning.models import CNN5, Logistic, ModelSpec, Perceptron
from fedsim.learning.refs import Ref
from fedsim.learning.solvers.reference import load_weights, module_of
from fedsim.strategies.fedavg import FedAvg
from tests.learning.small import federation, learning, run
from tests.strategies.runs import played
from tests.strategies.worlds import PAIRED, ROTATED, world


def skewed(small: dict[str, Any], **evaluation: Any) -> fedsim.Scenario:
    """Devices that hold two digits each, so that a model of their own is better than one for
    all.
    """
    small["data"] = {
        "source": "digits",
        "partition": {"kind": "power-law", "classes_per_device": 2},
    }
    return fedsim.Scenario(**small | {"evaluation": evaluation})


@pytest.mark.parametrize(
    ("every", "from_round"), [*itertools.product((1, 2, 3, 7), (0, 1, 2, 5, 6, 7, 20))]
)
def test_the_number_of_tests_is_that_of_the_rounds_that_are_due(
    every: int, from_round: int
) -> None:
    spec = EvaluationSpec(every=every, from_round=from_round)
    for rounds in range(1, 16):
        evaluator = Evaluator(
            cast("Learner", None),
            StopRules(StopSpec(rounds=rounds)),
            spec,
            cast("WorldView", None),
        )
        assert spec.tests(rounds) == sum(map(evaluator._is_due, range(rounds)))


@pytest.mark.parametrize("kind", ["fedavg", "ifca"])
def test_it_is_measured_when_all_is_done_and_changes_nothing(
    small: dict[str, Any], kind: str
) -> None:
    """Each device trains the model of its own group."""
    small["strategy"] = {"kind": kind, "local_epochs": 2, "clients_per_round": 5}
    plain, tuned = (fedsim.run(skewed(small, fine_tune_epochs=epochs)).summary for epochs in (0, 2))
    assert plain["accuracy"].keys() == {"final", "best"}
    assert "no accuracy" not in "".join(summary_lines(plain))
    assert 1 >= tuned["accuracy"]["fine_tuned"] > plain["accuracy"]["final"] + 0.05
    for key in ("events_sha256", "models_sha256", "rounds"):
        assert tuned[key] == plain[key]


def test_the_training_loss_of_the_first_epoch_is_that_of_a_run_of_one_epoch(
    small: dict[str, Any],
) -> None:
    small["population"] |= {"availability": {"kind": "always"}}
    found = []
    for epochs, which in ((1, "last"), (4, "first"), (4, "last")):
        small |= {
            "strategy": {"kind": "fedavg", "clients_per_round": 5, "local_epochs": epochs},
            "stop": {"rounds": 2},
        }
        found.append(fedsim.run(fedsim.Scenario(**small, evaluation={"train_loss": which})))
    once, first, last = (result.rows[0]["train_loss"] for result in found)
    assert once == first > last
    assert found[1].summary["models_sha256"] == found[2].summary["models_sha256"]


def test_a_historical_score_tests_a_group_on_all_that_were_ever_in_it() -> None:
    """By hand from the records of who was put where; devices move, so it is another score than
    that of who is there now.
    """
    strategy = {"kind": "ifca", "groups": 3, "clients_per_round": 10, "local_epochs": 1}
    drift = {"kind": "swap-all", "probability": 1.0, "at": {"rounds": [3]}}
    run, records = played(
        world(PAIRED, 10, strategy, 6) | {"evaluation": {"score": "historical"}, "drift": drift}
    )
    served: dict[int, set[int]] = {group: set() for group in range(3)}
    now: dict[int, int] = {}
    for record in records:
        if record.kind == "assign":
            now[record.fields["device"]] = record.fields["group"]
        if record.kind == "round":
            told = record.fields["accuracy"]
            for device, group in now.items():
                served[group].add(device)
    pairs = [(group, device) for group, devices in served.items() for device in sorted(devices)]
    assert len(pairs) > 10
    counts = [len(run.data.current(device).test) for _, device in pairs]
    shares = [
        asyncio.run(run.evaluator.test(run.strategy.state["models"][group], [device]))
        for group, device in pairs
    ]
    assert told == pytest.approx(
        sum(share * count for share, count in zip(shares, counts, strict=True)) / sum(counts)
    )


@pytest.mark.parametrize(
    ("strategy", "kinds"),
    [
        # nobody is ever in time
        ({"kind": "fedavg", "clients_per_round": 3, "deadline": "1 ms"}, set()),
        # one update a version has no other to be compared with
        ({"kind": "fedasync", "concurrency": 4}, set()),
        ({"kind": "fedbuff", "concurrency": 6, "buffer": 6}, {"alike", "unlike"}),
        (
            {"kind": "lcfl", "groups": 4, "local_epochs": 1, "moment": {"rounds": 2}},
            {"alike", "unlike", "settled", "across"},
        ),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_cosines_are_of_pairs_that_there_are(strategy: dict[str, Any], kinds: set[str]) -> None:
    sections = world(ROTATED, 8, strategy, 3) | {"evaluation": {"cosines": True}}
    told = [record.fields for record in played(sections)[1] if record.kind == "cosines"]
    assert {kind for fields in told for kind in fields} - {"round"} == kinds
    for fields in told:
        assert all(
            -1.000001 <= least <= mean <= most <= 1.000001
            for least, mean, most in list(fields.values())[1:]
        )


class Modelless(FedAvg):
    """Shows no model."""

    def models(self) -> dict[str, Any]:
        return {}


def without_tests(folder: Path) -> dict[str, Any]:
    """Data of 20 devices of which none has a test sample."""
    parts = {
        str(device): {"train": list(range(10 * device, 10 * device + 10)), "test": []}
        for device in range(20)
    }
    (folder / "parts.json").write_text(json.dumps(parts))
    return {
        "source": "digits",
        "root": str(folder),
        "partition": {"kind": "file", "path": "parts.json"},
    }


TOO_LATE = {
    "kind": "ifca",
    "groups": 2,
    "clients_per_round": 6,
    "local_epochs": 200,
    "deadline": "1200 ms",
}
SELDOM = {"stop": {"simulated_time": "40 s"}}
GONE = {"departures": {"kind": "exponential", "mean_stay": "50 ms"}}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"learning": "off"}, 'learning = "off"'),
        ({"stop": {"simulated_time": "100 ms"}}, "not one round came to an aggregation"),
        (
            {"learning": "off", "stop": {"simulated_time": "100 ms"}},
            "not one round came to an aggregation",
        ),
        (
            SELDOM | {"evaluation": {"every": 50}},
            "no round was to be tested (evaluation.every = 50, ",
        ),
        (SELDOM | {"evaluation": {"from_round": 50}}, "evaluation.from_round = 50"),
        (
            {"strategy": {"kind": f"{__name__}:Modelless", "clients_per_round": 4}},
            "the strategy has no model",
        ),
        ({"strategy": TOO_LATE}, "no device ever got a group"),
        ({"population": GONE, "stop": {"rounds": 1}}, "no device that has a model was there"),
        ({"data": without_tests}, "no device that was tested has test samples"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_a_run_without_accuracy_says_why(
    small: dict[str, Any], tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    for key, change in changes.items():
        value = change(tmp_path) if callable(change) else change
        small[key] = small[key] | value if key == "population" else value
    small["evaluation"] = small.get("evaluation", {}) | {"fine_tune_epochs": 1}
    summary = fedsim.run(fedsim.Scenario(**small), executor="inline").summary
    tuned = summary["accuracy"].pop("fine_tuned")
    assert summary["accuracy"] == {"final": None, "best": None}
    assert tuned is None or "learning" not in changes
    assert [
        line
        for line in summary_lines(summary)
        if line.startswith(f"no accuracy: {summary['no_accuracy']}")
    ]
    assert why in summary["no_accuracy"]


@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(-2, 3)), min_size=1, max_size=30))
def test_measures_are_those_of_scikit_learn_over_who_has_a_group(
    pairs: list[tuple[int, int]],
) -> None:
    groups, truth = map(list, zip((4, 0), *pairs, strict=True))
    found, real = map(
        list,
        zip(
            *((group, kind) for group, kind in zip(groups, truth, strict=True) if group >= 0),
            strict=True,
        ),
    )
    purity = sum(
        max(Counter(kind for at, kind in zip(found, real, strict=True) if at == group).values())
        for group in {*found}
    )
    assert measure_agreement(groups, truth) == {
        "purity": pytest.approx(purity / len(real)),
        "ari": pytest.approx(adjusted_rand_score(real, found), abs=1e-12),
        "nmi": pytest.approx(normalized_mutual_info_score(real, found), abs=1e-12),
    }


def test_many_devices_do_not_overflow() -> None:
    truth = np.random.default_rng(0).integers(0, 2, 300_000)
    groups = truth.copy()
    groups[0] = 1 - groups[0]
    assert 0.9999 < measure_agreement(groups, truth)["ari"] < 1


MODELS: list[ModelSpec] = [Logistic(), Perceptron(hidden=[9]), CNN5()]


def _naive(
    core: Learning, model: ModelSpec, data: FederatedData, ref: Ref, shard: Shard
) -> tuple[int, float]:
    module: nn.Module = module_of(model.architecture(data.pool.shape, data.pool.classes))  # type: ignore[union-attr]
    load_weights(list(module.parameters()), run(core.value(ref)))
    x, y = map(torch.from_numpy, data.test_samples(shard))
    with torch.no_grad():
        outputs = module(x)
    return int((outputs.argmax(1) == y).sum()), float(
        functional.cross_entropy(outputs, y, reduction="sum")
    )


def _data() -> FederatedData:
    """Devices that share test images, turn them, and rename their labels."""
    data = federation([5] * 6, tests=11, shape=(1, 8, 8), classes=4)
    shards = data.shards
    data.shards[1] = Shard(shards[1].train, shards[0].test)
    data.shards[2] = Shard(shards[2].train, shards[0].test, quarter_turns=1)
    data.shards[3] = Shard(shards[3].train, shards[3].test, label_map=np.array([2, 3, 0, 1]))
    data.shards[4] = Shard(shards[4].train, shards[4].test[:0])
    data._later[5, 1] = Shard(shards[5].train, shards[2].test, quarter_turns=3)
    return data


def _check(found: Evaluation, expected: list[tuple[int, float]]) -> None:
    assert found.correct.tolist() == [correct for correct, _ in expected]
    assert np.allclose(found.loss_sum, [loss for _, loss in expected], rtol=1e-4)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_one_model_on_all_devices_a_model_a_device_and_a_model_a_group(model: ModelSpec) -> None:
    data = _data()
    core, _ = learning(data, model)
    refs = [core.initial(at) for at in range(6)]
    one = run(core.evaluate({"global": (refs[0], None)}))
    right = [_naive(core, model, data, refs[0], data.shard(device)) for device in range(6)]
    _check(one, right)
    assert one.count.tolist() == [11, 11, 11, 11, 0, 11]
    assert one.accuracy == sum(correct for correct, _ in right) / 55
    assert one.loss == pytest.approx(sum(loss for _, loss in right) / 55, rel=1e-4)
    expected = [
        _naive(core, model, data, ref, data.shard(device)) for device, ref in enumerate(refs)
    ]
    _check(
        run(
            core.evaluate({f"device/{device}": (ref, [device]) for device, ref in enumerate(refs)})
        ),
        expected,
    )
    groups = run(
        core.evaluate({"a": (refs[0], [3, 0, 3]), "b": (refs[1], [1]), "c": (refs[2], [])})
    )
    assert groups.devices == [3, 0, 3, 1]
    _check(groups, [right[3], right[0], right[3], expected[1]])


def _turned(count: int, tests: int) -> FederatedData:
    """Images in all four orientations, each held by two devices, some under other labels."""
    data = federation([5] * count, tests=tests, shape=(1, 7, 7), classes=4)
    shards = list(data.shards)
    for device, shard in enumerate(shards):
        labels = np.roll(np.arange(4), device) if device % 3 == 0 else None
        data.shards[device] = Shard(shard.train, shards[device // 2].test, device // 2 % 4, labels)
        data._later[device, 1] = Shard(shard.train, shard.test, (device + 1) % 4)
    return data


@pytest.mark.parametrize(
    "room", [1 << 30, 200_000, 100_000, 0], ids=["all", "two groups", "a group", "none"]
)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_groups_that_change_are_tested_as_if_for_the_first_time(
    model: ModelSpec, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _turned(60, 13)
    monkeypatch.setattr(testsets, "_BLOCK_NUMBERS", 7 * 7 * 50)  # so that there are many
    fresh = [learning(data, model)[0] for _ in range(4)]
    expected = []
    for number, core in enumerate(fresh):
        for device in range(number):
            core.shift(device, 1)
        expected.append(run(core.evaluate(_served(core, number))))
    monkeypatch.setattr(testsets, "_KEPT_BYTES", room)
    used, _ = learning(data, model, Threads(2))
    for number in range(4):
        if number:
            used.shift(number - 1, 1)
        found = run(used.evaluate(_served(used, number)))
        assert found.loss_sum.tobytes() == expected[number].loss_sum.tobytes()
        assert found.correct.tolist() == expected[number].correct.tolist()
        lists = used._tests._lists
        assert len(lists) <= 1 or sum(each.bytes for each in lists.values()) <= room
    used._simulation.executor.close()
    models = _served(used, 3).values()
    tested = [
        (ref, device)
        for ref, served in models
        for device in (range(60) if served is None else served)
    ]
    _check(
        found,
        [
            _naive(used, model, data, ref, data.shard(device, int(device < 3)))
            for ref, device in tested
        ],
    )


def _served(core: Learning, number: int) -> dict[str, tuple[Ref, list[int] | None]]:
    """Devices dealt to three groups, some to none and some to two; and all."""
    draw = np.random.default_rng(number)
    groups = [np.flatnonzero(draw.random(60) < 0.4).tolist() for _ in range(3)]
    return {str(at): (core.initial(at), group) for at, group in enumerate(groups)} | {
        "all": (core.initial(), None)
    }


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_nobody_to_test_and_nothing_to_be_tested_on(model: ModelSpec) -> None:
    core, _ = learning(_data(), model)
    refs = [core.initial(at) for at in range(2)]
    nothing = run(core.evaluate({"a": (refs[0], []), "b": (refs[1], [])}))
    assert (nothing.devices, nothing.count.sum(), nothing.accuracy_and_loss("pooled")) == (
        [],
        0,
        (None, None),
    )
    assert run(core.evaluate({})).devices == []
    untested = run(core.evaluate({"a": (refs[0], [4]), "b": (refs[0], [4, 4])}))
    assert (untested.devices, untested.count.tolist()) == ([4, 4, 4], [0, 0, 0])


def test_scores() -> None:
    evaluation = Evaluation(
        [3, 5, 8], np.array([1, 6, 0]), np.array([2, 8, 0]), np.array([1.0, 2.0, 0.0])
    )
    assert evaluation.accuracy_and_loss("pooled") == (0.7, 0.3)
    assert evaluation.accuracy_and_loss("device-mean") == (0.625, 0.375)
    assert evaluation.device_accuracy() == {3: 0.5, 5: 0.75, 8: None}
    nothing = Evaluation([], np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    assert (
        nothing.accuracy_and_loss("pooled")
        == nothing.accuracy_and_loss("device-mean")
        == (None, None)
    )
    diverged = Evaluation([1], np.array([1]), np.array([2]), np.array([np.inf]))
    assert diverged.accuracy_and_loss("pooled") == (0.5, None)
