"""Former keys of scenarios: refused with what stands for them, and understood in run folders.

``tables-0.2.0.toml`` has the tables as version 0.2.0 wrote them.
"""

import tomllib
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.common.errors import ScenarioError
from fedsim.common.former_keys import understand

Table = dict[str, Any]

TABLES: Table = tomllib.loads(
    Path(__file__).with_name("tables-0.2.0.toml").read_text(encoding="utf-8")
)
LEFT_OUT = {  # keys that no default wrote, with a value
    "strategies": {
        "relative_deadline": 2.0,
        "deadline_from": "round",
        "profiling_limit": "1 min",
        "eps": 0.5,
        "exchange_deadline": "5 min",
        "warmup_iterations": 3,
    }
}
WITHOUT = {  # strategy -> keys of rounds that it never had
    "fedasync": {"relative_deadline", "deadline_from"},
    "fedbuff": {"relative_deadline", "deadline_from"},
    "cata-fed": {"deadline_from"},
}
OF_ONE = {
    "profiling_limit": "tifl",
    "eps": "lcfl",
    "exchange_deadline": "lcfl",
    "warmup_iterations": "lcfl",
}


def sections(**tables: Table) -> Table:
    return {"population": {"devices": 50}, "stop": {"rounds": 3}} | deepcopy(tables)


def former_tables() -> Iterator[tuple[str, Table, Table]]:
    """Name of a table, the table of 0.2.0, and a scenario in which it is empty but for its kind."""
    yield "training", TABLES["training"], {"training": {}}
    quantile = TABLES["quantile"]
    rule = {"kind": "quantile", "most": "1 min"}
    yield "strategy.deadline", quantile, {"strategy": {"kind": "fedavg", "deadline": rule}}
    for kind, table in TABLES["partitions"].items():
        yield "data.partition", table, {"data": {"partition": {"kind": kind}}}
    for kind, table in TABLES["strategies"].items():
        more = {
            key: value
            for key, value in LEFT_OUT["strategies"].items()
            if key not in WITHOUT.get(kind, ()) and OF_ONE.get(key, kind) == kind
        }
        yield "strategy", table | more, {"strategy": {"kind": kind}}


def test_each_removed_key_is_refused_with_what_stands_for_it() -> None:
    refused = 0
    for name, table, least in former_tables():
        for key, value in table.items():
            tables = sections(**least)
            place = tables
            for part in name.split("."):
                place = place[part]
            if key in place:
                continue
            place[key] = value
            try:
                fedsim.Scenario(**tables)
            except ScenarioError as error:
                message = str(error)
                if f"has the key {key!r}" not in message:
                    assert "unknown key" not in message, message
                    continue  # a key of today
                assert "allowed is '" in message or "remove it: " in message, message
                refused += 1
    assert refused == 136


def test_keys_without_replacement_are_to_be_removed() -> None:
    with pytest.raises(ScenarioError, match=r"'init' of an earlier version; .* always 'glorot'$"):
        fedsim.Scenario(training={"init": "torch"})
    with pytest.raises(ScenarioError, match=r"'profiling_limit' of .* all is now as without it$"):
        fedsim.Scenario(strategy={"kind": "tifl", "profiling_limit": "1 min"})


@pytest.mark.parametrize("kind", TABLES["strategies"])
def test_defaults_of_each_strategy_are_understood(kind: str) -> None:
    written = sections(training=TABLES["training"], strategy=TABLES["strategies"][kind])
    tables, is_former, lost = understand(written)
    assert is_former
    # CFL has other default thresholds now
    cfl = ["strategy.eps1_relative = 0.4", "strategy.eps2_ratio = 1.6"]
    assert lost == (cfl if kind == "cfl" else [])
    scenario = fedsim.Scenario(**tables)
    assert understand(tables).tables is tables  # nothing former is left
    assert understand(scenario.model_dump(mode="python", exclude_none=True)).is_former is False


@pytest.mark.parametrize("kind", TABLES["partitions"])
def test_defaults_of_each_partition_are_understood(kind: str) -> None:
    data = TABLES["data"] | {"partition": TABLES["partitions"][kind]}
    tables, is_former, lost = understand(
        sections(data=data, strategy=TABLES["strategies"]["fedavg"])
    )
    assert is_former
    assert lost == []
    fedsim.Scenario(**tables)


def converted(kind: str, **keys: object) -> tuple[Table, list[str]]:
    """The present table of a strategy, and what is lost; keys that are None are left out."""
    strategy = TABLES["strategies"][kind] | keys
    strategy = {key: value for key, value in strategy.items() if value is not None}
    tables, _, lost = understand(sections(training=TABLES["training"], strategy=strategy))
    fedsim.Scenario(**tables)
    return tables["strategy"], lost


def test_deadlines() -> None:
    relative = {"relative_deadline": 2.0, "reference_epochs": 3, "deadline_base": "all"}
    rule = {"kind": "relative", "times": 2.0, "epochs": 3, "devices": "all"}
    assert converted("fedavg", **relative)[0]["deadline"] == rule | {"since": "download"}
    from_round, _ = converted("fedavg", **relative, deadline_from="round")
    assert from_round["deadline"] == rule | {"since": "round"}
    assert converted("fedavg", deadline="20 s")[0]["deadline"] == "20 s"
    fixed, _ = converted("fedavg", deadline="20 s", deadline_from="download")
    assert fixed["deadline"] == {"kind": "fixed", "time": "20 s", "since": "download"}


def test_a_deadline_that_a_strategy_no_longer_has_is_lost() -> None:
    strategy = TABLES["strategies"]["flexcfl"] | {"relative_deadline": 2.0}
    lost = understand(sections(strategy=strategy)).lost
    assert lost == ["strategy.relative_deadline = 2.0"]


