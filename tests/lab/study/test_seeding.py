"""Seeds that are added until the best line is sure: budgets, ties, misses, and going on."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedsim.common.errors import ScenarioError
from fedsim.lab.compare.line_decision import LineDecision
from fedsim.lab.compare.lines import read_lines
from fedsim.lab.compare.show import write_tables
from fedsim.lab.compare.table import Comparison
from fedsim.lab.reading.study_folder import read_index
from fedsim.lab.study.folder import write_study
from fedsim.lab.study.plan import read_study
from fedsim.lab.study.seeding import Seeding
from fedsim.lab.study.until_sure import UntilSure
from tests.calls import call, done
from tests.lab.conftest import rows_of, write

VARIANTS: dict[str, dict[str, object]] = {
    "good": {},
    "alike": {"training.lr": 0.1000001},
    "slow": {"training.lr": 0.02},
    "idle": {"training.lr": 1e-9},
}


@pytest.fixture
def sections(tables: dict[str, Any]) -> dict[str, Any]:
    """A study by the accuracy at the end; ``alike`` ties with ``good``, and ``idle`` learns nothing."""
    tables["base"]["stop"] = {"rounds": 2}
    return tables | {
        "goal": "accuracy",
        "baseline": "good",
        "references": ["local"],
        "variants": VARIANTS,
    }


class Forged:
    """A study whose runs are written at once, with an accuracy and a real time by line and seed."""

    def __init__(self, path: Path, sections: dict[str, Any], rule: dict[str, object]) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self.study = read_study(sections, until_sure=rule)
        assert self.study.spec.until_sure is not None
        self.seeding = Seeding(self.study, self.study.spec.until_sure)

    def finish(
        self, template: Path, values: dict[str, list[float]], wall_s: float = 1.0
    ) -> LineDecision:
        """Carry out all stages, each run being a copy of ``template`` with its own accuracy."""
        planned = 0
        while planned != len(self.study.runs):
            planned = len(self.study.runs)
            write_study(self.path, self.study)
            for run in self.study.runs:
                seed = run.scenario.seed
                folder = self.path / run.folder
                if not folder.exists():
                    shutil.copytree(template, folder)
                    (folder / "scenario.toml").write_text(run.scenario.to_toml())
                    summary = json.loads((template / "summary.json").read_text())
                    summary |= {"seed": seed, "wall_s": wall_s}
                    own = values.get(run.variant.name, [0.5])
                    summary["accuracy"]["final"] = own[(seed - 1) % len(own)]
                    (folder / "summary.json").write_text(json.dumps(summary))
            self.seeding.grow(self.path)
        write_study(self.path, self.study)
        (answer,) = Comparison(read_lines([self.path])).answers()
        line_decision = answer.rankings[0].decision
        assert line_decision is not None
        return line_decision

    def seeds(self) -> dict[str, int]:
        return {variant.name: len(variant.runs) for variant in read_index(self.path).variants}


@pytest.fixture
def template(sections: dict[str, Any], tmp_path: Path) -> Path:
    """The folder of a run that all runs of forged studies are copies of."""
    import fedsim

    scenario = read_study(sections | {"seeds": [1]}).runs[0].scenario
    fedsim.run(scenario, tmp_path / "template", executor="inline")
    return tmp_path / "template"


NEAR = [0.90, 0.91, 0.905, 0.915, 0.895, 0.90, 0.92]
FAR = [0.50, 0.52, 0.51, 0.54, 0.49, 0.50, 0.53]


def test_losers_get_no_further_seeds_and_the_ranking_says_what_was_decided(
    sections: dict[str, Any], template: Path, tmp_path: Path
) -> None:
    values = {"good": NEAR, "alike": [x - 0.03 for x in reversed(NEAR)], "slow": FAR, "idle": FAR}
    forged = Forged(tmp_path / "out", sections, {"within": 0, "most_runs": 100})
    line_decision = forged.finish(template, values)
    seeds = forged.seeds()
    assert line_decision.status == "best"
    assert (line_decision.names[line_decision.outcome.contenders[0]], seeds["local"]) == ("good", 2)
    assert seeds["slow"] == seeds["idle"] == 6  # 3 / 0.05 is 60: more than 6^2, less than 7^(5/2)
    assert seeds["good"] > seeds["slow"]
    assert line_decision.runs == sum(seeds.values()) - seeds["local"]
    write_tables(forged.path)
    assert len(rows_of(forged.path / "runs.csv")) == sum(seeds.values())
    (answer,) = Comparison(read_lines([forged.path])).answers()
    head, *rest = answer.rankings[0].sentences
    assert head.startswith("good ends with the highest accuracy, 0.90")
    assert head.endswith("(error at most 5 %).")
    assert "3 worse lines were dropped after" in " ".join(rest)
    assert rest[-1].startswith(
        f"This took {line_decision.runs} runs and {line_decision.runs} s of computing"
    )


def test_the_plan_is_the_same_from_the_beginning_and_after_a_loss_of_runs(
    sections: dict[str, Any], template: Path, tmp_path: Path
) -> None:
    values = {"good": NEAR, "alike": [x - 0.01 for x in reversed(NEAR)], "slow": FAR, "idle": FAR}
    rule: dict[str, object] = {"within": 0.001, "most_runs": 47}
    first = Forged(tmp_path / "out", sections, rule)
    first.finish(template, values)
    index = (first.path / "index.json").read_bytes()
    assert len(first.study.runs) <= 47
    shutil.rmtree(first.path / "runs/good/seed-7")
    again = Forged(first.path, sections, rule)
    again.finish(template, values)
    assert (first.path / "index.json").read_bytes() == index
    more = Forged(first.path, sections, rule | {"most_runs": 60})
    more.finish(template, values)
    assert 47 < len(more.study.runs) <= 60
    less = Forged(first.path, sections, rule)  # further runs stay, and are not counted
    less.finish(template, values)
    assert (first.path / "index.json").read_bytes() == index


def test_a_budget_of_time_is_kept_by_the_longest_run_of_each_line(
    sections: dict[str, Any], template: Path, tmp_path: Path
) -> None:
    forged = Forged(tmp_path / "out", sections, {"within": 0, "most_time": "250 s"})
    line_decision = forged.finish(template, dict.fromkeys(VARIANTS, NEAR), wall_s=10.0)
    # 22 first runs with those of the reference, of 10 s each; 3 more fit, but not one for each of 4
    assert (len(forged.study.runs), line_decision.status) == (22, "budget")
    values = {"good": NEAR, "alike": NEAR[::-1], "slow": FAR, "idle": FAR}
    forged = Forged(tmp_path / "other", sections, {"within": 0, "most_time": "270 s"})
    line_decision = forged.finish(template, values, wall_s=10.0)
    assert (len(forged.study.runs), line_decision.status) == (26, "budget")


def test_a_budget_below_the_first_seeds_is_refused(sections: dict[str, Any]) -> None:
    study = read_study(sections)
    with pytest.raises(ScenarioError, match=r"most_runs is 21, but the first 5 seeds .* 22 runs"):
        Seeding(study, UntilSure(most_runs=21))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--error", "1%"), "--error is '1%', but it belongs to --until-sure"),
        (("--until-sure", "--shard", "1/2"), "--shard is '1/2', but --until-sure adds seeds"),
        (("--until-sure", "--only", "good"), "--only is 'good', but --until-sure adds seeds"),
        (("--until-sure", "--within", "5kg"), "until_sure.within: '5kg' is no share"),
        (("--until-sure", "--error", "0"), "until_sure.error is 0.0; it must be more than 0"),
        (("--until-sure", "--most-time", "5"), "until_sure.most_time is '5': a time is"),
        (("--until-sure", "--most-runs", "9"), "until_sure.most_runs is 9, but the first 5 seeds"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(
    sections: dict[str, Any], tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    study = write(tmp_path / "s.toml", sections)
    result = call("study", study, "--out", tmp_path / "out", "--dry-run", *options)
    assert (result.exit_code, message in result.output) == (2, True), result.output
    assert not (tmp_path / "out").exists()


def test_a_dry_run_lists_the_first_seeds_and_the_budget(
    sections: dict[str, Any], tmp_path: Path
) -> None:
    study = write(tmp_path / "s.toml", sections)
    words = ("study", study, "--out", tmp_path / "out", "--until-sure", "--dry-run")
    plan = done(*words)
    assert "more seeds follow where they decide: at most 40 runs in all" in plan.splitlines()
    assert plan.count("new ") == 22  # four lines with five seeds, a reference with two
    result = json.loads(done(*words, "--json"))
    assert (result["status"], result["most_runs"], len(result["runs"])) == ("dry-run", 40, 22)


def test_a_real_study_by_the_command_line(sections: dict[str, Any], tmp_path: Path) -> None:
    del sections["variants"]["alike"]
    study = write(tmp_path / "s.toml", sections)
    out = tmp_path / "out"
    words = ("study", study, "--out", out, "--until-sure", "--most-runs", "24")
    result = json.loads(done(*words, "--workers", "2", "--quiet", "--json"))
    (answer,) = result["answers"]
    decision = answer["decision"]
    assert (result["status"], result["most_runs"]) == ("done", 24)
    assert decision["status"] in ("best", "tie")
    assert decision["leader"] == "good"
    assert decision["leader"] in answer["sentences"][0]
    before = (out / "index.json").read_bytes()
    again = json.loads(done(*words, "--workers", "1", "--quiet", "--json"))
    assert again["answers"] == result["answers"]
    assert (out / "index.json").read_bytes() == before
    assert len(rows_of(out / "runs.csv")) == len(result["runs"]) <= 24
    refused = call("study", study, "--out", out)
    assert "no run of this study; give another folder, or --until-sure" in refused.output
