"""Scenarios: read, resolved, written back; and one clear message for whatever is wrong."""

import copy
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim import ScenarioError

SCENARIOS = sorted((Path(__file__).resolve().parents[1] / "scenarios").glob("*.toml"))


def changed(sections: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    sections = copy.deepcopy(sections)
    table = sections
    *keys, last = path.split(".")
    for key in keys:
        table = table.setdefault(key, {})
    if value is None:
        del table[last]
    else:
        table[last] = value
    return sections


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.name)
def test_every_scenario_of_the_house_is_valid_and_written_with_every_default_reads_the_same(path: Path, tmp_path: Path) -> None:
    scenario = fedsim.load(path)
    assert "What it shows" in path.read_text().split("name =")[0]
    (tmp_path / "resolved.toml").write_text(scenario.to_toml())
    assert fedsim.load(tmp_path / "resolved.toml") == scenario
    assert fedsim.load(tmp_path / "resolved.toml").to_toml() == scenario.to_toml()


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("sed", 3, r"has the unknown key 'sed'.*did you mean 'seed'"),
        ("population.spede", "3 samples/s", r"population has the unknown key 'spede'; allowed are .*did you mean 'speed'"),
        ("strategy.kind", "fedavgg", r"^strategy.kind is 'fedavgg'; allowed are .*fedavg.*did you mean 'fedavg'"),
        ("strategy.kind", "fedsim.errors:FedsimError", r"not a subclass of fedsim.plugin.Strategy"),
        ("strategy.mu", 1.0, r"strategy has the unknown key 'mu'"),
        ("strategy.clients_per_round", 21, r"clients_per_round is 21.*20 devices; allowed are 1 to 20"),
        ("strategy.over_selection", 5.0, r"over_selection 5 asks 30.*20 devices; .* product is at most 20"),
        ("strategy.deadline", "0 s", r"strategy.deadline is '0 s': a time here must be above 0 s"),
        ("strategy.deadline", 30, r"strategy.deadline is 30: a time needs its unit.*min"),
        ("strategy.deadline", "-3 s", r"strategy.deadline is '-3 s': a time cannot be negative"),
        ("population.availability.kind", "renewl", r"availability.kind is 'renewl'; allowed.*did you mean 'renewal'"),
        ("population.availability.mean_on", None, r"population.availability.mean_on is missing"),
        ("population.availability", {}, r"population.availability.kind is missing; allowed are always, renewal, "),
        ("network", {"device": {"up": "1 Mbit/s"}}, r"^network.kind is missing; allowed are star, tree, graph$"),
        ("malicious", 0.2, r"^malicious is 0.2; it must be a table, and 'fedsim list malicious' names its keys$"),
        ("population.devices", "many", r"population.devices is 'many'; it must be a whole number, such as 10"),
        ("population.speed", "fast", r"population.speed.* is .*'fast'.*samples/s"),
        ("population.capacity", {"kind": "fedscale"}, r"population: 'speed' and 'capacity'"),
        ("network.server.up", "3 apples", r"network.server.up is '3 apples': a data rate is a number and a unit"),
        ("data.source", "mnits", r"data.source.*mnits.*allowed.*mnist"),
        ("model", {"kind": "mpl"}, r"model.kind is 'mpl'.*did you mean 'mlp'"),
        ("stop.rounds", None, r"stop: a run needs an end"),
        ("stop.accuracy", 1.5, r"^stop.accuracy is 1.5; it must be at most 1 \(did you mean 0.015\?\)$"),
        ("stop.accuracy", 90, r"^stop.accuracy is 90; it must be at most 1 \(did you mean 0.9\?\)$"),
        ("stop.rounds", 1.5, r"^stop.rounds is 1.5; it must be a whole number, such as 2$"),
        ("training.lr", "0.1", r"^training.lr is '0.1'; it must be a number, such as 0.1$"),
        ("model", {"kind": "mlp", "hidden": 30}, r"^model.hidden is 30; it must be a list, such as \[30\]$"),
        ("model", {"kind": "mlp", "hidden": [True]}, r"^model.hidden.0 is True; it must be a whole number, such as 1$"),
        ("name", 3, r"^name is 3; it must be a text in quotes, such as '3'$"),
        ("name", "n" * 201, r"; it must have at most 200 characters$"),
        ("learning", "maybe", r"learning is 'maybe'; allowed are on, off"),
        ("messages", {"up": {"dtype": "float8"}}, r"messages.up: 'dtype' is 'float8'; allowed are float64"),
        ("model", {"kind": "size", "bytes": "3 MB"}, r"model.kind is 'size'"),
    ],
)
def test_one_message_names_the_key_the_value_and_what_is_allowed(
    small: dict[str, Any], path: str, value: Any, expected: str
) -> None:
    with pytest.raises(ScenarioError, match=expected) as caught:
        fedsim.Scenario(**changed(small, path, value))
    assert "\n" not in str(caught.value)


def test_a_deadline_shorter_than_any_download_is_refused_when_it_is_built(small: dict[str, Any]) -> None:
    scenario = fedsim.Scenario(**changed(small, "strategy.deadline", "100 ms"))
    with pytest.raises(ScenarioError, match=r"strategy.deadline is 0.1 s, but the fastest device needs .* for its download"):
        fedsim.run(scenario)


class TestLoad:
    def write(self, tmp_path: Path, text: str) -> Path:
        path = tmp_path / "s.toml"
        path.write_text(text)
        return path

    def test_set_overrides_and_reads_toml_values_or_plain_text(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, "seed = 4\n[stop]\nrounds = 3\n")
        scenario = fedsim.load(path, ["training.lr=0.5", "strategy.deadline=9 s", "stop.rounds=7", 'learning="off"'], seed=11)
        assert (scenario.training.lr, scenario.stop.rounds, scenario.seed, scenario.learning) == (0.5, 7, 11, "off")
        assert scenario.model_dump()["strategy"]["deadline"] == "9 s"

    @pytest.mark.parametrize("change", ["training.lr", "=3", ".lr=3", "seed.x=3"])
    def test_a_wrong_set_is_explained(self, tmp_path: Path, change: str) -> None:
        with pytest.raises(ScenarioError, match=f"changes {change!r}"):
            fedsim.load(self.write(tmp_path, "seed = 4\n"), [change])

    def test_a_missing_or_broken_file_is_explained(self, tmp_path: Path) -> None:
        with pytest.raises(ScenarioError, match=r"none.toml' does not exist"):
            fedsim.load(tmp_path / "none.toml")
        with pytest.raises(ScenarioError, match=r"not valid TOML"):
            fedsim.load(self.write(tmp_path, "seed = = 4"))
        (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
        with pytest.raises(ScenarioError, match=r"not valid TOML"):
            fedsim.load(tmp_path / "b.toml")
