"""Study files: what they may say, and the runs that follow from them."""

import datetime
import json
import math
import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.analysis.accuracy import draw_accuracy, draw_costs
from fedsim.common.errors import ScenarioError
from fedsim.common.streams import Streams
from fedsim.lab.compare.lines import read_lines
from fedsim.lab.compare.table import Comparison
from fedsim.lab.study.folder import index_of
from fedsim.lab.study.plan import Study, find_searched, read_study
from fedsim.lab.study.search import measure_of
from fedsim.lab.study.spec import StudySpec
from fedsim.lab.study.variant import Variant, safe_name
from fedsim.learning.data.spec import DataSpec
from fedsim.records.reading import RunFolder
from tests.lab.conftest import finish, write


def test_all_runs_in_order_with_their_scenarios(tables: dict[str, Any], tmp_path: Path) -> None:
    tables["grid"] = {"population.jitter": [0.0, 0.2], "training.lr": [0.1]}
    study = read_study(write(tmp_path / "s.toml", tables))
    assert [
        (run.variant.name, run.scenario.population.jitter.value, run.scenario.seed)
        for run in study.runs
    ] == [
        (name, jitter, seed)
        for seed in (1, 2)
        for jitter in (0.0, 0.2)
        for name in ("fedavg", "fedprox")
    ]
    assert study.runs[1].folder == Path("runs/fedprox,jitter=0.0,lr=0.1/seed-1")
    assert [run.scenario.strategy.kind for run in study.runs[:2]] == ["fedavg", "fedprox"]
    assert study.runs[1].scenario.strategy.deadline == 30.0  # type: ignore[attr-defined]  # said once, in the base
    # as TOML reads keys without quotes
    tables["grid"] = {"population": {"jitter": [0.0, 0.2]}, "training": {"lr": [0.1]}}
    assert read_study(write(tmp_path / "s.toml", tables)).runs == study.runs


