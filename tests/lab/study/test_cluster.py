"""Studies on Ray: the same folders to the byte as from the local pool, whatever becomes of workers and nodes."""

import json
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.calls import call, done
from tests.lab.conftest import finish, write
from tests.lab.study.test_run import checkpoints, ends_with_130, refused, start, wait_for

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'ray>=2.60' 'cloudpickle>=3'")


def content(out: Path) -> dict[str, bytes]:
    """Every file of a study's folder by its path, but for how long runs took."""
    found = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for name in [name for name in found if name.endswith("summary.json")]:
        found[name] = json.dumps(json.loads(found[name]) | {"wall_s": 0, "summary_sha256": ""}).encode()
    return found


@pytest.fixture
def losing(tables: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A study whose run loses its process once, in round 7, after it was saved after five rounds."""
    monkeypatch.setenv("LOSSES", str(tmp_path / "losses"))
    (tmp_path / "losses").mkdir()
    tables["base"] |= {"stop": {"rounds": 9}, "checkpoint": {"rounds": 5}, "learning": "off"}
    tables["variants"] = {"loses": {"strategy.kind": "tests.lab.study.strategies:LosesWorker"}}
    return tables | {"baseline": "loses", "seeds": [1]}


@needs_ray
def test_the_same_folder_as_from_the_local_pool(study_file: Path, tmp_path: Path) -> None:
    assert "4/4" in done("study", study_file, "--out", tmp_path / "out", "--executor", "ray", "--workers", "2")
    assert content(tmp_path / "out") == content(finish(study_file, tmp_path / "here"))


@needs_ray
def test_a_lost_run_goes_on_from_its_newest_checkpoint(losing: dict[str, Any], tmp_path: Path) -> None:
    study = write(tmp_path / "s.toml", losing)
    done("study", study, "--out", tmp_path / "out", "--executor", "ray", "--workers", "1")
    rounds = [int(line) for line in (tmp_path / "losses" / "rounds").read_text().split()]
    assert rounds == [*range(8), *range(5, 9)]  # who came after it made only those again that had not been saved
    assert content(tmp_path / "out") == content(finish(study, tmp_path / "here"))


@needs_ray
def test_a_study_on_a_cluster_that_loses_a_node(
    losing: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    from ray.cluster_utils import Cluster

    losing["variants"]["loses"]["strategy.kind"] = "tests.lab.study.strategies:LosesNode"
    study = write(tmp_path / "s.toml", losing | {"seeds": [1, 2, 3]})
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        (tmp_path / "losses" / "head").write_text(cluster.head_node.node_id)
        done("study", study, "--out", tmp_path / "out", "--executor", "ray", "--address", cluster.address)
        assert (tmp_path / "losses" / "lost").exists()
    finally:
        cluster.shutdown()
    assert content(tmp_path / "out") == content(finish(study, tmp_path / "here"))


@needs_ray
def test_an_interrupted_study_goes_on(tables: dict[str, Any], tmp_path: Path) -> None:
    tables["base"] |= {"stop": {"rounds": 20_000}, "checkpoint": {"rounds": 10}, "learning": "off"}
    words, out = (write(tmp_path / "s.toml", tables), "--out", tmp_path / "out"), tmp_path / "out"
    process = start(*words, "--executor", "ray", "--workers", "2")
    wait_for(lambda: {path.parts[-5] for path in checkpoints(out)} == {"fedavg", "fedprox"}, process)
    ends_with_130(process, signal.SIGINT)
    listed = call("study", *words, "--dry-run").output.splitlines()
    assert sorted(line.split()[0] for line in listed) == ["new", "new", "resume", "resume"]


def test_what_does_not_go_together(
    study_file: Path, tables: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ends with 2 and one line, and nothing is written."""
    out = tmp_path / "out"
    assert "did you mean 'processes'?" in refused(study_file, "--out", out, "--executor", "process")
    assert "only 'ray' has an address" in refused(study_file, "--out", out, "--address", "auto")
    ray = ("--out", out, "--executor", "ray")
    assert "its own number" in refused(study_file, *ray, "--address", "127.0.0.1:1", "--workers", "2")
    tables["base"]["training"]["device"] = "cuda"
    assert "workers use CPUs alone" in refused(write(tmp_path / "cuda.toml", tables), *ray)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    assert "pip install 'ray>=2.60' 'cloudpickle>=3'" in refused(study_file, *ray)
    assert not out.exists()
