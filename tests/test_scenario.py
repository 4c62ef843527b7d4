"""Scenarios: read, resolved, altered, written back; and one clear message for whatever is wrong,
or would never end.
"""

import copy
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.clock.simulation import Simulation, on_grid, on_grid_after
from fedsim.common.errors import ScenarioError
from fedsim.common.spec import Spec, _modes_of
from fedsim.common.units import CLOCK_END_S
from fedsim.running.overrides import at, changed, first_difference, nest_dotted_keys, read_toml
from fedsim.strategies import STRATEGIES
from fedsim.testing import eventful_world, run
from fedsim.toolbox.aggregation.robust import Bulyan, Krum, cut_off
from tests.strategies.runs import of_kind, ran
from tests.strategies.test_hierfavg import with_cells

LOGNORMAL = {"kind": "lognormal", "median": "60 samples/s", "spread": 2.0}


def replaced(sections: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    sections = copy.deepcopy(sections)
    *keys, last = path.split(".")
    table = at(sections, keys)
    if value is None:
        del table[last]
    else:
        table[last] = value
    return sections


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("sed", 3, r"has the unknown key 'sed'.*did you mean 'seed'"),
        (
            "population.spede",
            "3 samples/s",
            r"population has the unknown key 'spede'; allowed are .*did you mean 'speed'",
        ),
        (
            "strategy.kind",
            "fedavgg",
            r"^strategy.kind is 'fedavgg'; allowed are .*fedavg.*did you mean 'fedavg'",
        ),
        (
            "strategy.kind",
            "fedsim.common.errors:FedsimError",
            r"not a subclass of fedsim.plugin.Strategy",
        ),
        ("strategy.mu", 1.0, r"strategy has the unknown key 'mu'"),
        (
            "strategy.clients_per_round",
            21,
            r"clients_per_round is 21.*20 devices; allowed are 1 to 20",
        ),
        (
            "strategy.over_selection",
            5.0,
            r"over_selection 5 asks 30.*20 devices; .* product is at most 20",
        ),
        ("strategy.deadline", "0 s", r"strategy.deadline is '0 s': a time here must be above 0 s"),
        ("strategy.deadline", 30, r"strategy.deadline is 30: a time needs its unit.*min"),
        (
            "strategy.deadline",
            "./no.py:Such",
            r"^strategy.deadline.kind is './no.py:Such', which cannot be imported",
        ),
        ("strategy.deadline", "-3 s", r"strategy.deadline is '-3 s': a time cannot be negative"),
        (
            "population.availability.kind",
            "renewl",
            r"availability.kind is 'renewl'; allowed.*did you mean 'renewal'",
        ),
        ("population.availability.mean_on", None, r"population.availability.mean_on is missing"),
        (
            "population.availability",
            {},
            r"population.availability.kind is missing; allowed are always, renewal, ",
        ),
        (
            "network",
            {"device": {"up": "1 Mbit/s"}},
            r"^network.kind is missing; allowed are star, tree, graph, regions$",
        ),
        (
            "malicious",
            0.2,
            r"^malicious is 0.2; it must be a table, and 'fedsim list malicious' names its keys$",
        ),
        (
            "population.devices",
            "many",
            r"population.devices is 'many'; it must be a whole number, such as 10",
        ),
        ("population.speed", "fast", r"population.speed.* is .*'fast'.*samples/s"),
        ("population.capacity", {"kind": "fedscale"}, r"population: 'speed' and 'capacity'"),
        *(
            (
                "network.device.up",
                value,
                r"up.kind is './my.py:Mine', a class of your own, which is not taken here; "
                r"allowed are con",
            )
            for value in ("./my.py:Mine", {"kind": "./my.py:Mine"})
        ),
        (
            "network.server.up",
            "3 apples",
            r"network.server.up is '3 apples': a data rate is a number and a unit",
        ),
        ("data.source", "mnits", r"data.source.*mnits.*allowed.*mnist"),
        *(
            ("data", pair, "go together only")
            for pair in ({"source": "synthetic", "partition": "iid"}, {"partition": "synthetic"})
        ),
        ("model", {"kind": "mpl"}, r"model.kind is 'mpl'.*did you mean 'mlp'"),
        ("stop.rounds", None, r"stop: a run needs an end"),
        (
            "stop.accuracy",
            1.5,
            r"^stop.accuracy is 1.5; it must be at most 1 \(did you mean 0.015\?\)$",
        ),
        (
            "stop.accuracy",
            90,
            r"^stop.accuracy is 90; it must be at most 1 \(did you mean 0.9\?\)$",
        ),
        ("stop.rounds", 1.5, r"^stop.rounds is 1.5; it must be a whole number, such as 2$"),
        ("training.lr", "0.1", r"^training.lr is '0.1'; it must be a number, such as 0.1$"),
        (
            "model",
            {"kind": "mlp", "hidden": 30},
            r"^model.hidden is 30; it must be a list, such as \[30\]$",
        ),
        (
            "model",
            {"kind": "mlp", "hidden": [True]},
            r"^model.hidden.0 is True; it must be a whole number, such as 1$",
        ),
        ("name", 3, r"^name is 3; it must be a text in quotes, such as '3'$"),
        ("name", "n" * 201, r"; it must have at most 200 characters$"),
        ("learning", "maybe", r"learning is 'maybe'; allowed are on, off"),
        ("messages", {"up": {"dtype": "float8"}}, r"messages.up.dtype is 'float8'.*float64"),
        ("model", {"kind": "size", "bytes": "3 MB"}, r"model.kind is 'size'"),
        # What would fill the memory, never end, or cannot be computed with.
        ("population.devices", 2**31, "at most 100,000,000"),
        ("population.jitter", 1e300, "at most 100"),
        (
            "population.speed",
            "1e-320 samples/s",
            "1e-06 samples/s to 1e.15 samples/s, and inf samples/s",
        ),
        (
            "population.speed",
            {"kind": "uniform", "low": "1 samples/s", "high": "inf samples/s"},
            "'high' must be finite",
        ),
        (
            "population.slow_phases",
            {"factor": 0.5, "mean_normal": "10 s", "mean_slow": "1e-320 s"},
            "0.001 s to 1e.10 s",
        ),
        ("population.samples", {"low": 1, "high": 10**30}, "at most 1,000,000,000"),
        ("network", {"kind": "tree", "cells": 10**9}, "at most 100,000"),
        ("network.device.latency", "1e12 s", "1e-09 s to 1e.10 s"),
        ("model", {"kind": "size", "bytes": "inf B"}, "0.001 B to 1e.15 B"),
        ("model", {"kind": "mlp", "hidden": [10**9]}, "at most 1,000,000"),
        ("strategy.local_epochs", 10**9, "at most 100,000"),
        ("strategy", {"kind": "ifca", "groups": 10**9}, "at most 10,000"),
        ("strategy", {"kind": "flexcfl", "moment": {"steps": 10**9}}, "at most 1,000,000"),
        ("strategy", {"kind": "flexcfl", "pretrain_iterations": 10}, "allowed is .moment.steps."),
        ("strategy.over_selection", float("inf"), "a finite number"),
        ("model", {"kind": "x" * 200_000}, "allowed are logistic"),
        ("training.lr", 1e300, "at most 1,000,000"),
        ("training.batch_size", 2**64, "at most 1,000,000,000"),
        ("data.partition", {"kind": "class-imbalance", "largest": 2**64}, "at most 1,000,000,000"),
        ("stop.simulated_time", "inf s", "1e-09 s to 1e.10 s"),
        # Keys that count in a mode alone: they are refused elsewhere, unless they have their
        # default.
        ("strategy", {"kind": "fednova", "partial_work": False}, "here 'deadline' is not given"),
        (
            "strategy",
            {"kind": "ifca", "averaging": "gradients", "local_epochs": 3},
            "'averaging' is 'models'",
        ),
        ("strategy", {"kind": "tifl", "interval": 3}, "'mode' is 'credits'"),
        *(
            (
                "strategy",
                {"kind": "refl", "aggregation": how},
                f"'aggregation' is '{how}', in which weights do not count",
            )
            for how in (
                "first",
                "median",
                "trimmed-mean",
                "krum",
                "multi-krum",
                "bulyan",
                "private",
            )
        ),
    ],
)
def test_one_message_names_the_key_the_value_and_what_is_allowed(
    small: dict[str, Any], path: str, value: Any, expected: str
) -> None:
    with pytest.raises(ScenarioError, match=expected) as caught:
        fedsim.Scenario(**replaced(small, path, value))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 3000


