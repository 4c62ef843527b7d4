"""Studies whose runs are carried out on Ray, with workers and nodes that are lost."""

import json
import signal
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import children
from tests.calls import done
from tests.children import wait_until
from tests.clusters.two_nodes import two_nodes
from tests.lab.conftest import finish, write
from tests.lab.study.test_run import checkpoints, start

pytestmark = [
    pytest.mark.skipif(
        find_spec("ray") is None, reason="needs Ray: pip install 'ray>=2.52' 'cloudpickle>=3'"
    ),
    # Ray 2.52 leaves its ended servers to the garbage collector
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <function Popen.__del__:pytest.PytestUnraisableExceptionWarning"
    ),
]


def content(out: Path) -> dict[str, bytes]:
    found = {
        str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()
    }
    for name in [name for name in found if name.endswith("summary.json")]:
        found[name] = json.dumps(
            json.loads(found[name]) | {"wall_s": 0, "summary_sha256": ""}
        ).encode()
    return found


@pytest.fixture
def losing(
    tables: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """A study whose run loses its process once, in round 7, after it was saved after five
    rounds.
    """
    monkeypatch.setenv("LOSSES", str(tmp_path / "losses"))
    (tmp_path / "losses").mkdir()
    tables["base"] |= {"stop": {"rounds": 9}, "checkpoint": {"rounds": 5}, "learning": "off"}
    tables["variants"] = {"loses": {"strategy.kind": "tests.lab.study.strategies:LosesWorker"}}
    return tables | {"baseline": "loses", "seeds": [1]}


def test_the_same_folder_as_from_the_local_pool(study_file: Path, tmp_path: Path) -> None:
    assert "4/4" in done(
        "study", study_file, "--out", tmp_path / "out", "--executor", "ray", "--workers", "2"
    )
    assert content(tmp_path / "out") == content(finish(study_file, tmp_path / "here"))


def test_a_lost_run_goes_on_from_its_newest_checkpoint(
    losing: dict[str, Any], tmp_path: Path
) -> None:
    study = write(tmp_path / "s.toml", losing)
    done("study", study, "--out", tmp_path / "out", "--executor", "ray", "--workers", "1")
    rounds = [int(line) for line in (tmp_path / "losses" / "rounds").read_text().split()]
    # who came after it made only those again that had not been saved
    assert rounds == [*range(8), *range(5, 9)]
    assert content(tmp_path / "out") == content(finish(study, tmp_path / "here"))


def test_a_study_on_a_cluster_that_loses_a_node(
    losing: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing["variants"]["loses"]["strategy.kind"] = "tests.lab.study.strategies:LosesNode"
    study = write(tmp_path / "s.toml", losing | {"seeds": [1, 2, 3]})
    words = ("study", study, "--out", tmp_path / "out", "--executor", "ray", "--address")
    with two_nodes(monkeypatch, num_cpus=1) as cluster:
        (tmp_path / "losses" / "head").write_text(cluster.head_node.node_id)
        done(*words, cluster.address)
        assert (tmp_path / "losses" / "lost").exists()
    assert content(tmp_path / "out") == content(finish(study, tmp_path / "here"))


def test_until_sure_adds_the_seeds_of_local_workers_though_a_worker_is_lost(
    losing: dict[str, Any], tmp_path: Path
) -> None:
    losing["base"] |= {"learning": "on"}
    losing["variants"]["idle"] = losing["variants"]["loses"] | {"training.lr": 1e-9}
    study = write(tmp_path / "s.toml", losing | {"goal": "accuracy", "seeds": [1, 2]})

    def decide(name: str, *words: str) -> Any:
        rule = ("--until-sure", "--most-runs", "12", "--quiet", "--json")
        result = json.loads(done("study", study, "--out", tmp_path / name, *rule, *words))
        (answer,) = result["answers"]
        return answer["decision"] | {"real_s": 0.0}

    far = decide("out", "--executor", "ray", "--workers", "2")
    rounds = (tmp_path / "losses" / "rounds").read_text().split()
    assert len(rounds) > 9 * far["runs"]  # a worker was lost
    assert far == decide("here", "--workers", "2")
    assert far["status"] in ("best", "tie")
    near_runs = content(tmp_path / "here" / "runs")
    assert content(tmp_path / "out" / "runs") == near_runs
    indices = {(tmp_path / name / "index.json").read_bytes() for name in ("out", "here")}
    assert len(indices) == 1


@pytest.mark.parametrize("rule", [(), ("--until-sure",)], ids=["all seeds", "until sure"])
def test_an_interrupted_study_goes_on(
    rule: tuple[str, ...], tables: dict[str, Any], tmp_path: Path
) -> None:
    tables["base"] |= {"stop": {"rounds": 20_000}, "checkpoint": {"rounds": 10}, "learning": "off"}
    out = tmp_path / "out"
    words = (write(tmp_path / "s.toml", tables), "--out", out, "--json", "--quiet", *rule)
    process = start(*words, "--executor", "ray", "--workers", "2")
    wait_until(
        lambda: {path.parts[-5] for path in checkpoints(out)} == {"fedavg", "fedprox"}, process
    )
    process.send_signal(signal.SIGINT)
    output, errors = children.ended(process)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert json.loads(output)["status"] == "interrupted"
    planned = json.loads(done("study", *words, "--dry-run", "--no-trial"))
    states = Counter(run["state"] for run in planned["runs"])
    assert states == {"new": len(planned["runs"]) - 2, "resume": 2}
