"""Fine-tuning: what each device would have if it trained its model further; and why a run has no accuracy."""

import asyncio
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import fedsim
from fedsim.evaluation.evaluator import EvaluationSpec, Evaluator
from fedsim.language.stop import StopSpec
from fedsim.output.terminal import summary_lines
from fedsim.strategies.fedavg import FedAvg
from tests.strategies.clustered import PAIRED, ROTATED, played, world

if TYPE_CHECKING:
    from fedsim.evaluation.evaluator import WorldView
    from fedsim.learning import Learner


def skewed(small: dict[str, Any], **evaluation: Any) -> fedsim.Scenario:
    """Devices that hold two digits each, so that a model of their own is better than one for all."""
    small["data"] = {"source": "digits", "partition": {"kind": "power-law", "classes_per_device": 2, "minimum_per_class": 5}}
    return fedsim.Scenario(**small | {"evaluation": evaluation})


@pytest.mark.parametrize(("every", "from_round"), [*itertools.product((1, 2, 3, 7), (0, 1, 2, 5, 6, 7, 20))])
def test_the_number_of_tests_is_that_of_the_rounds_that_are_due(every: int, from_round: int) -> None:
    spec = EvaluationSpec(every=every, from_round=from_round)
    for rounds in range(1, 16):
        evaluator = Evaluator(cast("Learner", None), StopSpec(rounds=rounds), spec, cast("WorldView", None))
        assert spec.tests(rounds) == sum(map(evaluator._is_due, range(rounds)))


@pytest.mark.parametrize("kind", ["fedavg", "ifca"])
def test_it_is_measured_when_all_is_done_and_changes_nothing(small: dict[str, Any], kind: str) -> None:
    """Each device trains the model of its own group."""
    small["strategy"] = {"kind": kind, "local_epochs": 2, "clients_per_round": 5}
    plain, tuned = (fedsim.run(skewed(small, fine_tune_epochs=epochs)).summary for epochs in (0, 2))
    assert plain["accuracy"].keys() == {"final", "best"}
    assert "no accuracy" not in "".join(summary_lines(plain))
    assert 1 >= tuned["accuracy"]["fine_tuned"] > plain["accuracy"]["final"] + 0.05
    for key in ("events_sha256", "models_sha256", "rounds"):
        assert tuned[key] == plain[key]


def test_the_training_loss_of_the_first_epoch_is_that_of_a_run_of_one_epoch(small: dict[str, Any]) -> None:
    small["population"] |= {"availability": {"kind": "always"}}
    found = []
    for epochs, which in ((1, "last"), (4, "first"), (4, "last")):
        small |= {"strategy": {"kind": "fedavg", "clients_per_round": 5, "local_epochs": epochs}, "stop": {"rounds": 2}}
        found.append(fedsim.run(fedsim.Scenario(**small, evaluation={"train_loss": which})))
    once, first, last = (result.rows[0]["train_loss"] for result in found)
    assert once == first > last
    assert found[1].summary["models_sha256"] == found[2].summary["models_sha256"]


def test_a_historical_score_tests_a_group_on_all_that_were_ever_in_it() -> None:
    """By hand from the records of who was put where; devices move, so it is another score than that of who is there now."""
    strategy = {"kind": "ifca", "groups": 3, "clients_per_round": 10, "local_epochs": 1}
    drift = {"kind": "swap-all", "probability": 1.0, "at": {"rounds": [3]}}
    run, records = played(world(PAIRED, 10, strategy, 6) | {"evaluation": {"score": "historical"}, "drift": drift})
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
    shares = [asyncio.run(run.evaluator.test(run.strategy.state["models"][group], [device])) for group, device in pairs]
    assert told == pytest.approx(sum(share * count for share, count in zip(shares, counts, strict=True)) / sum(counts))


@pytest.mark.parametrize(
    ("strategy", "kinds"),
    [
        ({"kind": "fedavg", "clients_per_round": 3, "deadline": "1 ms"}, set()),  # nobody is ever in time
        ({"kind": "fedasync", "concurrency": 4}, set()),  # one update a version has no other to be compared with
        ({"kind": "fedbuff", "concurrency": 6, "buffer": 6}, {"alike", "unlike"}),
        ({"kind": "lcfl", "groups": 4, "local_epochs": 1, "moment": {"rounds": 2}}, {"alike", "unlike", "settled", "across"}),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_cosines_are_of_pairs_that_there_are(strategy: dict[str, Any], kinds: set[str]) -> None:
    sections = world(ROTATED, 8, strategy, 3) | {"evaluation": {"cosines": True}}
    told = [record.fields for record in played(sections)[1] if record.kind == "cosines"]
    assert {kind for fields in told for kind in fields} - {"round"} == kinds
    for fields in told:
        assert all(-1.000001 <= least <= mean <= most <= 1.000001 for least, mean, most in list(fields.values())[1:])


class Modelless(FedAvg):
    """Shows no model."""

    def models(self) -> dict[str, Any]:
        return {}


def without_tests(folder: Path) -> dict[str, Any]:
    """Data of 20 devices of which none has a test sample."""
    parts = {str(device): {"train": list(range(10 * device, 10 * device + 10)), "test": []} for device in range(20)}
    (folder / "parts.json").write_text(json.dumps(parts))
    return {"source": "digits", "root": str(folder), "partition": {"kind": "file", "path": "parts.json"}}


TOO_LATE = {"kind": "ifca", "groups": 2, "clients_per_round": 6, "local_epochs": 200, "deadline": "1200 ms"}
SELDOM = {"stop": {"simulated_time": "40 s"}}
GONE = {"departures": {"kind": "exponential", "mean_stay": "50 ms"}}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"learning": "off"}, 'learning = "off"'),
        ({"stop": {"simulated_time": "100 ms"}}, "not one round came to an aggregation"),
        ({"learning": "off", "stop": {"simulated_time": "100 ms"}}, "not one round came to an aggregation"),
        (SELDOM | {"evaluation": {"every": 50}}, "no round was to be tested (evaluation.every = 50, "),
        (SELDOM | {"evaluation": {"from_round": 50}}, "evaluation.from_round = 50"),
        ({"strategy": {"kind": f"{__name__}:Modelless", "clients_per_round": 4}}, "the strategy has no model"),
        ({"strategy": TOO_LATE}, "no device ever got a group"),
        ({"population": GONE, "stop": {"rounds": 1}}, "no device that has a model was there"),
        ({"data": without_tests}, "no device that was tested has test samples"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_a_run_without_accuracy_says_why(small: dict[str, Any], tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    for key, change in changes.items():
        value = change(tmp_path) if callable(change) else change
        small[key] = small[key] | value if key == "population" else value
    small["evaluation"] = small.get("evaluation", {}) | {"fine_tune_epochs": 1}
    summary = fedsim.run(fedsim.Scenario(**small), executor="inline").summary
    tuned = summary["accuracy"].pop("fine_tuned")
    assert summary["accuracy"] == {"final": None, "best": None}
    assert tuned is None or "learning" not in changes
    assert [line for line in summary_lines(summary) if line.startswith(f"no accuracy: {summary['no_accuracy']}")]
    assert why in summary["no_accuracy"]