def test_a_deadline_shorter_than_any_download_is_refused_when_it_is_built(
    small: dict[str, Any],
) -> None:
    scenario = fedsim.Scenario(**replaced(small, "strategy.deadline", "100 ms"))
    with pytest.raises(
        ScenarioError,
        match=r"strategy.deadline is 0.1 s, but the fastest device needs .* for its download",
    ):
        fedsim.run(scenario)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"model": {"kind": "mlp", "hidden": [10**6, 10**6]}},
            "model.kind is 'mlp', which has 1000076000010 parameters",
        ),
        (
            {"data": {"source": {"kind": "synthetic", "features": 10**6}}},
            "data.source.features is 1000000",
        ),
        (
            {"data": {"partition": {"kind": "class-bias", "sizes": {"low": 10**9, "high": 10**9}}}},
            "24000000000 training",
        ),
    ],
)
def test_what_fills_the_memory_only_together(changes: dict[str, Any], named: str) -> None:
    sections = eventful_world({"kind": "fedavg"}) | changes
    sections.pop("drift")
    with pytest.raises(ScenarioError, match=named):
        Simulation(fedsim.Scenario(**sections))
    # none of them is allowed alone
    fedsim.Scenario(population={"devices": 100_000_000}, learning="off")
    source = {"kind": "synthetic", "alpha": -0.0, "beta": -0.0}  # there is no negative zero
    Simulation(
        fedsim.Scenario(
            **sections | {"model": "logistic", "data": {"source": source, "partition": "synthetic"}}
        )
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "population",
    [
        {"jitter": 100.0},
        {"speed": LOGNORMAL | {"median": "1e15 samples/s", "spread": 1e6}},
        {"speed": LOGNORMAL | {"median": "1e-6 samples/s", "spread": 1e6}},
        {"speed": "inf samples/s", "samples": {"low": 1, "high": 10**9}},
    ],
)
def test_what_is_allowed_at_the_edge_runs_without_a_warning(population: dict[str, Any]) -> None:
    sections = eventful_world({"kind": "fedavg"}, rounds=2) | {"learning": "off"}
    sections["population"] |= population
    sections["stop"]["simulated_time"] = "10 min"
    if "samples" in population:
        sections.pop("drift")
    run(sections)


