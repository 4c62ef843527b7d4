"""The studies of papers: valid scenarios, in the published settings, and published figures of rows that there are."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import fedsim
from fedsim.analysis.__main__ import main as analysis
from fedsim.federation.codecs import CODECS
from fedsim.lab.compare.lines import read_lines
from fedsim.lab.compare.published import Published, beside_published
from fedsim.lab.study.conduct import Conductor
from fedsim.lab.study.folder import write_study
from fedsim.lab.study.plan import Study, read_study
from fedsim.scenario import Scenario
from fedsim.shipped import shipped_titles
from fedsim.strategies import STRATEGIES
from fedsim.strategies.parts.server import OPTIMISERS
from tests.calls import done

HERE = Path(__file__).resolve().parents[3] / "scenarios"
PAPERS = sorted(path.parent.name for path in HERE.glob("*/published.toml"))
RUNS = {  # of one seed: each scenario once, however many tables show it
    "ccs": {"small": 26, "full": 16},
    "cfl": {"small": 10, "full": 5},
    "field": {"small": 51},
    "flexcfl": {"small": 121, "full": 22},
    "lcfl": {"small": 31, "full": 16},
    "stragglers": {"small": 113, "full": 105},
}


def read(paper: str, size: str) -> Study:
    return read_study(HERE / paper / "study.toml", size=size, seeds=1)


def scenarios(study: Study, **where: Any) -> dict[str, Scenario]:
    at = [variant for variant in study.variants if where.items() <= dict(variant.point).items()]
    return {variant.name: study.runs_of[variant.folder][0].scenario for variant in at}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_run_is_valid_and_every_row_is_one_variant(paper: str, tmp_path: Path) -> None:
    published, shown = Published.read(HERE / paper / "published.toml"), set()
    for size, runs in RUNS[paper].items():
        study = read(paper, size)
        assert len(study.runs) == runs
        (tmp_path / size).mkdir()
        write_study(tmp_path / size, study)
        tables = beside_published(read_lines([tmp_path / size]).lines, published)
        shown |= {table.title for table in tables}
        assert {table.notes[0] for table in tables} == {"Its runs have not been made."}
    assert shown == {table.title for table in published.apart}


@pytest.mark.parametrize("size", ["small", "full"])
def test_ccs(size: str) -> None:
    for classes in (10, 5, 2, 1):
        panel = {"part": "figure", "data.partition.classes_per_device": classes}
        for name, scenario in scenarios(read("ccs", size), **panel).items():
            params: Any = scenario.strategy
            assert params.weights == {"fedavg": "uniform-by-data", "optimal": "optimal"}.get(name, "rfedavg")
            assert params.clustering == ("kmeans" if name == "kmeans" else "ccs")
            assert scenario.data.partition.model_dump()["classes_per_device"] == classes
            assert (scenario.stop.rounds, scenario.evaluation.every) == (300, 5)  # what the measures' titles say


@pytest.mark.parametrize(("size", "rounds", "schedule"), [("small", 60, [15, 30, 45]), ("full", 200, [50, 100, 150])])
def test_cfl(size: str, rounds: int, schedule: list[int]) -> None:
    for name, scenario in scenarios(read("cfl", size)).items():
        params: Any = scenario.strategy
        assert (scenario.stop.rounds, scenario.population.devices) == (rounds, 20)
        assert params.local_epochs == (1 if size == "small" else 3)
        assert name != "fedavg" or params.clients_per_round == 20
        assert name == "fedavg" or params.split == ("complete" if name == "cfl-complete" else "single")
        assert name == "fedavg" or params.split_rounds == (schedule if name == "cfl-scheduled" else None)


@pytest.mark.parametrize(
    ("part", "lr", "epochs", "rounds", "participation", "groups"),
    [
        ("rotated-mnist-full", 0.02, 10, 60, 1.0, 4),
        ("femnist-full", 0.03, 5, 100, 0.3, 10),
        ("rotated-cifar10", 0.02, 5, 200, 0.1, 2),
    ],
)
def test_lcfl_in_full(part: str, lr: float, epochs: int, rounds: int, participation: float, groups: int) -> None:
    for name, scenario in scenarios(read("lcfl", "full"), part=part).items():
        params, devices = scenario.strategy.model_dump(), scenario.population.devices
        assert (scenario.training.lr, scenario.training.batch_size, scenario.stop.rounds) == (lr, 20, rounds)
        assert (params["local_epochs"], params.get("groups", groups)) == (epochs, groups)
        assert scenario.evaluation.every == (5 if name in ("ifca", "fedavg", "local") else 1)  # figures need each round
        asked = params["participation"] * devices if params["kind"] == "lcfl" else params.get("clients_per_round")
        assert name == "local" or round(asked) == round(participation * devices)


def test_field() -> None:
    study = read("field", "small")
    for similarity in (0.0, 0.1, 1.0):
        for name, scenario in scenarios(study, part="scaffold", **{"data.partition.similarity": similarity}).items():
            params = scenario.strategy.model_dump()
            assert (scenario.population.devices, params["clients_per_round"]) == (100, 20)
            assert params["aggregation"]["kind"] == "mean"
            assert (60_000 // 100) // scenario.training.batch_size == (1 if name == "sgd" else 5)  # steps an epoch
            assert params["local_epochs"] == (1 if name == "sgd" else int(name.split("-")[1]))
    for concurrency in (20, 100, 400):
        one = scenarios(study, part=f"fedbuff-{concurrency}")
        asked: Any = one["fedavg"].strategy
        assert one["fedbuff"].strategy.model_dump()["concurrency"] == asked.asked_per_round == concurrency
    for edges, digits in (("each-with-all-digits", 10), ("each-with-five-digits", 5)):
        for scenario in scenarios(study, part="hierfavg", edges=edges).values():
            params, network = scenario.strategy.model_dump(), scenario.network.model_dump()
            at = [{device % 10 for device in range(cell, 50, network["cells"])} for cell in range(network["cells"])]
            assert {len(there) for there in at} == {digits}  # device i has digit i mod 10 alone
            assert (params["kappa1"] * params["kappa2"], params["clients_per_round"]) == (60, 50)


def test_flexcfl() -> None:
    study = read("flexcfl", "small")
    for name, scenario in scenarios(study, part="swap-all").items():
        params = scenario.strategy.model_dump()
        assert (params["clients_per_round"], params["local_epochs"], params.get("groups", 3)) == (20, 10, 3)
        assert scenario.drift.model_dump()["among"] == ("all" if name == "fedavg" else "selected")  # type: ignore[union-attr]
    for name, scenario in scenarios(study, part="swap-part").items():
        drift: Any = scenario.drift
        assert (drift.among, drift.quirk) == ("all" if name == "fedavg" else "selected", True)  # as the table was made
    for part, metric in (("swap-all", "sorted_counts"), ("bytes-mnist", "oracle")):
        migrating = [one.strategy.model_dump() for name, one in scenarios(study, part=part).items() if "ifca-mig" in name]
        assert {params["moment"]["shift"] for params in migrating} == {metric}
    assert {one.strategy.model_dump().get("groups", 5) for one in scenarios(study, part="no-shift-fashion").values()} == {5}


@pytest.mark.parametrize("size", ["small", "full"])
def test_stragglers(size: str) -> None:
    study = read("stragglers", size)
    (free,) = scenarios(study, part="no-deadline", data="mnist").values()
    assert free.strategy.model_dump()["deadline"] is None
    shared = scenarios(study, part="bias", data="cifar", **{"data.partition.classes_per_device": 1})
    assert shared["fedavg"] is scenarios(study, part="clusters", data="cifar")["fedavg"]
    fair = scenarios(study, part="fairness", sizes="uniform")
    assert len(fair) == (4 if size == "small" else 0)
    for scenario in fair.values():  # 40 selections a device
        params = scenario.strategy.model_dump()
        assert (scenario.stop.rounds, params["clients_per_round"], scenario.population.devices) == (1000, 40, 1000)
    for run in study.runs:
        params = run.scenario.strategy.model_dump()
        small = size == "small" and run.scenario.learning == "on"
        assert (params["clients_per_round"], params["local_epochs"]) == (10 if small else 40, 5)
        assert params.get("smallest_part", 10 if size == "small" else 100) == (10 if size == "small" else 100)


# The studies that come with the project: each can be run, and they cover what they say.


PEERS = {kind for kind in STRATEGIES if STRATEGIES.spec(kind).serverless}  # type: ignore[attr-defined]
ELSEWHERE = {"fedbn", "flora", "flower", "heterofl", "hetlora", "hierfavg", *PEERS}
STUDIES = sorted(path.name for path in (HERE / "studies").glob("*.toml") if not path.stem.endswith("base"))
PARTS = {"ccs": "figure", "cfl": "small", "flexcfl": "swap-part", "lcfl": "rotated-mnist", "stragglers": "fairness"}
SOME = {f"{paper}/study": f"--only=part={part}" for paper, part in PARTS.items()}
"""A part of each paper's study, as an option."""


