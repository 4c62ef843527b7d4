"""What a scenario can say: kinds and keys explained, and the JSON schema that editors complete with."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.lab.catalogue import about, catalogue, schema
from fedsim.strategies.parts.selection import SELECTIONS
from tests.calls import call

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
FILES = [path for path in sorted(SCENARIOS.rglob("*.toml")) if path.name not in {"published.toml", "worlds.toml"}]


@pytest.fixture(scope="module")
def refusals() -> Any:
    """``refusals(file, tables)``: what a validator that knows nothing of fedsim says."""
    jsonschema = pytest.importorskip("jsonschema")
    made = {file: json.loads(call("schema", file).output) for file in ("scenario", "study")}
    for said in made.values():
        jsonschema.Draft202012Validator.check_schema(said)
    known = {file: jsonschema.Draft202012Validator(said) for file, said in made.items()}
    return lambda file, tables: [error.message for error in known[file].iter_errors(tables)]


class TestAbout:
    def test_a_kind_has_its_keys_with_type_unit_default_bounds_and_meaning(self) -> None:
        lines = about("fedbuff")
        assert lines[0].startswith("fedbuff, one of the strategies: FedBuff: ")
        said = dict(zip(lines[1::2], lines[2::2], strict=True))
        assert said["  buffer = 10  # a whole number, 1 or more"] == "      K, how many updates make a version."
        assert '  retry = "1 min"  # a time in ns, us, ms, s, min, h, day, week' in said
        assert f"  selection = \"random\"  # one of {', '.join(SELECTIONS)}, or your own as 'package.module:Class'" in said

    def test_a_table_within_and_a_key_of_several_kinds(self) -> None:
        assert "  share (required)  # a number, 0 or more, at most 1" in about("population.stragglers")
        assert about("slow_phases") == about("population.slow_phases")
        assert about("strategy.buffer")[0] == "strategy.buffer of fedbuff:"
        heads = [line for line in about("strategy.deadline") if line.startswith("strategy.deadline of ")]
        assert len(heads) == 4  # CATA-Fed's, HierFAVG's and that of peers mean something else

    def test_every_name_of_the_catalogue_and_every_title_is_explained(self) -> None:
        listed = catalogue()
        lines = {name: about(name) for name in {name for entries in listed.values() for name, _ in entries}}
        for title, entries in listed.items():
            assert about(title)[0] == f"{title}:"
            assert all(f"{name}, one of the {title}: {line}" in lines[name] for name, line in entries)
        result = call("list", "renewl")
        assert (result.exit_code, "did you mean 'renewal'?" in result.output) == (2, True)


class TestSchema:
    @pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SCENARIOS)))
    def test_every_file_of_the_house_fits_and_is_read_as_it_is_written(self, refusals: Any, path: Path, tmp_path: Path) -> None:
        tables = tomllib.loads(path.read_text())
        file = "study" if {"variants", "parts", "seeds"} & set(tables) else "scenario"
        assert refusals(file, tables) == []
        if file == "scenario":
            scenario, written = fedsim.load(path), tmp_path / "with every default.toml"
            written.write_text(scenario.to_toml())
            assert refusals(file, tomllib.loads(written.read_text())) == []
            assert fedsim.load(written) == scenario
            assert path.parent != SCENARIOS or "What it shows" in path.read_text().split("name =")[0]

    @pytest.mark.parametrize(
        "tables",
        [
            {"sed": 3},
            {"population": {"spede": "3 samples/s"}},
            {"population": {"devices": 0}},
            {"population": {"availability": {"kind": "renewal", "mean_on": "2 min"}}},
            {"population": {"availability": {"kind": "renewl"}}},
            {"population": {"availability": "renewl"}},
            {"population": {"speed": "3 apples"}},
            {"strategy": {"kind": "fedbuff", "clients_per_round": 3}},
            {"strategy": {"kind": "fedavg", "deadline": 90}},
            {"strategy": {"kind": "fedavg", "server": {"kind": "adam", "lr": 0}}},
            {"strategy": {"kind": "lcfl", "clients_per_round": 3}},
            {"data": {"source": "mnits"}},
            {"stop": {"simulated_time": "-3 s"}},
        ],
        ids=str,
    )
    def test_what_is_wrong_is_refused_as_fedsim_does(self, refusals: Any, tables: dict[str, Any]) -> None:
        assert refusals("scenario", tables)
        with pytest.raises(fedsim.ScenarioError):
            fedsim.Scenario(**tables)

    @pytest.mark.parametrize(
        "tables",
        [
            {"strategy": {"clients_per_round": 3}},
            {"strategy": "local", "model": "mlp", "network": "star"},
            {"population": {"availability": "always", "speed": "3 samples/s"}, "learning": "off"},
            {"messages": {"up": {"kind": "top-k", "share": 0.1}}},
            {"strategy": {"deadline": {"kind": "quantile", "share": 0.8, "most": "2 min"}}},
            {"strategy": {"deadline": "90 s", "server": "adam"}},
        ],
        ids=str,
    )
    def test_short_ways_to_say_it_are_allowed_as_in_fedsim(self, refusals: Any, tables: dict[str, Any]) -> None:
        assert refusals("scenario", tables) == []
        fedsim.Scenario(**tables)

    def test_a_study_changes_parts_with_dots_too(self, refusals: Any) -> None:
        study = {"base": "a.toml", "variants": {"a": {"strategy.kind": "local"}, "b": {"strategy": {"kind": "fedavg"}}}}
        assert refusals("study", study | {"grid": {"training": {"lr": [0.1]}, "stop.rounds": [3]}, "target": 0.9}) == []
        assert refusals("study", study | {"variants": {"a": {"strategi": {}}}})
        assert refusals("study", study | {"seeds": "3"})
        assert refusals("study", {"variants": {}})

    def test_keys_tell_their_default_as_a_file_would_say_it(self) -> None:
        keys = schema("scenario")["$defs"]["FedBuffParams"]["properties"]
        assert keys["retry"]["default"] == "1 min"
        assert re.search(keys["retry"]["pattern"], "90 s")
        assert "null" not in json.dumps(schema("scenario")["$defs"]["PopulationSpec"])