def test_a_run_comes_to_the_end_of_the_clock() -> None:
    sections = eventful_world({"kind": "fedavg"}, rounds=2) | {
        "learning": "off",
        "stop": {"rounds": 2},
    }
    sections["population"] |= {
        "speed": "1e-6 samples/s",
        "availability": {"kind": "always"},
        "departures": None,
    }
    sections["model"] = {"kind": "size", "bytes": "1e15 B"}
    sections["network"] = {"kind": "star", "server": {"down": "1 B/s"}}
    summary = run(sections)
    assert summary["stopped"] == "the end of the clock (1e+10 s)"
    assert summary["simulated_s"] <= CLOCK_END_S


@pytest.mark.parametrize(
    "seconds", [2.0**23 - 2.0**-30, 2.0**23, 1e10 + 2**-10, 1e300, 1.7e308, float("inf")]
)
def test_every_time_that_is_late_enough_is_on_the_grid(seconds: float) -> None:
    assert on_grid(seconds) == on_grid_after(seconds) == seconds


def test_defaults_that_are_written_out_are_taken() -> None:
    specs: list[type[Spec]] = [STRATEGIES.spec(kind) for kind in STRATEGIES]
    assert sum(len(_modes_of(spec)) for spec in specs) > 10
    for kind, spec in zip(STRATEGIES, specs, strict=True):
        written = {name: spec.model_fields[name].get_default() for name, _ in _modes_of(spec)}
        # these need an app, a deadline or edge servers
        if kind not in ("flower", "cata-fed", "hierfavg"):
            fedsim.Scenario(
                strategy={"kind": kind}
                | {name: value for name, value in written.items() if value is not None}
            )


