"""What ``--json`` prints fits its schema, and nothing else is on stdout."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tomli_w

from fedsim.analysis import report
from fedsim.cli.results.schema import RESULTS, output_schema
from fedsim.common.errors import key_of, nearest_of
from fedsim.lab import forecast
from tests.calls import call

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = output_schema()


def printed(name: str, *words: object, status: int = 0) -> Any:
    """The one object that ``fedsim WORDS... --json`` prints, which fits the schema of ``name``."""
    result = call(*words, "--json", catch_exceptions=False)
    assert result.exit_code == status, result.output
    assert result.stdout.count("\n") == 1
    assert result.stdout.isascii()
    value = json.loads(result.stdout, parse_constant=pytest.fail)
    schema = {"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]}
    jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
    jsonschema.validate(value, SCHEMA, jsonschema.Draft202012Validator)
    return value


@pytest.fixture
def study(small: dict[str, Any], tmp_path: Path) -> Path:
    del small["seed"]
    small["stop"]["rounds"] = 2
    small["learning"] = "off"
    tables = {"name": "small", "base": small, "seeds": [1], "variants": {"a": {}}}
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(tables))
    return path


def test_the_schema_is_one_and_describes_every_entry() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for result in RESULTS:
        entries = SCHEMA["$defs"][result.__name__]
        assert entries["description"].endswith(".")
        assert entries["additionalProperties"] is False
    assert json.loads(call("schema", "output").stdout) == SCHEMA


def test_verbs_of_one_run(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small["stop"]["rounds"] = 3
    small["learning"] = "off"
    scenario = tmp_path / "small.toml"
    scenario.write_text(tomli_w.dumps(small))
    monkeypatch.setattr(forecast, "PATIENCE_S", 0.05)
    # drawing the page takes seven seconds, and its path is all that the object has of it
    monkeypatch.setattr(report, "write_report", lambda runs, page: page)
    checked = printed("CheckResult", "check", scenario)
    assert checked["scenario"]["strategy"]["kind"] == small["strategy"]["kind"]
    assert checked["forecast"]["memory_bytes"] > 1e6
    assert printed("CheckResult", "check", scenario, "--no-trial")["forecast"] is None
    folder = tmp_path / "run"
    run = printed("RunResult", "run", scenario, "--out", folder, "--executor", "inline")
    assert run["summary"] == json.loads((folder / "summary.json").read_text())
    assert (run["status"], run["resume"]) == ("done", None)

    why = printed("WhyResult", "why", folder)
    assert [path["round"] for path in why["rounds"]] == [0, 1, 2]
    assert sum(why["totals_s"].values()) == pytest.approx(run["summary"]["simulated_s"])
    single = printed("WhyResult", "why", folder, "--round", 1)
    assert [path["round"] for path in single["rounds"]] == [1]
    assert single["totals_s"] == why["rounds"][1]["totals_s"]

    audit = printed("AuditResult", "audit", folder, "--unchecked")
    assert audit["passed"]
    assert audit["checks"]
    assert audit["unchecked"]
    whatif = printed("WhatifResult", "whatif", folder, "--set", "strategy.local_epochs=3")
    assert whatif["page"].endswith("run.whatif.report.html")
    assert len(whatif["totals_s"]) == 2
    compared = printed("CompareResult", "compare", folder, whatif["changed"])
    pictures = ("--figure", "waiting", "--out", tmp_path / "figures", "--width", "8cm")
    (figure,) = printed("FiguresResult", "figures", folder, *pictures)["figures"]
    assert all(Path(path).is_file() for path in (*figure["files"], figure["numbers"]))
    columns = {column["name"]: column["cells"] for column in compared["tables"][0]["columns"]}
    assert columns["run"] == ["run", "run.whatif"]
    assert [answer["world"] for answer in compared["answers"]] == [""]

    (folder / "summary.json").write_text(
        (folder / "summary.json").read_text().replace('"rounds": 3', '"rounds": 4')
    )
    forged = printed("AuditResult", "audit", folder, status=1)
    assert not forged["passed"]
    quiet = call("audit", folder, "--quiet")
    assert (quiet.exit_code, quiet.stdout) == (1, "")
    assert "FAIL" in quiet.stderr


def test_the_fetching_of_data(tmp_path: Path) -> None:
    planned = printed("FetchResult", "data", "fetch", "cifar10", "--root", tmp_path, "--dry-run")
    assert (planned["status"], planned["hosts"]) == ("dry-run", ["www.cs.toronto.edu"])
    assert planned["files"][0]["written"][-1] == "test_batch.bin"
    assert not [*tmp_path.iterdir()]
    refused = printed("ErrorResult", "data", "fetch", "cifar", "--root", tmp_path, status=2)
    assert refused["error"]["nearest"] == "cifar10"


def test_verbs_of_studies(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("study", study, "--out", out, "--dry-run", "--shard", "1/2")
    assert printed("StudyResult", *words, "--no-trial")["cost"] is None
    planned = printed("StudyResult", *words)
    assert [share["runs"] for share in planned["cost"]["shares"]] == [1, 0]
    assert (planned["status"], planned["runs"][0]["state"]) == ("dry-run", "new")
    assert planned["shard"] == {"number": 1, "count": 2, "runs": 1, "work": 1.0}
    assert not out.exists()
    refused = printed("ErrorResult", "study", study, "--out", out, "--shard", "5/3", status=2)
    assert refused["error"]["key"] == "--shard"
    finished = printed("StudyResult", "study", study, "--out", out, "--quiet")
    assert (finished["status"], finished["runs"][0]["state"]) == ("done", "done")
    assert finished["tables"][0]["columns"][0]["cells"] == ["a"]
    merged = printed("MergeResult", "study", "merge", out, "--out", tmp_path / "merged")
    assert merged["copied"] == [run["folder"] for run in finished["runs"]]
    run = out / merged["copied"][0]
    (run / "summary.json").unlink()
    missing = printed("MergeResult", "study", "merge", out, "--out", tmp_path / "m", status=1)
    assert missing["missing"] == merged["copied"]


def test_a_bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its runs take minutes; those that the board has stand for them here."""
    from fedsim.lab import bench

    board = bench.read_board()
    monkeypatch.setattr(bench, "bench", lambda *words, **options: board[:3])
    monkeypatch.setattr(bench, "digests_of_tables", lambda folder: {})
    result = printed("BenchResult", "bench", "fedavg", "--out", tmp_path / "bench")
    assert [line["strategy"] for line in result["lines"]] == [row.strategy for row in board[:3]]
    ranks = bench.places(board)
    for line in result["lines"]:
        assert line["place"] == ranks.get((line["strategy"], line["world"]))


