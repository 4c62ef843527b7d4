"""The other verbs on runs of Flower apps: they are as any other."""

import json
from pathlib import Path

import pytest
import tomli_w

pytest.importorskip("flwr")

import fedsim
from tests.calls import done
from tests.flower.runs import eventful, execute


def test_report_compare_audit_and_trace(tmp_path: Path) -> None:
    """Two strategies of Flower's in the same world, one of which sends twice the bytes."""
    for name in ("FedAvg", "FedAdam"):
        config = {"strategy": name, "size": 2_000, "num-server-rounds": 3, "fraction-train": 0.3}
        execute(eventful("numpy_app", devices=8, run_config=config), tmp_path / name)
        done("audit", tmp_path / name)
    one, other = (fedsim.load_run(tmp_path / name) for name in ("FedAvg", "FedAdam"))
    table = done("compare", tmp_path / "FedAvg", tmp_path / "FedAdam")
    assert "flower (FedAvg)" in table
    assert "flower (FedAdam)" in table
    down = [run.summary["bytes"]["down"] for run in (one, other)]
    assert 1.5 < down[1] / down[0] < 2.1  # FedAdam's server computes in float64
    done("report", tmp_path / "FedAvg", tmp_path / "FedAdam", "--out", tmp_path / "report.html")
    assert "compute" in (tmp_path / "report.html").read_text()
    done("trace", tmp_path / "FedAvg", "--out", tmp_path / "trace.json")
    entries = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"compute", "download", "upload"} <= {entry["name"].split(" ")[0] for entry in entries}


def test_check_and_a_study_of_strategies(tmp_path: Path) -> None:
    base = eventful("numpy_app", devices=6)
    (tmp_path / "app.toml").write_text(fedsim.Scenario(**base).to_toml())
    said = done("check", tmp_path / "app.toml", "--allow-code")
    assert "6 devices; what they compute, send and learn is for a Flower app" in said
    variants = {
        name: {"strategy": {"run_config": {"strategy": name, "num-server-rounds": 2}}} for name in ("FedAvg", "FedMedian")
    }
    (tmp_path / "study.toml").write_text(tomli_w.dumps({"seeds": [1], "base": base, "variants": variants}))
    done("study", tmp_path / "study.toml", "--out", tmp_path / "study", "--allow-code", "--workers", "1", "--quiet")
    assert {run.parent.name for run in (tmp_path / "study" / "runs").glob("*/seed-1")} == {"FedAvg", "FedMedian"}
    assert (tmp_path / "study" / "compare.csv").is_file()
