"""Searches: the values that are proposed, known optima, trials that fail, and what is taken up
again.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.analysis.report.gather import gather
from fedsim.common.errors import ScenarioError
from fedsim.lab.compare.show import write_tables
from fedsim.lab.reading.study_folder import is_done
from fedsim.lab.study.conduct import try_to_build
from fedsim.lab.study.folder import write_study
from fedsim.lab.study.plan import read_study
from fedsim.lab.study.search import OneOf, OptunaSearch, RandomSearch, Range, Search, importances
from fedsim.lab.study.trials import Trials
from fedsim.lab.study.worker import Worker
from tests.calls import call
from tests.lab.conftest import rows_of, write

needs_optuna = pytest.mark.skipif(
    find_spec("optuna") is None, reason="needs Optuna: pip install 'optuna>=4'"
)

LR = {"low": 0.001, "high": 1.0, "log": True}


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ({"low": 0.0, "high": 2.0}, [0.0, 1.0, 1.998]),
        ({"low": 0.01, "high": 1.0, "log": True}, [0.01, 0.1, 0.9954]),
        ({"low": 1, "high": 4}, [1, 3, 4]),
        ({"low": "10 s", "high": "30 s"}, ["10 s", "20 s", "29.98 s"]),
        (
            {"low": "1 Mbit/s", "high": "100 Mbit/s", "log": True},
            ["1 Mbit/s", "10 Mbit/s", "99.54 Mbit/s"],
        ),
    ],
)
def test_a_share_of_a_range_is_a_value_of_it(said: dict[str, Any], written: list[Any]) -> None:
    one = Range(**said)
    assert [one.scenario_value(one.at(share)) for share in (0.0, 0.5, 0.999)] == written
    assert [type(one.scenario_value(one.at(0.5)))] == [type(written[1])]


def test_whole_numbers_and_choices_are_all_as_likely() -> None:
    shares = [(place + 0.5) / 1200 for place in range(1200)]
    assert Counter(map(Range(low=3, high=8).at, shares)) == dict.fromkeys(range(3, 9), 200)
    assert Counter(map(OneOf(["a", {"kind": "b"}, True]).at, shares)) == dict.fromkeys(
        range(3), 400
    )


def test_random_values_do_not_depend_on_how_many_are_asked_for_at_a_time() -> None:
    search = RandomSearch(
        trials=6,
        metric="best_accuracy",
        space={"training.lr": LR, "model.kind": ["mlp", "logistic"]},
    )
    together = search.ask("fedavg", search.space, [], 6)
    alone = [search.ask("fedavg", search.space, [({}, 0)] * number, 1)[0] for number in range(6)]
    assert together == alone
    assert len({values["training.lr"] for values in together}) == 6
    assert together != search.ask("fedprox", search.space, [], 6)
    assert together != search.model_copy(update={"seed": 1}).ask("fedavg", search.space, [], 6)


def squares(search: Search) -> list[tuple[float, Mapping[str, Any]]]:
    """Search for the least value of a bowl with its bottom at 0.1, 12 and "b"."""
    made: list[tuple[float, Mapping[str, Any]]] = []
    while len(made) < search.trials:
        told = [(values, sum(other < value for other, _ in made)) for value, values in made]
        for one in search.ask(
            "bowl", search.space, told, min(search.batch, search.trials - len(made))
        ):
            far = (
                math.log10(one["lr"]) + 1,
                (one["whole"] - 12) / 10,
                0.0 if one["name"] == "b" else 1.0,
            )
            made.append((sum(part * part for part in far), one))
    return made


SPACE = {
    "lr": {"low": 1e-4, "high": 1.0, "log": True},
    "whole": {"low": 2, "high": 40},
    "name": ["a", "b", "c"],
}


@needs_optuna
def test_optuna_finds_the_bottom_of_a_bowl_and_the_same_one_again() -> None:
    search = OptunaSearch(trials=60, metric="bytes", space=SPACE)
    made = squares(search)
    value, best = min(made, key=lambda one: one[0])
    assert value < 0.1
    assert (best["name"], abs(best["whole"] - 12) <= 4) == ("b", True)
    assert made == squares(search)
    drawn = squares(RandomSearch(trials=60, metric="bytes", space=SPACE))
    late, early, random = (
        sum(value for value, _ in part) for part in (made[40:], made[:20], drawn[40:])
    )
    assert late < min(early, random) / 2  # it has learnt where to look


def test_without_optuna_it_says_so_and_no_search_takes_only(
    tables: dict[str, Any], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    study = write(tmp_path / "s.toml", tables | {"search": {**SEARCH, "kind": "optuna"}})
    done = call("study", study, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "pip install 'optuna>=4' installs it" in done.output
    done = call(
        "study",
        write(study, tables | {"search": SEARCH}),
        "--out",
        tmp_path / "out",
        "--only",
        "fedavg",
    )
    assert (done.exit_code, "the study searches" in done.output) == (2, True)
    assert not (tmp_path / "out").exists()


SEARCH = {"kind": "random", "trials": 4, "metric": "final_accuracy", "space": {"training.lr": LR}}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"kind": "optun"},
            "search.kind is 'optun'; allowed are random, optuna (did you mean 'optuna'?)",
        ),
        (
            {"metric": "time_to_acuracy"},
            "search.metric is 'time_to_acuracy'; allowed are time, bytes",
        ),
        ({"metric": "time_to_accuracy"}, "which needs the study's 'target'"),
        ({"metric": "battery"}, "search.metric is 'battery', which needs [energy]"),
        ({"space": {}}, "search.space has no keys for the variant 'fedavg'"),
        (
            {"space": {"training.lr": {"low": 1.0, "high": 0.1}}},
            "low is 1.0 and high is 0.1; low must be below high",
        ),
        (
            {"space": {"training.lr": {"low": 0.0, "high": 0.1, "log": True}}},
            "with log = true it must be above 0",
        ),
        ({"space": {"training.lr": [0.1, 0.1]}}, "has one of them twice"),
        (
            {"space": {"strategy.deadline": {"low": "5 s", "high": "1 min"}}},
            "both must have the same unit",
        ),
        (
            {"space": {"strategy.deadline": {"low": "5", "high": "10"}}},
            "'5' is no number with a unit",
        ),
        ({"space": {"training.lrr": LR}}, "training has the unknown key 'lrr'"),
        (
            {"space": {"strategy.local_epochs": {"low": 0, "high": 5}}},
            "local_epochs=0': strategy.local_epochs is 0",
        ),
        ({"space": {"seed": {"low": 1, "high": 5}}}, "'seed' is no key to search over"),
        (
            {"variants": {"fedpox": {"training.lr": LR}}},
            "a variant of the search is 'fedpox'; allowed are fedavg, fedprox",
        ),
        ({"grid": {"training.lr": [0.1]}}, "'training.lr' is both in a grid and in search.space"),
        (
            {"of study": {}, "baseline": "local", "references": ["local"]},
            "a search needs a variant at least",
        ),
        (
            {"sets": {"training.lr": {"a": {}}}},
            "a value of 'training.lr' in search.space is 0.001; allowed are a",
        ),
    ],
)
def test_what_is_wrong_is_named(
    tables: dict[str, Any], tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    of_study = {
        key: change.pop(key) for key in ("grid", "baseline", "references", "sets") if key in change
    }
    of_study |= {"variants": change.pop("of study")} if "of study" in change else {}
    with pytest.raises(ScenarioError) as raised:
        read_study(
            write(
                tmp_path / "s.toml", tables | {"target": [], "search": SEARCH | change} | of_study
            )
        )
    assert says in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


@pytest.fixture
def searched(tables: dict[str, Any]) -> dict[str, Any]:
    """A study whose optimum is known: without learning a round takes the longer the more epochs
    it has.
    """
    del tables["base"]["population"]["availability"], tables["base"]["strategy"]["deadline"]
    tables["base"] |= {"learning": "off", "stop": {"rounds": 2}}
    space = {"strategy.local_epochs": {"low": 1, "high": 30}, "population.jitter": [0.0, 0.1]}
    return tables | {
        "target": [],
        "search": {"kind": "random", "trials": 5, "metric": "simulated_time", "space": space},
    }


def search_here(study_file: Path, out: Path, most: int = 10_000) -> Trials:
    study = read_study(study_file)
    assert study.spec.search is not None
    trials = Trials(study, study.spec.search)
    out.mkdir(exist_ok=True)
    worker = Worker(lambda **_: None)
    while True:
        trials.grow(out, try_to_build)
        write_study(out, trials.study)
        left = [run for run in trials.study.runs if not is_done(out / run.folder)]
        for run in left[:most]:
            worker.carry_out(
                {
                    "scenario": run.scenario.to_toml(),
                    "folder": str(out / run.folder),
                    "waits": False,
                }
            )
            most -= 1
        if not left or not most:
            trials.write(out)
            return trials


def test_a_search_from_beginning_to_end(searched: dict[str, Any], tmp_path: Path) -> None:
    searched["search"]["trials"] = 3
    study, out = write(tmp_path / "s.toml", searched), tmp_path / "out"
    trials = search_here(study, out)
    write_tables(out)
    rows = rows_of(out / "trials.csv")
    assert [(row["variant"], row["state"], row["runs"]) for row in rows] == [
        (name, "done", "2") for name in ("fedavg", "fedprox") for _ in range(3)
    ]
    for name, line in zip(("fedavg", "fedprox"), trials.lines_of_text()[1:], strict=True):
        own = [row for row in rows if row["variant"] == name]
        times = [float(row["simulated_time"]) for row in own]
        epochs = [int(row["strategy.local_epochs"]) for row in own]
        assert times == sorted(times)
        assert (epochs[0], epochs[-1]) == (min(epochs), max(epochs))
        assert line.startswith(f"{name}: best is trial {own[0]['trial']}, simulated_time")
        best = fedsim.load(out / f"best-{name}.toml")
        assert best.strategy.model_dump()["local_epochs"] == epochs[0]
        paths = out.glob(f"runs/{name},trial={own[0]['trial']},*/*/summary.json")
        assert times[0] == pytest.approx(
            sum(json.loads(path.read_text())["simulated_s"] for path in paths) / 2
        )
    loaded = fedsim.load_study(out)
    assert len(loaded.variants) == 6
    assert list(loaded.trials["trial"]) == [int(row["trial"]) for row in rows]
    assert len(gather([out]).runs) == 12
    assert (
        call("study", out / "study.toml", "--out", out, "--dry-run", "--no-trial").output.split()[
            ::2
        ]
        == ["done"] * 12
    )


@needs_optuna
def test_the_share_of_each_key_in_how_trials_rank() -> None:
    """Of a sum of squares whose second key counts a tenth, and of one key, about which there is
    nothing to say.
    """
    space = {"a": Range(low=-1.0, high=1.0), "b": Range(low=-1.0, high=1.0)}
    points = RandomSearch(trials=60, metric="bytes", space={}).ask("line", space, [], 60)
    order = sorted(points, key=lambda one: one["a"] ** 2 + 0.1 * one["b"] ** 2)
    told = [(one, order.index(one)) for one in points]
    shares = importances(space, told)
    assert [*shares] == ["a", "b"]
    assert shares["a"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)
    assert importances({"a": space["a"]}, told) == importances(space, told[:7]) == {}


@pytest.mark.parametrize("kind", ["random", pytest.param("optuna", marks=needs_optuna)])
def test_stopped_anywhere_and_taken_up_it_makes_the_same_trials(
    searched: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    searched["search"] |= {"kind": kind, "prune": True, "trials": 6}
    del searched["variants"]["fedprox"]
    study, whole, parts = (
        write(tmp_path / "s.toml", searched),
        tmp_path / "whole",
        tmp_path / "parts",
    )
    search_here(study, whole)
    assert "pruned" in {row["state"] for row in rows_of(whole / "trials.csv")}
    for _ in range(10):
        # another process each time, as far as it can know
        trials = search_here(study, parts, most=2)
        if trials.is_over:
            break
        assert "open" in {row["state"] for row in rows_of(parts / "trials.csv")}
    for name in ("trials.csv", "index.json", "study.toml", "best.toml"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()
    assert sorted(path.relative_to(parts) for path in parts.rglob("summary.json")) == sorted(
        path.relative_to(whole) for path in whole.rglob("summary.json")
    )


@pytest.mark.long
def test_pruning_spares_the_worse_the_other_seeds(searched: dict[str, Any], tmp_path: Path) -> None:
    searched["search"] |= {"prune": True, "trials": 8}
    searched["search"]["space"] = {"strategy.local_epochs": {"low": 1, "high": 300}}
    del searched["variants"]["fedprox"]
    trials = search_here(write(tmp_path / "s.toml", searched), tmp_path / "out")
    (line,) = trials.lines
    by_epochs = sorted(line.trials, key=lambda trial: trial.values["strategy.local_epochs"])
    assert [trial.state for trial in by_epochs] == ["done"] * 4 + ["pruned"] * 4
    assert [len(trial.figures) for trial in by_epochs] == [2] * 4 + [1] * 4
    assert trials.best(line) is by_epochs[0]


def test_trials_that_fail_or_cannot_be_run_are_worst_and_not_tried_again(
    searched: dict[str, Any], tmp_path: Path
) -> None:
    fails = "tests.lab.study.strategies:Fails"
    searched["search"]["space"] = {
        "strategy.kind": ["fedavg", fails],
        "strategy.clients_per_round": {"low": 1, "high": 12},
    }
    searched |= {"variants": {"either": {}}, "baseline": "either", "seeds": [1]}
    study, out = write(tmp_path / "s.toml", searched), tmp_path / "out"
    done = call("study", study, "--out", out, "--workers", "1", "--allow-code")
    assert done.exit_code == 0, done.output
    rows = rows_of(out / "trials.csv")
    broken = [row["strategy.kind"] == fails for row in rows]
    assert [row["state"] for row in rows] == ["failed" if one else "done" for one in broken]
    assert broken == sorted(broken)
    assert 0 < sum(broken) < 5
    assert f"{sum(broken)} failed" in done.stdout
    assert "on purpose" in done.stderr
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*/*")}
    assert call("study", study, "--out", out, "--quiet", "--allow-code").exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*/*")} == before


def test_points_that_make_no_scenario_are_refused_one_by_one(
    searched: dict[str, Any], tmp_path: Path
) -> None:
    searched["base"]["strategy"]["clients_per_round"] = 1
    searched["search"]["space"] = {
        "population.devices": {"low": 2, "high": 12},
        "strategy.clients_per_round": {"low": 1, "high": 12},
    }
    del searched["variants"]["fedprox"]
    trials = search_here(write(tmp_path / "s.toml", searched), tmp_path / "out")
    for trial in trials.lines[0].trials:
        too_many = trial.values["strategy.clients_per_round"] > trial.values["population.devices"]
        assert trial.state == ("refused" if too_many else "done")
        assert bool(trial.error) == too_many
    assert {trial.state for trial in trials.lines[0].trials} == {"refused", "done"}
    searched["search"]["space"] = {
        "population.devices": [2, 3],
        "strategy.clients_per_round": [4, 12],
    }
    searched["base"]["population"]["devices"] = 12
    done = call("study", write(tmp_path / "none.toml", searched), "--out", tmp_path / "none")
    assert done.exit_code == 2
    assert "no trial of 'fedavg' can be run: variant 'fedavg, trial=5, devices=" in done.output
