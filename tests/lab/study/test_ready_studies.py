"""The studies that come with the project: each can be run, and they cover what they say."""

import importlib.util
from pathlib import Path

import pytest
from click.testing import CliRunner

import fedsim
from fedsim.analysis.__main__ import main as analysis
from fedsim.federation.codecs import CODECS
from fedsim.lab.study.conduct import Conductor
from fedsim.lab.study.plan import read_study
from fedsim.shipped import shipped_titles
from fedsim.strategies import STRATEGIES
from fedsim.strategies.parts.server import OPTIMISERS
from tests.calls import done

HERE = Path(__file__).resolve().parents[3] / "scenarios" / "studies"
PEERS = {kind for kind in STRATEGIES if STRATEGIES.spec(kind).serverless}  # type: ignore[attr-defined]
ELSEWHERE = {"fedbn", "flora", "flower", "heterofl", "hetlora", "hierfavg", *PEERS}
STUDIES = sorted(path.name for path in HERE.glob("*.toml") if not path.stem.endswith("base"))
PARTS = {"ccs": "figure", "cfl": "small", "flexcfl": "swap-part", "lcfl": "rotated-mnist", "stragglers": "fairness"}
SOME = {f"{paper}/study": f"--only=part={part}" for paper, part in PARTS.items()}
"""A part of each paper's study, as an option."""


@pytest.mark.parametrize("name", [name for name in STUDIES if "mnist" not in name])
def test_every_run_can_be_built(name: str, tmp_path: Path) -> None:
    conductor = Conductor(read_study(HERE / name, seeds=1), tmp_path / "out")
    assert set(conductor.states) == {"new"}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "search.toml"])
def test_all_variants_meet_the_same_worlds(name: str) -> None:
    """But for who is not trained in them; and what shifts does so at simulated times, whatever a strategy's rounds are."""
    study = read_study(HERE / name)
    assert study.spec.baseline == "fedavg"
    assert len(study.spec.seeds) >= 3
    for point in {variant.point for variant in study.variants}:
        runs = [run for run in study.runs if run.variant.point == point and run.variant.name != "centralised"]
        for part in ("data", "model", "training", "population", "network", "drift"):
            assert len({repr(getattr(run.scenario, part)) for run in runs}) == 1
        assert all(run.scenario.drift is None or run.scenario.drift.at.every is not None for run in runs)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["communication.toml", "communication_mnist.toml"])
def test_communication_is_of_all_strategies(name: str) -> None:
    """But for what needs edge servers (edges.toml) or layers and models of its own, has no server, or is an app of Flower."""
    left_out = {"fedper", "fedrep", "moon", "pfedme", "fpfc", *ELSEWHERE}
    assert {run.scenario.strategy.kind for run in read_study(HERE / name).runs} == set(STRATEGIES) - left_out


def test_the_field_is_of_all_strategies_and_server_optimisers() -> None:
    """But for what needs another network, of links (hierfavg) or of layers (fedbn), apps of Flower, and what has no server."""
    strategies = [run.scenario.strategy for run in read_study(HERE / "field.toml", seeds=1).runs]
    assert {strategy.kind for strategy in strategies} == set(STRATEGIES) - ELSEWHERE
    servers = [getattr(strategy, "server", None) for strategy in strategies]
    assert {server.kind for server in servers if server is not None} == set(OPTIMISERS.kinds)


def test_compression_is_of_all_codecs() -> None:
    study = read_study(HERE / "compression.toml", seeds=1)
    for name in study.spec.variants:
        codecs = [run.scenario.messages.up.kind for run in study.runs if run.variant.name == name]
        assert sorted(codecs) == sorted(CODECS.kinds)


def test_the_bases_are_scenarios() -> None:
    for path in HERE.glob("*base.toml"):
        assert isinstance(fedsim.load(path), fedsim.Scenario)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, _ in shipped_titles(studies=True)])
def test_every_verb_takes_every_study(
    name: str, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two rounds of each run; a warning is an error here, and anything that a worker prints."""
    monkeypatch.setenv("FEDSIM_DATA", str(data_folder))
    out = tmp_path / "out"
    words = ["study", name, "--out", out, "--seeds", "1", *([SOME[name]] if name in SOME else [])]
    if name not in ("search", "stragglers/study"):  # which looks for what reaches its target; whose part says its own rounds
        words += ["--set", "stop.rounds=2"]
    called = [words, [*words, "--quiet"], ["report", out], ["compare", out], ["compare", out, "--all"]]
    called += [["compare", out, "--out", tmp_path / f"compared{ending}"] for ending in (".csv", ".md")]
    if importlib.util.find_spec("tensorboard"):
        called.append(["tensorboard", out, "--out", tmp_path / "board"])
    for said in called:
        done(*said)
    runs = [path.parent for path in sorted(out.glob("runs/*/*/summary.json"))]
    for run in runs:
        for verb in ("audit", "trace"):
            done(verb, run)
    done(*words, "--dry-run")  # what now lies beside the runs is no run
    drawn = [*map(str, runs[:4]), "--out", str(tmp_path / "figures")]
    assert CliRunner().invoke(analysis, drawn, catch_exceptions=False).exit_code == 0
    assert capfd.readouterr().err == ""