def test_what_few_updates_bear_is_said(tmp_path: Any) -> None:
    assert [cut_off(0.1, count) for count in (1, 2, 3, 9, 10, 19, 20)] == [0, 0, 1, 1, 1, 1, 2]
    assert [cut_off(0.0, count) for count in (3, 30)] == [0, 0]
    assert [Krum(malicious=2).record_fields(count) for count in (7, 6, 3)] == [
        {},
        {"bears": 1},
        {"bears": 0},
    ]
    assert Bulyan(malicious=2).record_fields(10) == {"bears": 1}
    how = {"kind": "krum", "malicious": 1}
    found = ran(
        with_cells(
            3, {"kind": "hierfavg", "clients_per_round": 15, "kappa2": 1, "aggregation": how}, 1
        ),
        tmp_path / "run",
    )
    records = [event["data"] for event in of_kind(found, "aggregate")]
    assert all(
        record.get("bears", 1) == min(1, max(0, (len(record["tasks"]) - 3) // 2))
        for record in records
    )
    assert any("bears" in record for record in records)


BASE = {
    "training": {"lr": 0.1, "batch_size": 8},
    "strategy": {"kind": "fedprox", "mu": 0.5, "clients_per_round": 7, "deadline": "9 s"},
    "data": {"partition": {"kind": "dirichlet", "alpha": 0.3}, "source": "digits"},
}


def test_dotted_keys_inner_tables_and_whole_tables_say_the_same() -> None:
    ways = (
        {"strategy.kind": "fedavg", "training.lr": 0.2},
        {"strategy": {"kind": "fedavg"}, "training": {"lr": 0.2}},
        {"strategy": {"kind": "fedavg"}, "training.lr": 0.2},
    )
    first, *others = [changed(BASE, nest_dotted_keys(way)) for way in ways]
    assert all(other == first for other in others)
    assert first["training"] == {"lr": 0.2, "batch_size": 8}
    assert BASE["training"] == {"lr": 0.1, "batch_size": 8}


def test_another_strategy_keeps_the_common_terms_and_only_those() -> None:
    def strategy(of: dict[str, object], change: dict[str, object]) -> object:
        return changed({"strategy": of}, {"strategy": change})["strategy"]

    prox = BASE["strategy"]
    # no cohort, deadline or mu
    assert strategy(prox, {"kind": "fedbuff", "buffer": 3}) == {"kind": "fedbuff", "buffer": 3}
    assert strategy(prox, {"kind": "flexcfl"}) == {
        "kind": "flexcfl",
        "clients_per_round": 7,
        "deadline": "9 s",
    }
    assert strategy(prox, {"mu": 0.1}) == prox | {"mu": 0.1}
    assert strategy({"clients_per_round": 3}, {"kind": "fedavg"}) == {
        "clients_per_round": 3,
        "kind": "fedavg",
    }


def test_another_kind_of_anything_else_takes_the_whole_place() -> None:
    assert changed(BASE, {"data": {"partition": {"kind": "iid"}}})["data"] == {
        "partition": {"kind": "iid"},
        "source": "digits",
    }
    assert changed(BASE, {"data": {"partition": "iid"}})["data"]["partition"] == "iid"
    same = changed(BASE, {"data": {"partition": {"kind": "dirichlet", "alpha": 9.0}}})
    assert same["data"]["partition"] == {"kind": "dirichlet", "alpha": 9.0}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"a..b": 1}, "no key"),
        ({"a.b": 1, "a": {"b": 2}}, "a.b is given twice"),
        ({"a.b": 1, "a": 2}, "a is given twice"),
    ],
)
def test_what_is_no_change_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        nest_dotted_keys(changes)