@pytest.mark.parametrize("name", [name for name in STUDIES if "mnist" not in name])
def test_every_run_can_be_built(name: str, tmp_path: Path) -> None:
    conductor = Conductor(read_study(HERE / "studies" / name, seeds=1), tmp_path / "out")
    assert set(conductor.states) == {"new"}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "search.toml"])
def test_all_variants_meet_the_same_worlds(name: str) -> None:
    """But for who is not trained in them; and what shifts does so at simulated times, whatever a strategy's rounds are."""
    study = read_study(HERE / "studies" / name)
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
    assert {run.scenario.strategy.kind for run in read_study(HERE / "studies" / name).runs} == set(STRATEGIES) - left_out


def test_the_field_is_of_all_strategies_and_server_optimisers() -> None:
    """But for what needs another network, of links (hierfavg) or of layers (fedbn), apps of Flower, and what has no server."""
    strategies = [run.scenario.strategy for run in read_study(HERE / "studies" / "field.toml", seeds=1).runs]
    assert {strategy.kind for strategy in strategies} == set(STRATEGIES) - ELSEWHERE
    servers = [getattr(strategy, "server", None) for strategy in strategies]
    assert {server.kind for server in servers if server is not None} == set(OPTIMISERS.kinds)


def test_compression_is_of_all_codecs() -> None:
    study = read_study(HERE / "studies" / "compression.toml", seeds=1)
    for name in study.spec.variants:
        codecs = [run.scenario.messages.up.kind for run in study.runs if run.variant.name == name]
        assert sorted(codecs) == sorted(CODECS.kinds)


def test_the_bases_are_scenarios() -> None:
    for path in (HERE / "studies").glob("*base.toml"):
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