def test_keys_of_groups() -> None:
    flexcfl, _ = converted("flexcfl", shift_metric="oracle", on_arrival=False)
    assert flexcfl["moment"] == {
        "kind": "pre-training",
        "shift": "oracle",
        "devices": 20,
        "steps": 50,
        "newcomers": "selection",
    }
    assert flexcfl["follows"] == "published-code"
    paper = {"sweep": False, "epochs_after_cold_start": "less", "inter_group": "literal"}
    by_paper, lost = converted("flexcfl", **paper, pretrain_iterations=None, cold_start="madc")
    assert (by_paper["follows"], by_paper["measure"], lost) == ("paper", "madc", [])
    assert (by_paper["moment"]["epochs"], "steps" in by_paper["moment"]) == (1, False)
    at_random, _ = converted("flexcfl", cold_start="random-centers", newcomers="random")
    assert at_random["clusterer"] == {"kind": "random"}
    assert at_random["moment"]["newcomers"] == "random"
    assert converted("ifca", sweep=False)[0]["follows"] == "paper"
    assert "shift" not in converted("ifca-mig")[0]["moment"]
    assert converted("ifca-mig", dynamic=False)[0]["moment"]["shift"] == "never"
    assert converted("fedgroup", dynamic=True)[0]["moment"]["shift"] == "aligned_l1"
    assert converted("cfl", split_rounds=[3], split_step="parent")[0]["follows"] == "paper"


def test_keys_of_lcfl() -> None:
    rounds, _ = converted("lcfl", exchange_deadline="5 min", metric="grad-cos")
    assert rounds["moment"] == {
        "kind": "rounds",
        "rounds": 5,
        "participation": 1.0,
        "deadline": "5 min",
    }
    assert rounds["measure"] == "update-cos"
    assert rounds["clusterer"] == {"kind": "k-medoids", "start": "build"}
    local, _ = converted(
        "lcfl", warmup="local", warmup_iterations=3, local_start="own", clustering="hierarchical"
    )
    assert local["moment"] == {"kind": "local", "start": "own", "epochs": 10, "steps": 3}
    assert local["clusterer"] == {"kind": "hierarchical", "linkage": "average"}
    assert converted("lcfl", start="heuristic")[0]["follows"] == "published-code"


def test_keys_of_other_strategies() -> None:
    assert converted("cata-fed")[0]["upload_time"] == "ignored"
    assert converted("cata-fed", reserve_upload=True)[0]["upload_time"] == "reserved"
    fedbuff, _ = converted("fedbuff", server_lr=0.5)
    assert (fedbuff["server"]["kind"], fedbuff["server"]["lr"]) == ("sgd", 0.5)
    assert "server" not in converted("fedbuff")[0]


@pytest.mark.parametrize(
    ("kind", "key", "value", "lost"),
    [
        ("cfl", "min_cluster_size", 3, "strategy.min_cluster_size = 3"),
        ("cfl", "sweep", True, "strategy.sweep = true"),
        ("fesem", "sweep", False, "strategy.sweep = false"),
        ("cata-fed", "margin", "2 s", "strategy.margin = '2 s'"),
        ("tifl", "accuracy_from", "measurement", ""),  # only counts with credits
        ("lcfl", "exchange_attempts", 1, "strategy.exchange_attempts = 1"),
        ("flexcfl", "shift_threshold", 0.1, "strategy.shift_threshold = 0.1"),
    ],
)
def test_values_without_an_equal_are_named(kind: str, key: str, value: object, lost: str) -> None:
    keys = {"split_rounds": [1]} if kind == "cfl" else {}
    assert converted(kind, **keys, **{key: value})[1] == ([lost] if lost else [])


def test_what_was_not_written_means_what_was_done() -> None:
    written = sections(
        training=TABLES["training"] | {"init": "torch"},
        strategy=TABLES["strategies"]["fedavg"],
        network={"kind": "star"},
    )
    written["population"] |= {"jitter": 0.1, "stragglers": {"share": 0.5, "factor": 0.3}}
    tables, _, lost = understand(written)
    assert lost == ["training.init = 'torch'"]
    assert tables["network"]["protocol"]["kind"] == "fluid"
    assert tables["training"]["last_batch"] == "keep"
    assert tables["population"]["jitter"] == {"kind": "constant", "value": 0.1}
    assert tables["population"]["stragglers"]["factor"] == {"kind": "constant", "value": 0.3}
    present = fedsim.Scenario(network={"kind": "star"}).model_dump(mode="json")["network"]
    assert tables["network"]["protocol"] == present["protocol"]


def test_a_damaged_scenario_is_left_as_it_is() -> None:
    for damaged in (
        {},
        {"strategy": 3},
        {"strategy": {}},
        {"strategy": {"kind": "cfl"}, "data": 1},
    ):
        assert understand(damaged) == (damaged, False, [])


def test_own_parts_may_have_keys_of_such_names() -> None:
    own = {"kind": "./mine.py:Mine", "relative_deadline": 2.0, "sweep": True}
    trainer = {"kind": "./mine.py:Trainer", "init": "torch"}
    present = sections(strategy=own, training=trainer)
    assert understand(present) == (present, False, [])
    former = sections(strategy=own, training=TABLES["training"])
    assert understand(former).tables["strategy"] == own
    rounds = {"reference_epochs": 5, "deadline_base": "unslowed"}
    former = sections(strategy=own | rounds, training=TABLES["training"])
    strategy = understand(former).tables["strategy"]
    assert strategy["deadline"]["kind"] == "relative"
    assert strategy["sweep"] is True