def test_the_first_difference_is_named() -> None:
    assert (
        first_difference(BASE, changed(BASE, {"training": {"lr": 0.2}}))
        == "training.lr was 0.1, and is 0.2 now"
    )
    assert first_difference({"a": 1}, {"a": 1, "b": {"c": 2}}) == "b.c was not given, and is 2 now"
    assert first_difference(BASE, BASE) == ""


def test_a_file_says_only_what_differs_from_the_one_that_it_extends(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "one.toml").write_text(
        'seed = 4\n[training]\nlr = 0.1\nbatch_size = 8\n[strategy]\nkind = "fedprox"\nmu = 0.5'
    )
    (tmp_path / "sub" / "two.toml").write_text(
        'extends = "../one.toml"\ntraining.lr = 0.2\nstrategy.kind = "fedavg"'
    )
    (tmp_path / "three.toml").write_text('extends = "sub/two.toml"\nseed = 5')
    scenario = fedsim.load(tmp_path / "three.toml", ["training.batch_size=9"])
    assert (scenario.seed, scenario.training.lr, scenario.training.batch_size) == (5, 0.2, 9)
    assert scenario == fedsim.Scenario(
        seed=5, training={"lr": 0.2, "batch_size": 9}, strategy={"kind": "fedavg"}
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "own.toml' is empty; 'fedsim init quickstart' copies a scenario"),
        ("# seed = 3\n", "own.toml' is empty"),
        ('extends = "nowhere.toml"', "nowhere.toml' does not exist"),
        ('extends = "own.toml"', "own.toml' extends itself"),
        ("extends = 3", "own.toml' extends 3; allowed is the name of a file"),
        ("seed = = 4", "own.toml' is not valid TOML"),
        ("\xff\xfe", "own.toml' is not valid TOML"),  # nor is it UTF-8
    ],
)
def test_a_file_that_cannot_be_used_is_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ScenarioError) as raised:
        read_toml(tmp_path / "own.toml", "scenario")
    assert says in str(raised.value)