def test_names() -> None:
    names = printed("ListResult", "list")["names"]
    assert "fedavg" in [entry["name"] for entry in names["strategies"]]
    (kind,) = printed("DescribeResult", "describe", "fedprox")["kinds"]
    assert "mu" in [key["name"] for key in kind["keys"]]
    (kind,) = printed("DescribeResult", "list", "phone-mid")["kinds"]
    assert all(figure["source"] for figure in kind["figures"])
    assert printed("DescribeResult", "describe", "stop.rounds")["kinds"] == []


MISTAKES: dict[str, tuple[str, str | None, str | None]] = {
    "check quickstart --set training.lrr=1": ("check", "training.lrr", "lr"),
    "check quickstart --set strategy.kind=fedavgg": ("check", "strategy.kind", "fedavg"),
    "check quickstart --set stop.rounds=-1": ("check", "stop.rounds", None),
    "check quickstart --toml": ("check", None, None),
    "run quickstart --out OUT --executor rai": ("run", "--executor", "ray"),
    "run quickstart --outt OUT": ("run", "--outt", "--out"),
    "run quickstart --out OUT --seed x": ("run", "--seed", None),
    "describe fedavgg": ("describe", None, "fedavg"),
    "audit OUT": ("audit", None, None),
    "why OUT": ("why", None, None),
    "compare OUT": ("compare", None, None),
}


@pytest.mark.parametrize(("words", "entries"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_an_object_too(
    words: str, entries: tuple[str, str | None, str | None], tmp_path: Path
) -> None:
    out = str(tmp_path / "nothing")
    parts = [out if word == "OUT" else word for word in words.split()]
    verb, key, nearest = entries
    output = printed("ErrorResult", *parts, status=2)
    assert output["verb"] == verb
    assert output["error"]["message"]
    assert (output["error"]["key"], output["error"]["nearest"]) == (key, nearest)
    assert output["error"]["exit_code"] == 2
    assert call(*parts, "--json").stderr == ""


def test_quiet_verbs_print_nothing() -> None:
    for words in ("list", "describe fedavg", "check quickstart --no-trial"):
        result = call(*words.split(), "--quiet")
        assert (result.exit_code, result.output) == (0, "")
    result = call("check", "quickstart", "--quiet", "--set", "stop.rounds=-1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "stop.rounds is -1" in result.stderr


def test_keys_in_messages() -> None:
    assert key_of("variant 'a, mu 1': strategy.mu is -1; it must be 0 or more") == "strategy.mu"
    assert key_of("the scenario has the unknown key 'trainingg'; allowed are x") == "trainingg"
    assert key_of("'nothere' does not exist") is None
    assert key_of("there is nothing called 'x'") is None
    assert nearest_of("No such command 'runn'. Did you mean 'run'?") == "run"


def test_exit_codes_are_listed() -> None:
    page = (ROOT / "docs" / "howto" / "programs.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \|", page, re.MULTILINE) == ["0", "1", "2", "75", "130"]