def test_a_change_of_the_base_may_take_a_key_away_and_tells_what_it_drops(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    told: list[str] = []
    changes = ["strategy.deadline=", "population.availability.kind=always"]
    study = read_study(write(tmp_path / "s.toml", tables), changes, tell=told.append)
    assert study.runs[0].scenario.strategy.model_dump()["deadline"] is None
    assert [line.partition(" = ")[0] for line in told] == [
        f"population.availability.{key}"
        for key in tables["base"]["population"]["availability"]
        if key != "kind"
    ]


def test_the_resolved_file_is_the_same_study_and_needs_no_other(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path / "base.toml", tables["base"] | {"seed": 77})
    (tmp_path / "elsewhere").mkdir()
    tables |= {
        "base": "../base.toml",
        "target": 0.3,
        "references": ["local", "centralised"],
        "grid": {"training.lr": [0.1, 0.2]},
    }
    study = read_study(write(tmp_path / "elsewhere" / "s.toml", tables), ["stop.rounds=2"])
    (tmp_path / "again.toml").write_text(study.to_toml())
    again = read_study(tmp_path / "again.toml")
    assert again.runs == study.runs
    assert again.to_toml() == study.to_toml()
    assert {run.scenario.stop.rounds for run in study.runs} == {2}
    assert {run.scenario.seed for run in study.runs} == {1, 2}


def test_a_base_may_be_one_that_comes_with_fedsim() -> None:
    study = read_study({"base": "quickstart", "variants": {"a": {"stop.rounds": 2}}})
    assert (
        study.runs[0].scenario.to_toml() == fedsim.load("quickstart", ["stop.rounds=2"]).to_toml()
    )


SIZED: dict[str, Any] = {
    "variants": {"fedavg": {}, "fedprox": {"strategy": {"kind": "fedprox", "mu": 0.1}}},
    "sets": {"links": {"slow": {"network.server.up": "1 Mbit/s"}, "usual": {}}},
    "sizes": {
        "small": {},
        "full": {
            "changes": {"stop.rounds": 9},
            "sets": {"links": {"slow": {"network.server.up": "1 kbit/s"}}},
        },
    },
    "parts": {
        "steps": {"variants": ["fedprox"], "grid": {"training.lr": [0.1, 0.2]}},
        "links": {
            "changes": {"training.lr": 0.2},
            "variants": {"fedavg": {"training.l2": 0.5}, "fedprox": {}},
            "grid": {"links": ["usual", "slow"]},
        },
        "long": {"sizes": ["full"]},
    },
}


OF_NOBODY = {
    "measures": {"best": {"title": "best"}},
    "tables": [{"title": "T", "measures": ["best"], "rows": ["fedagv"]}],
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"seedz": [1]},
            "the study has the unknown key 'seedz'; allowed are name, about, base, seeds",
        ),
        ({"seeds": []}, "seeds is []"),
        ({"seeds": [1, 1]}, "seeds: [1, 1] are not different"),
        ({"seeds": [-1]}, "seeds: [-1] are not"),
        (
            {"baseline": "fedagv"},
            "'baseline' is 'fedagv'; allowed are fedavg, fedprox (did you mean 'fedavg'?)",
        ),
        ({"target": [1.5]}, "target: 1.5 is no accuracy"),
        ({"references": ["centralized"]}, "did you mean 'centralised'?"),
        ({"references": ["local", "local"]}, "names one of them twice"),
        ({"variants": {}, "baseline": "x"}, "a study needs a variant"),
        ({"variants": {" ": {}}}, "a variant's name has 1 characters"),
        # one folder on some systems
        ({"variants": {"fedavg": {}, "FedAvg": {}}}, "would share a folder"),
        ({"variants": {"fedavg": {"seed": 3}}}, "'fedavg' has a seed of its own"),
        (
            {"variants": {"fedavg": {"training.lrr": 1.0}}},
            "variant 'fedavg': training has the unknown key 'lrr'",
        ),
        ({"grid": {"seed": [1, 2]}}, "'seed' is no key of a grid"),
        ({"grid": {"training.lr": []}}, "'training.lr' has the values []"),
        ({"grid": {"training.lr": [0.1, 0.1]}}, "different ones"),
        ({"grid": {"training.lr": [0.1, "x"]}}, "variant 'fedavg, lr=x': training.lr is 'x'"),
        (
            {"grid": {"training.lr": [float(n) for n in range(60_000)]}},
            "at most 100000 are allowed",
        ),
        ({"base": "nowhere.toml"}, "nowhere.toml' does not exist"),
        (
            {"base": "communication"},
            "base is 'communication', which is a study; allowed is a scenario",
        ),
        (
            {"sets": {"rates": {"a": {}}}, "grid": {"rate": [1]}},
            "sets has 'rates', which no grid has: it would change nothing",
        ),
        (
            {
                "base": {"strategy": {"kind": 5}},
                "references": ["local"],
                "variants": {},
                "baseline": "local",
            },
            "must be a name",
        ),
        (
            {"references": ["centralised"], "base": {"learning": "off"}},
            "'centralised' has no meaning with learning",
        ),
        (
            {"references": ["centralised"], "base": {"drift": {"kind": "rotation"}}},
            "no meaning with drift.kind 'rotation'",
        ),
        (
            {"references": ["centralised"], "base": {"stop": {"simulated_time": "1 h"}}},
            "needs stop.rounds",
        ),
        (
            {"references": ["local"], "variants": {"local": {}}, "baseline": "local"},
            "both a variant and one of the references",
        ),
        # Of parts and sizes:
        (SIZED | {"size": "ful"}, "size is 'ful'; allowed are small, full (did you mean 'full'?)"),
        (
            SIZED | {"parts": {"a": {"variants": ["fedagv"]}}},
            "a variant of the part 'a' is 'fedagv'; allowed are fedavg, fedprox",
        ),
        (
            SIZED | {"parts": {"a": {"grid": {"links": ["fast"]}}}},
            "a value of 'links' in a grid is 'fast'; allowed are slow, usual",
        ),
        (
            SIZED | {"parts": {"a": {"extends": "b"}, "bb": {}}},
            "parts.a.extends is 'b'; allowed are bb (did you mean 'bb'?)",
        ),
        (
            SIZED | {"parts": {"a": {"extends": "b"}, "b": {"extends": "a"}, "c": {}}},
            "parts.b.extends is 'a'; allowed are c",
        ),
        (
            SIZED | {"published": {"measures": {}, "tables": []}},
            "the published figures: tables is []",
        ),
        (
            SIZED | {"published": OF_NOBODY},
            "table 'T': the study has no variants with variant=fedagv; a row must be one",
        ),
    ],
)
def test_what_is_wrong_is_named(
    tables: dict[str, Any], tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(ScenarioError) as raised:
        read_study(write(tmp_path / "wrong.toml", tables | change))
    assert (says in str(raised.value), len(str(raised.value).splitlines())) == (True, 1), (
        raised.value
    )


SIZES = {"sizes": {"small": {"changes": {"strategy.mu": 0.5}}}}


def part(**says: Any) -> dict[str, Any]:
    return {"parts": {"p": says}}


@pytest.mark.parametrize(
    ("more", "changes", "says"),
    [
        (part(changes={"strategy.agregation": "krum"}), [], "parts.p.changes says 'strategy.agregation'.*mean 'aggregation'"),
        (part(changes={"strategy": {"buffer": 3}}), [], "parts.p.changes says 'strategy.buffer', which reaches no run"),
        (part(variants=["fedavg"]) | SIZES, [], "sizes.small.changes says 'strategy.mu'"),
        (part(changes={"seed": 3}), [], "parts.p.changes says 'seed'.*the study's 'seeds' count"),
        ({"base": {"strategy": {"kind": "scaffold", "agregation": "krum"}}}, [], "base says 'strategy.agregation'"),
        ({}, ["strategy.agregation=krum"], "--set says 'strategy.agregation=krum'.*did you mean 'aggregation'"),
        ({}, ["strategy.buffer=3", "strategy.kind=fedbuff"], "--set says 'strategy.buffer=3', which reaches no run"),
        ({"grid": {"training.lr": [0.1, 0.2]}}, ["training.lr=0.3"], "--set says 'training.lr=0.3', which reaches no run"),
        ({}, ["seed=3"], "--set says 'seed=3'.*the study's 'seeds' count"),
    ],
)  # fmt: skip
def test_what_reaches_no_run_is_refused(
    tables: dict[str, Any], tmp_path: Path, more: dict[str, Any], changes: list[str], says: str
) -> None:
    """Every variant says a kind of its own, which drops keys of the base that this kind lacks."""
    tables["variants"] = {
        "fedavg": {"strategy.kind": "fedavg"},
        "fedprox": {"strategy": {"kind": "fedprox", "mu": 0.1}},
    }
    base = tables["base"] | {"strategy": {"kind": "scaffold", "clients_per_round": 3}}
    assert read_study(
        write(tmp_path / "fine.toml", tables | {"base": base}), ["strategy.clients_per_round=4"]
    )
    more = more | {"base": base | more.get("base", {})}
    with pytest.raises(ScenarioError, match=says.replace("--set", "changes")):
        read_study(write(tmp_path / "s.toml", tables | more), changes)


def test_a_bare_name_overrides_the_kind_in_a_table(tables: dict[str, Any], tmp_path: Path) -> None:
    """``selection.kind`` is no key of any run's scenario, but it was only overridden."""
    changes = {"strategy.selection": {"kind": "oort"}}
    tables["parts"] = {
        "p": {"changes": changes, "variants": {"fedavg": {"strategy.selection": "random"}}}
    }
    study = read_study(write(tmp_path / "s.toml", tables))
    assert {run.scenario.strategy.selection.kind for run in study.runs} == {"random"}  # type: ignore[attr-defined]


def test_a_kind_in_a_table_that_all_variants_drop_is_refused(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    """Without a server, d-psgd selects no devices."""
    tables["variants"] = {
        "fedavg": {},
        "d-psgd": {"strategy": {"kind": "d-psgd", "deadline": "60 s"}},
    }
    tables["parts"] = {"p": {"variants": ["d-psgd"]}}
    file = tmp_path / "s.toml"
    assert read_study(write(file, tables)).runs
    tables["parts"]["p"]["changes"] = {"strategy.selection.kind": "random"}
    with pytest.raises(ScenarioError, match=r"says 'strategy\.selection\.kind', which"):
        read_study(write(file, tables))
    tables["parts"]["p"]["variants"] = ["fedavg", "d-psgd"]
    assert read_study(write(file, tables)).runs


def test_folders_have_harmless_names_that_differ() -> None:
    hostile = [
        "../../etc",
        "/",
        ".",
        "..",
        "a/b",
        "CON\n",
        "<script>alert(1)</script>",
        "\x1b[31mred",
        "=1+1",
        "-rf",
        "é",
        "",
    ]
    hostile.append("x" * 10_000)
    folders = [safe_name(name) for name in [*hostile, *(name + " " for name in hostile)]]
    assert len({folder.lower() for folder in folders}) == len(folders)
    for folder in folders:
        assert folder.isascii()
        assert folder[0].isalnum()
        assert len(folder) < 80
        assert not set(folder) & set('/\\:*?"<>|\n\x1b ')
    assert safe_name("flexcfl, share=0.3") == "flexcfl,share=0.3"


def test_parts_and_sizes(tables: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "other.toml", tables["base"] | {"name": "other", "seed": 9})
    tables |= deepcopy(SIZED) | {"seeds": [1]}
    tables["sizes"]["full"]["base"] = "other.toml"
    path = write(tmp_path / "s.toml", tables)
    study = read_study(path)
    assert [variant.label for variant in study.variants] == [
        "fedprox, size=small, part=steps, lr=0.1", "fedprox, size=small, part=steps, lr=0.2",
        "fedavg, size=small, part=links, links=usual", "fedprox, size=small, part=links, links=usual",
        "fedavg, size=small, part=links, links=slow", "fedprox, size=small, part=links, links=slow",
    ]  # fmt: skip
    first, second, third, fourth, fifth, _ = (
        study.runs_of[variant.folder][0] for variant in study.variants
    )
    assert (first.scenario.training.lr, second.scenario.training.lr) == (0.1, 0.2)
    assert fourth is second  # one scenario, one run
    assert len(study.runs) == 5
    assert (third.scenario.training.lr, third.scenario.training.l2) == (0.2, 0.5)
    assert fifth.scenario.network.model_dump()["server"]["up"] == "1 Mbit/s"
    full = read_study(path, size="full", seeds=2)
    assert {dict(variant.point)["part"] for variant in full.variants} == {"steps", "links", "long"}
    assert {(run.scenario.name, run.scenario.stop.rounds) for run in full.runs} == {("other", 9)}
    assert [run.scenario.seed for run in full.runs] == sorted(
        seed for seed in (1, 2) for _ in range(len(full.runs) // 2)
    )
    slow = full.runs_of["fedprox,size=full,part=links,links=slow"][0]
    assert slow.scenario.network.model_dump()["server"]["up"] == "1 kbit/s"
    again = read_study(write(tmp_path / "again.toml", tomllib.loads(full.to_toml())))
    assert again.runs == full.runs


def test_a_part_that_extends_another_says_only_what_differs(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    more = {"extends": "links", "changes": {"training": {"l2": 0.25}}, "grid": {"links": ["slow"]}}
    tables |= {**deepcopy(SIZED), "seeds": [1]}
    tables["parts"] |= {
        "slow": more,
        "slower": {"extends": "slow", "changes": {"training.batch_size": 5}},
    }
    study = read_study(write(tmp_path / "s.toml", tables))
    own = {
        (dict(one.point)["part"], one.name): study.runs_of[one.folder][0].scenario.training
        for one in study.variants
        if dict(one.point).get("links") == "slow"
    }
    slower = [own["slower", name] for name in ("fedavg", "fedprox")]
    assert [(training.lr, training.batch_size, training.l2) for training in slower] == [
        (0.2, 5, 0.5),
        (0.2, 5, 0.25),
    ]
    assert own["slow", "fedprox"].batch_size == own["links", "fedprox"].batch_size
    assert own["links", "fedprox"].l2 == 0.0


def test_some_of_a_study(tables: dict[str, Any], tmp_path: Path) -> None:
    study = read_study(write(tmp_path / "s.toml", tables | SIZED))

    def labels(*wanted: str) -> set[str]:
        return {run.label for run in study.runs if run.folder in study.only(wanted)}

    assert len(labels()) == len(study.runs) == 10
    assert labels("fedprox") == labels("variant=fedprox") < labels("fedprox", "fedavg") == labels()
    assert labels("part=steps", "seed=2", "lr=0.2") == {
        "fedprox, size=small, part=steps, lr=0.2, seed 2"
    }
    assert labels("variant=fedavg", "links=usual", "links=slow", "seed=1") == {
        f"fedavg, size=small, part=links, links={links}, seed 1" for links in ("usual", "slow")
    }
    shared = labels("part=links", "variant=fedprox", "links=usual", "seed=1")
    # the run that two parts share
    assert shared == {"fedprox, size=small, part=steps, lr=0.2, seed 1"}
    for text, says in (
        ("prat=steps", "only names 'prat'; allowed are variant, seed, size, part"),
        ("part=step", "only part is 'step'; allowed are steps, links (did you mean 'steps'?)"),
        ("part=", "only part is ''; allowed are steps, links"),
        (
            "fedpro",
            "only variant is 'fedpro'; allowed are fedprox, fedavg (did you mean 'fedprox'?)",
        ),
    ):
        with pytest.raises(ScenarioError) as raised:
            study.only([text])
        assert says in str(raised.value)


def test_the_index_says_what_the_file_says(tables: dict[str, Any], tmp_path: Path) -> None:
    tables |= {"grid": {"population.jitter": [0.0, 0.2]}, "references": ["local"], "target": 0.3}
    study = read_study(write(tmp_path / "s.toml", tables))
    index = index_of(study)
    assert (index.name, index.baseline, index.targets, index.seeds) == (
        "small",
        "fedavg",
        (0.3,),
        (1, 2),
    )
    assert [(one.label, one.reference) for one in index.variants] == [
        (f"{name}, jitter={jitter}", name == "local")
        for jitter in (0.0, 0.2)
        for name in ("fedavg", "fedprox", "local")
    ]
    fedprox = index.variants[4]
    assert (fedprox.name, fedprox.point) == ("fedprox", {"population.jitter": 0.2})
    assert fedprox.changes == {"strategy.kind": "fedprox", "strategy.mu": 0.1}
    assert [(run.seed, run.folder) for run in fedprox.runs] == [
        (seed, f"runs/fedprox,jitter=0.2/seed-{seed}") for seed in (1, 2)
    ]
    assert {run.folder for one in index.variants for run in one.runs} == {
        run.folder.as_posix() for run in study.runs
    }


def test_values_that_only_toml_has_are_texts(tables: dict[str, Any]) -> None:
    changes = {
        "a": [math.inf, {"b": datetime.date(2026, 1, 2)}],
        "c": {"d": math.nan},
        "e": [1, 0.5, True, "x"],
    }
    spec = StudySpec(**tables | {"variants": {"odd": changes}, "baseline": None})
    variant = Variant("odd", (("f", -math.inf),), changes)
    study = Study(spec)
    study.variants, study.runs_of = [variant], {variant.folder: []}
    (odd,) = index_of(study).variants
    assert odd.changes == {
        "a": ["inf", {"b": "2026-01-02"}],
        "c.d": "nan",
        "e": [1, 0.5, True, "x"],
    }
    assert odd.point == {"f": "-inf"}
    json.dumps(odd.model_dump(), allow_nan=False)


def test_references_are_made_of_the_base(tables: dict[str, Any], tmp_path: Path) -> None:
    study = read_study(
        write(tmp_path / "s.toml", tables | {"references": ["centralised", "local"]})
    )
    found = {run.variant.name: run.scenario for run in study.runs if run.scenario.seed == 1}
    base, local, centralised = found["fedavg"], found["local"], found["centralised"]
    assert local.population == base.population
    assert local.network == base.network
    assert (local.strategy.kind, local.strategy.clients_per_round, local.strategy.deadline) == (
        "local",
        6,
        30.0,
    )  # type: ignore[attr-defined]
    assert local.evaluation.score == centralised.evaluation.score == "pooled"  # as FedAvg's is
    assert centralised.population.devices == 1
    assert centralised.data.pooled_from == 12
    assert (centralised.strategy.kind, centralised.strategy.local_epochs) == ("local", 2)  # type: ignore[attr-defined]
    assert centralised.stop == base.stop


def test_pooling_keeps_every_sample_as_its_device_saw_it() -> None:
    partitions = (
        {"kind": "dirichlet", "alpha": 0.5},
        {"kind": "rotations", "degrees": [0, 90]},
        {"kind": "permutations"},
    )
    for said in (
        *({"source": "digits", "partition": one} for one in partitions),
        {"source": {"kind": "synthetic"}},
    ):
        dealt = DataSpec.model_validate(said).build(8, Streams(3))
        (alone,) = dealt.on_one_device().shards
        pooled = dealt.on_one_device()
        for of_one, of_all in (
            (dealt.train_samples, pooled.train_samples),
            (dealt.test_samples, pooled.test_samples),
        ):
            parts = [of_one(shard) for shard in dealt.shards]
            x, y = of_all(alone)
            np.testing.assert_array_equal(x, np.concatenate([part for part, _ in parts]))
            np.testing.assert_array_equal(y, np.concatenate([part for _, part in parts]))

    with pytest.raises(fedsim.ScenarioError, match=r"population\.devices is 2"):
        DataSpec(pooled_from=20).build(2, Streams(1))


LINEAR: dict[str, Any] = {
    "data": {"source": "linear"},
    "objective": {"kind": "regression", "metrics": ["mse", "rmse"]},
    "training": {"lr": 0.001},
    "population": {"devices": 4, "speed": "50 samples/s"},
    "strategy": {"kind": "fedavg", "clients_per_round": 2},
    "stop": {"rounds": 3},
}
STUDY: dict[str, Any] = {
    "base": LINEAR,
    "seeds": [1, 2],
    "variants": {"slow": {}, "fast": {"training": {"lr": 0.01}}},
}


def test_a_study_of_a_regression_is_ranked_and_drawn(tmp_path: Path) -> None:
    tables = STUDY | {"target": ["mse=3.5", "mse=0.01", "mse=2.5"], "goal": "mse"}
    out = finish(write(tmp_path / "study.toml", tables), tmp_path / "out")
    (answer,) = Comparison(read_lines([out])).answers()
    assert f"{answer.target:g}" == "mse 2.5"
    assert "fast has the lowest mean" in answer.words[0]
    assert "time to target mse 2.5" in [one.measure.name for one in answer.rankings]
    runs = [RunFolder(path.parent) for path in sorted(out.glob("runs/**/summary.json"))]
    assert draw_accuracy(runs[:1]).axes[0].get_ylabel().startswith("test mse")
    assert draw_costs(runs).axes[0].get_ylabel() == "test mse"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"target": "perplexty=8"}, "'perplexty=8' is of no metric; allowed are perplexity, mse"),
        ({"target": "accuracy=8"}, "allowed is an accuracy from 0 to 1"),
        ({"goal": "msee"}, "msee"),
        (
            {"search": {"kind": "random", "metric": "f1", "space": {"training.lr": [0.1, 0.2]}}},
            r"search.metric is 'f1', which needs objective.metrics = \['f1'\]",
        ),
    ],
)
def test_a_metric_that_is_not_there_is_refused(
    change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(fedsim.ScenarioError, match=says):
        find_searched(read_study(write(tmp_path / "study.toml", STUDY | change)).spec)


def test_a_search_has_the_target_of_a_metric() -> None:
    for metric, targets, name in (
        *(("mse", [0.3], "final mse"), ("best_mse", [], "best mse"), ("traffic", [], "traffic")),
        ("time", ["mse=2", "mse=1"], "time to target mse 1"),
        ("money_to_accuracy", [0.5, 0.7, "mse=1"], "cost to target 0.7"),
    ):
        measure = measure_of(metric, targets)
        assert measure is not None
        assert measure.name == name


def test_the_last_target_of_a_metric_is_its_hardest(tables: dict[str, Any], tmp_path: Path) -> None:
    for declared, ordered in (
        (["loss=0.5", "loss=0.25"], ["loss=0.5", "loss=0.25"]),
        (["mse=9", "mse=10"], ["mse=10", "mse=9"]),
        (["f1=0.9", "f1=0.5"], ["f1=0.5", "f1=0.9"]),
        (["own=10", "own=9"], ["own=9", "own=10"]),
        (["mse=1", 0.7, 0.5], [0.5, 0.7, "mse=1"]),
    ):
        study = read_study(write(tmp_path / "s.toml", tables | {"target": declared}))
        assert study.spec.target == ordered