class TestChanges:
    SECTIONS = """
        data.partition = "iid"
        model = { kind = "mlp", hidden = [64] }
        population.availability = { kind = "renewal", mean_on = "2 h", mean_off = "1 h" }
        strategy = { kind = "fedprox", mu = 0.5, clients_per_round = 7, deadline = "9 s" }
    """

    def load(self, tmp_path: Path, *changes: str) -> tuple[fedsim.Scenario, list[str]]:
        path = tmp_path / "a.toml"
        path.write_text(self.SECTIONS)
        told: list[str] = []
        return fedsim.load(path, changes, tell=told.append), told

    def test_another_kind_drops_what_it_lacks_and_says_so(self, tmp_path: Path) -> None:
        scenario, told = self.load(
            tmp_path,
            "strategy.kind=lcfl",
            "model.kind=logistic",
            "population.availability.kind=always",
            "strategy.groups=2",
        )
        assert (scenario.model.kind, scenario.population.availability.kind) == (
            "logistic",
            "always",
        )
        assert scenario.model_dump()["strategy"]["deadline"] == "9 s"
        assert told == [
            "strategy.mu = 0.5 is dropped: 'lcfl' has no such key",
            # it inherits the key, and does without
            "strategy.clients_per_round = 7 is dropped: 'lcfl' has no such key",
            "model.hidden = [64] is dropped: 'logistic' has no such key",
            "population.availability.mean_on = '2 h' is dropped: 'always' has no such key",
            "population.availability.mean_off = '1 h' is dropped: 'always' has no such key",
        ]

        assert self.load(tmp_path, "strategy.kind=fedprox")[1] == []
        own = "strategy.mu = 0.5 is dropped: 'tests.own_parts:Proud' has no such key"
        assert self.load(tmp_path, "strategy.kind=tests.own_parts:Proud")[1] == [own]

    def test_a_value_is_toml_or_plain_text_and_a_bare_name_becomes_a_table(
        self, tmp_path: Path
    ) -> None:
        partition = ("data.partition.kind=dirichlet", "data.partition.alpha=0.5")
        scenario, _ = self.load(
            tmp_path, "training.lr=0.5", "strategy.deadline=11 s", 'learning="off"', *partition
        )
        assert (
            scenario.training.lr,
            scenario.learning,
            scenario.model_dump()["strategy"]["deadline"],
        ) == (0.5, "off", "11 s")
        assert scenario.data.partition.model_dump() == {
            "kind": "dirichlet",
            "alpha": 0.5,
            "minimum": 2,
        }
        assert fedsim.load(tmp_path / "a.toml", seed=11).seed == 11

    def test_without_a_value_a_key_is_taken_away(self, tmp_path: Path) -> None:
        scenario, _ = self.load(tmp_path, "strategy.deadline=", "population.availability=")
        assert scenario.strategy.model_dump()["deadline"] is None
        assert scenario.population.availability.kind == "always"
        with pytest.raises(
            ScenarioError,
            match=r"changes 'strategy.dedline=' takes away .*did you mean 'strategy.deadline'",
        ):
            self.load(tmp_path, "strategy.dedline=")
        assert self.load(tmp_path, 'name=""')[0].name == ""

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            *(
                ([wrong], f"changes {wrong!r}")
                for wrong in ("training.lr", "=3", ".lr=3", "data.partition.x=3")
            ),
            *(
                ([f"name={wrong}"], r"changes .* is not valid TOML")
                for wrong in ('{kind="flash"', "[1, 2", '"flash', "'x")
            ),
            (["strategy.agregation=krum", "strategy.kind=fedbuff"], "unknown key 'agregation'"),
            (
                ["strategy.clients_per_round=3", "strategy.kind=fedbuff"],
                "unknown key 'clients_per_round'",
            ),
            (["model.hidden=[3]", "model.kind=logistic"], "unknown key 'hidden'"),
            (
                ["population.availability.mean_on=3 h", "population.availability=always"],
                "'always' in the scenario, not a",
            ),
            (
                ["population.availability.mean_on=3 h", 'population.availability={kind="always"}'],
                "unknown key 'mean_on'",
            ),
            (["training.lr=0.1", "training.lr=0.2"], "is undone by another change"),
            (["model.hidden=[3]", "model="], "model.kind is missing"),
            (
                ["training.lr=0.1", "training.lr="],
                "is undone by another change|takes away a key that is not given",
            ),
            (["strategy.kind=fedavg", 'strategy={kind="fedbuff"}'], "is undone by another change"),
            (
                ["data.partition.kind=dirichlet", "data.partition=iid"],
                "is undone by another change",
            ),
        ],
    )
    def test_what_is_given_is_never_dropped_whatever_the_order(
        self, tmp_path: Path, changes: list[str], says: str
    ) -> None:
        for order in (changes, changes[::-1]):
            with pytest.raises(ScenarioError, match=says):
                self.load(tmp_path, *order)

    def test_changes_that_agree_mean_the_same_in_every_order(self, tmp_path: Path) -> None:
        changes = [
            "strategy.kind=fedbuff", "strategy.buffer=3", "data.partition.kind=dirichlet", "data.partition.alpha=0.5",
            "population.availability=", "population.availability.kind=always", "seed=3", "seed=3", "strategy.mu=",
        ]  # fmt: skip
        scenarios = [
            self.load(tmp_path, *order)[0]
            for order in (changes, changes[::-1], changes[4:] + changes[:4])
        ]
        assert scenarios[0] == scenarios[1] == scenarios[2]
        assert (scenarios[0].strategy.kind, scenarios[0].seed) == ("fedbuff", 3)
        with pytest.raises(ScenarioError, match="changes 'seed=4' is undone by another change"):
            fedsim.load(tmp_path / "a.toml", ["seed=4"], seed=5)
