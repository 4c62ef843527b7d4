"""What a scenario can say, explained, as JSON schema, and as a study made of five answers; and
what comes with fedsim.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fedsim
from fedsim.common.kind_field import specs_of
from fedsim.common.spec import Spec, attribute_descriptions
from fedsim.lab.catalogue import about, catalogue, keys_of, schema
from fedsim.lab.study.plan import read_study
from fedsim.learning.models import Perceptron
from fedsim.running.scenario import Scenario
from fedsim.running.shipped import copy, shipped
from fedsim.strategies import STRATEGIES
from fedsim.strategies.parts.selection import SELECTIONS
from tests.calls import call

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
FILES = [
    path
    for path in sorted(SCENARIOS.rglob("*.toml"))
    if path.name not in {"published.toml", "worlds.toml"}
]


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
        assert (
            said["  buffer = 10  # a whole number, 1 or more"]
            == "      K, the count of updates in a version."
        )
        assert '  retry = "1 min"  # a time in ns, us, ms, s, min, h, day, week' in said
        assert (
            '  selection = "random"  # one of '
            f"{', '.join(SELECTIONS)}, or your own as 'package.module:Class'" in said
        )

    def test_a_table_within_and_a_key_of_several_kinds(self) -> None:
        assert "  share (required)  # a number, 0 or more, at most 1" in about(
            "population.stragglers"
        )
        assert about("slow_phases") == about("population.slow_phases")
        assert "strategy.buffer of fedbuff:" in about("strategy.buffer")
        heads = [
            line for line in about("strategy.deadline") if line.startswith("strategy.deadline of ")
        ]
        assert len(heads) == 4  # CATA-Fed's, HierFAVG's and that of peers mean something else

    def test_every_name_of_the_catalogue_and_every_title_is_explained(self) -> None:
        listed = catalogue()
        lines = {
            name: about(name)
            for name in {name for entries in listed.values() for name, _ in entries}
        }
        for title, entries in listed.items():
            assert about(title)[0] == f"{title}:"
            assert all(
                f"{name}, one of the {title}: {line}" in lines[name] for name, line in entries
            )
        result = call("list", "renewl")
        assert (result.exit_code, "did you mean 'renewal'?" in result.output) == (2, True)


class TestSchema:
    @pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SCENARIOS)))
    def test_every_file_of_the_house_fits_and_is_read_as_it_is_written(
        self, refusals: Any, path: Path, tmp_path: Path
    ) -> None:
        tables = tomllib.loads(path.read_text())
        file = "study" if {"variants", "parts", "seeds"} & set(tables) else "scenario"
        assert refusals(file, tables) == []
        if file == "scenario":
            scenario, written = fedsim.load(path), tmp_path / "with every default.toml"
            written.write_text(scenario.to_toml())
            assert refusals(file, tomllib.loads(written.read_text())) == []
            assert fedsim.load(written) == scenario
            assert (
                path.parent != SCENARIOS or "What it shows" in path.read_text().split("name =")[0]
            )

    WRONG: ClassVar = [
        {"sed": 3},
        {"population": {"spede": "3 samples/s"}},
        {"population": {"devices": 0}},
        {"population": {"availability": {"kind": "renewal", "mean_on": "2 min"}}},
        {"population": {"availability": {"kind": "renewl"}}},
        {"population": {"availability": "renewl"}},
        {"population": {"speed": "3 apples"}},
        {"strategy": {"kind": "fedbuff", "clients_per_round": 3}},
        {"strategy": {"kind": "fedavg", "deadline": 90}},
        {"strategy": {"kind": "fedavg", "deadline": "relativ"}},
        {"strategy": {"kind": "fedavg", "server": {"kind": "adam", "lr": 0}}},
        {"strategy": {"kind": "lcfl", "clients_per_round": 3}},
        {"data": {"source": "mnits"}},
        {"stop": {"simulated_time": "-3 s"}},
    ]
    SHORT: ClassVar = [
        {"strategy": {"clients_per_round": 3}},
        {"strategy": "local", "model": "mlp", "network": "star"},
        {"population": {"availability": "always", "speed": "3 samples/s"}, "learning": "off"},
        {"messages": {"up": {"kind": "top-k", "share": 0.1}}},
        {"strategy": {"deadline": {"kind": "quantile", "share": 0.8, "most": "2 min"}}},
        {"strategy": {"deadline": "90 s", "server": "adam"}},
        {"strategy": {"deadline": "relative"}},
        {"strategy": {"deadline": "fedsim.toolbox.deadlines:Relative"}},
    ]

    @pytest.mark.parametrize("tables", [*WRONG, *SHORT], ids=str)
    def test_what_is_wrong_is_refused_as_fedsim_does_and_short_ways_are_allowed(
        self, refusals: Any, tables: Any
    ) -> None:
        assert bool(refusals("scenario", tables)) == (tables in self.WRONG)
        with pytest.raises(fedsim.ScenarioError) if tables in self.WRONG else nullcontext():
            fedsim.Scenario(**tables)

    def test_a_study_changes_parts_with_dots_too(self, refusals: Any) -> None:
        study = {
            "base": "a.toml",
            "variants": {"a": {"strategy.kind": "local"}, "b": {"strategy": {"kind": "fedavg"}}},
        }
        assert (
            refusals(
                "study",
                study | {"grid": {"training": {"lr": [0.1]}, "stop.rounds": [3]}, "target": 0.9},
            )
            == []
        )
        assert refusals("study", study | {"variants": {"a": {"strategi": {}}}})
        assert refusals("study", study | {"seeds": "3"})
        assert refusals("study", {"variants": {}})

    def test_keys_tell_their_default_as_a_file_would_say_it(self) -> None:
        keys = schema("scenario")["$defs"]["FedBuffParams"]["properties"]
        assert keys["retry"]["default"] == "1 min"
        assert re.search(keys["retry"]["pattern"], "90 s")
        assert "null" not in json.dumps(schema("scenario")["$defs"]["PopulationSpec"])

    def test_a_default_is_as_short_as_a_file_can_say_it(self) -> None:
        long = []
        for table in _tables_within(Scenario):
            for key in keys_of(table):
                default = tomllib.loads(f"it = {key.default or 0}")["it"]
                if isinstance(default, dict) and "kind" in default:
                    long.append(f"{table.__name__}.{key.name} = {key.default}")
        assert not long
        defaults = {key.name: key.default for key in keys_of(STRATEGIES.spec("fedavg"))}
        assert defaults["selection"] == '"random"'


def _tables_within(table: type[Spec]) -> set[type[Spec]]:
    """A table, and all that stand in it."""
    tables = {table}
    waiting = [table]
    while waiting:
        for field in waiting.pop().model_fields.values():
            new_tables = {*specs_of(field).values()} - tables
            tables |= new_tables
            waiting += new_tables
    return tables


LTE = [
    "--devices",
    "200 phones",
    "--link",
    "lte",
    "--model",
    "5 MB",
    "--target",
    "0.9",
    "--deadline",
    "try",
]


def new(file: Path, *words: str, typed: str = "") -> tuple[int, str]:
    result = call("new", file, *words, input=typed)
    return result.exit_code, result.output


def test_the_answers_stand_in_the_study(tmp_path: Path) -> None:
    """A task takes 5 MB at 13 and 6 Mbit/s (3.08 and 6.67 s) and two epochs of 20 s; the middle
    deadline is that of it.
    """
    assert new(tmp_path / "lte.toml", *LTE)[0] == 0
    said = tomllib.loads((tmp_path / "lte.toml").read_text())
    base = said["base"]
    assert (base["population"]["devices"], base["stop"]["accuracy"], said["target"]) == (
        200,
        0.9,
        0.9,
    )
    assert base["network"]["device"]["up"]["median"] == "6 Mbit/s"
    assert base["energy"]["preset"] == "smartphone-4g"
    assert said["parts"]["rounds"]["grid"]["strategy"]["deadline"] == [
        "35 s",
        "50 s",
        "75 s",
        "150 s",
    ]
    parameters = Perceptron(hidden=base["model"]["hidden"]).parameters((64,), 10)
    assert 4 * parameters == pytest.approx(5e6, rel=0.002)


@pytest.mark.parametrize("kind", ["phones", "boards", "hospitals", "regions"])
def test_every_kind_of_device_makes_a_study_that_is_valid(tmp_path: Path, kind: str) -> None:
    """Asked, with Enter for what is usual; the plan of the study builds every scenario."""
    code, output = new(tmp_path / "my.toml", typed=f"4 {kind}\n20/5 Mbit/s\n100 kB\n\n30 s\n")
    assert code == 0, output
    study = read_study(tmp_path / "my.toml")
    assert len(study.spec.seeds) == 3
    assert study.spec.parts["rounds"].grid == {"strategy.deadline": ["15 s", "30 s", "60 s"]}


def test_known_models_have_their_size_and_a_single_rate_is_both_ways(tmp_path: Path) -> None:
    words = ("--devices", "8 hospitals", "--link", "0.05 Gbit/s", "--model", "ResNet-18")
    file = tmp_path / "my.toml"
    assert new(file, *words, "--target", "0.9", "--deadline", "try")[0] == 0
    base = tomllib.loads(file.read_text())["base"]
    assert base["messages"]["up"]["size"] == "46.8 MB"  # 11,689,512 numbers of 4 bytes
    rates = [base["network"]["device"][way]["median"] for way in ("down", "up")]
    assert rates == ["0.05 Gbit/s", "0.05 Gbit/s"]


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--devices", "200 fones", "did you mean 'phones'"),
        ("--devices", "1 phones", "a count from 2 to 718"),
        ("--link", "lt", "did you mean 'lte'"),
        ("--link", "50 MB/s", "a rate both ways, such as '50 Mbit/s'"),
        ("--model", "5", "a number and a unit out of B"),
        ("--model", "resnet", "one of resnet18, resnet50"),
        ("--target", "1.5", "between 0 and 1"),
        ("--deadline", "soon", "a number and a unit"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(
    tmp_path: Path, option: str, value: str, says: str
) -> None:
    words = list(LTE)
    words[words.index(option) + 1] = value
    code, output = new(tmp_path / "my.toml", *words)
    assert (code, says in output) == (2, True), output
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "my.toml").write_text("mine")
    assert (new(tmp_path / "my.toml", *LTE)[0], (tmp_path / "my.toml").read_text()) == (2, "mine")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "phone-mid",
            'compute = "4 W"  # the chip\'s 4 W; cputronic.com, Snapdragon 695 (2021-10)',
        ),
        ("lte", 'up = "6 Mbit/s"  # Huang et al., MobiSys 2012'),
        ("smartphone-4g", "tail_s = 11.576  # Huang et al., MobiSys 2012"),
        ("raspberry-pi-4", 'compute = "4.85 W"  # HPL'),
        ("energy.preset", "smartphone-wifi"),
        ("study.parts", "changes to the base; the changes of a variant override them"),
        ("LTE links", "lte, one of the links"),
        ("message size", "messages.up.size"),
        ("variants compared", "study.baseline"),
    ],
)
def test_names_are_told_with_figures_and_sources(name: str, says: str) -> None:
    assert any(says in line for line in about(name)), about(name)


ROOT = Path(__file__).resolve().parents[1]


def test_a_name_means_the_file_that_comes_with_fedsim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fedsim.load("quickstart") == fedsim.load(ROOT / "scenarios/quickstart.toml")
    assert read_study("communication").spec.name == "bytes to accuracy"
    (tmp_path / "quickstart").write_text("seed = 7\n")  # what is here comes first
    assert fedsim.load("quickstart").seed == 7


@pytest.mark.parametrize("name", shipped())
def test_a_copy_needs_nothing_else(name: str, tmp_path: Path) -> None:
    paths = copy(name, tmp_path / "new")
    assert sorted(paths) == sorted(path for path in (tmp_path / "new").rglob("*") if path.is_file())
    text = paths[0].read_text()
    assert text == shipped()[name].read_text()
    read_study(paths[0], seeds=1) if "\n[variants" in text or "\nbase = " in text else fedsim.load(
        paths[0]
    )


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    words = ["init", "communication", str(tmp_path)]
    assert call(*words).output.count("written ") == 2
    (tmp_path / "communication.toml").unlink()
    (tmp_path / "communication_base.toml").write_text("mine")
    again = call(*words)
    assert (again.exit_code, [path.name for path in tmp_path.iterdir()]) == (
        2,
        ["communication_base.toml"],
    )
    assert (tmp_path / "communication_base.toml").read_text() == "mine"
    assert "did you mean 'communication'" in call("init", "comunication", str(tmp_path)).output


@pytest.mark.wheel
def test_the_wheel_alone_runs_lists_and_reports(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("fedsim", "analysis", "scenarios"):
        shutil.copytree(ROOT / name, source / name, symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source], check=True
    )
    wheel = next(tmp_path.glob("*.whl"))
    shutil.rmtree(source)
    subprocess.run([*pip, "install", "--no-deps", "--target", tmp_path / "site", wheel], check=True)

    def installed(*words: str) -> str:
        code = (
            f"import fedsim.cli as cli; assert cli.__file__.startswith({str(tmp_path)!r}); "
            "cli.main()"
        )
        place = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(tmp_path / "site")}}
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, *words],
            capture_output=True,
            text=True,
            check=False,
            **place,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    installed("run", "quickstart", "--out", "run", "--set", "stop.rounds=2")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 2
    assert "quickstart" in installed("list", "scenarios")
    installed("init", "quickstart", "mine")
    assert (tmp_path / "mine" / "quickstart.toml").is_file()
    assert "fedavg" in installed("study", "communication", "--out", "study", "--dry-run")
    installed("report", "run")
    assert (tmp_path / "run.report.html").stat().st_size > 10_000


class TwoForms(Spec):
    """A table.

    Attributes:
        low, high: an end.
    """

    low: int = 1
    high: int = 2
    count: int = 3
    """How many
    there are."""


def test_a_keys_text_stands_behind_it_or_in_its_class() -> None:
    said = {key: attribute_descriptions(TwoForms)[key] for key in TwoForms.model_fields}
    assert said == {"low": "an end.", "high": "an end.", "count": "How many there are."}
    made = type("Made", (TwoForms,), {"__module__": "a_module.that_has_gone"})
    assert attribute_descriptions(made) == attribute_descriptions(TwoForms)
