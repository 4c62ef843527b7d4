"""The studies of papers: valid scenarios, in the published settings, and published figures of
rows that there are.
"""

import importlib.util
import re
from fnmatch import fnmatch
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
from fedsim.running.overrides import at
from fedsim.running.scenario import Scenario
from fedsim.running.shipped import shipped_titles
from fedsim.strategies import STRATEGIES
from fedsim.strategies.parts.server_optimizer import OPTIMIZERS
from tests.calls import done

HERE = Path(__file__).resolve().parents[3] / "scenarios"
PAPERS = sorted(path.parent.name for path in HERE.glob("*/published.toml"))
RUNS = {  # of one seed: each scenario once, however many tables show it
    "ccs": {"small": 26, "full": 16},
    "cfl": {"small": 10, "full": 5},
    "field": {"small": 51},
    "flexcfl": {"small": 128, "full": 22},
    "lcfl": {"small": 37, "full": 19},
    "stragglers": {"small": 130, "full": 122},
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


SECTIONS = {
    "FlexCFL": "flexcfl",
    "CFL": "cfl",
    "CCS": "ccs",
    "CATA-Fed": "stragglers",
    "LCFL": "lcfl",
    "Five": "field",
}


def test_every_part_that_the_page_of_papers_names_is_one_of_its_study() -> None:
    page = (HERE.parent / "docs" / "papers.md").read_text(encoding="utf-8")
    named = 0
    for title, folder in SECTIONS.items():
        text = re.search(rf"\n## {title}\b.*?\n(.*?)(?=\n## )", page, re.DOTALL)
        assert text
        parts = {
            place["part"] for size in RUNS[folder] for place in map(dict, points(folder, size))
        }
        for words in re.findall(r"parts? ((?:`[\w-]+`(?:, | and )?)+)", text[1]):
            names = re.findall(r"`([\w-]+)`", words)
            assert set(names) <= parts, f"{title}: {names}"
            named += len(names)
    assert named >= 30


def points(paper: str, size: str) -> list[tuple[tuple[str, Any], ...]]:
    return [variant.point for variant in read(paper, size).variants]


# FlexCFL's paper has one row for both ways to aggregate
ROW_OF = {"ifca": "ifca-first", "fesem": "fesem-first"}


def published_claims(paper: str) -> list[tuple[str, str, float | None, float | None, float]]:
    """Table and words of each claim, the paper's own figures of its two rows, and the least
    difference.
    """
    claims = []
    for table in Published.read(HERE / paper / "published.toml").apart:
        for claim in table.claims:
            measure = claim.measure or table.measures[0]
            for pair in claim.pairs:
                above, below = (table.figure(ROW_OF.get(row, row), measure) for row in pair)
                words = claim.says.format(above=pair[0], below=pair[1])
                claims.append((table.title, words, above, below, claim.by))
    return claims


@pytest.mark.parametrize("paper", PAPERS)
def test_no_claim_is_one_that_the_papers_own_figures_contradict(paper: str) -> None:
    claims = published_claims(paper)
    assert claims
    for table, words, above, below, by in claims:
        if above is not None and below is not None:
            assert above - below > by, f"{table}: {words}, and the paper has {above} and {below}"


def test_of_synthetic_nothing_is_claimed_of_rows_that_the_paper_has_otherwise_or_not_at_all() -> (
    None
):
    words = [words for table, words, *_ in published_claims("flexcfl") if "synthetic" in table]
    assert len(words) == 6
    assert not any(
        row in text for text in words for row in ("ifca", "flexcfl is better than rcc", "rac")
    )


Said = list[tuple[str, str, dict[str, Any], str, dict[str, Any]]]
FIGURE, CFL = {"part": "figure"}, {"population.devices": 20}
SWAPPED, SHARED = {"part": "swap-all"}, {"part": "swap-part"}
# 40 selections a device
FAIR = {"stop.rounds": 1000, "strategy.clients_per_round": 40, "population.devices": 1000}
SETTINGS: Said = [
    *(
        ("ccs", size, FIGURE, "*", {"stop.rounds": 300, "evaluation.every": 5})
        for size in ("small", "full")
    ),
    (
        "ccs",
        "full",
        FIGURE,
        "fedavg",
        {"strategy.weights": "uniform-by-data", "strategy.clustering": "ccs"},
    ),
    (
        "ccs",
        "full",
        FIGURE,
        "optimal",
        {"strategy.weights": "optimal", "strategy.clustering": "ccs"},
    ),
    (
        "ccs",
        "full",
        FIGURE,
        "kmeans",
        {"strategy.weights": "rfedavg", "strategy.clustering": "kmeans"},
    ),
    ("cfl", "small", {}, "*", CFL | {"stop.rounds": 60, "strategy.local_epochs": 1}),
    ("cfl", "full", {}, "*", CFL | {"stop.rounds": 200, "strategy.local_epochs": 3}),
    ("cfl", "full", {}, "fedavg", {"strategy.clients_per_round": 20}),
    (
        "cfl",
        "full",
        {},
        "cfl-complete",
        {"strategy.split": "complete", "strategy.split_rounds": None},
    ),
    (
        "cfl",
        "full",
        {},
        "cfl-scheduled",
        {"strategy.split": "single", "strategy.split_rounds": [50, 100, 150]},
    ),
    (
        "flexcfl",
        "small",
        SWAPPED,
        "*",
        {"strategy.clients_per_round": 20, "strategy.local_epochs": 10},
    ),
    ("flexcfl", "small", SWAPPED, "fedavg", {"drift.among": "all"}),
    ("flexcfl", "small", SWAPPED, "flexcfl", {"drift.among": "selected", "strategy.groups": 3}),
    ("flexcfl", "small", SHARED, "*", {"drift.quirk": True}),  # as the table was made
    ("flexcfl", "small", SWAPPED, "*ifca-mig*", {"strategy.moment.shift": "sorted_counts"}),
    (
        "flexcfl",
        "small",
        {"part": "bytes-mnist"},
        "*ifca-mig*",
        {"strategy.moment.shift": "oracle"},
    ),
    ("flexcfl", "small", {"part": "no-shift-fashion"}, "flexcfl", {"strategy.groups": 5}),
    (
        "stragglers",
        "small",
        {"part": "no-deadline", "data": "mnist"},
        "*",
        {"strategy.deadline": None},
    ),
    ("stragglers", "small", {"part": "fairness", "sizes": "uniform"}, "*", FAIR),
    (
        "stragglers",
        "full",
        {"part": "clusters"},
        "*",
        {"strategy.clients_per_round": 40, "strategy.local_epochs": 5},
    ),
]
TRAINING, ROUNDS, EPOCHS = {"training.batch_size": 20}, "stop.rounds", "strategy.local_epochs"
for part, lr, rounds, epochs, share, groups in (
    ("rotated-mnist-full", 0.02, 60, 10, 1.0, 4),
    ("femnist-full", 0.03, 100, 5, 0.3, 10),
    ("rotated-cifar10", 0.02, 200, 5, 0.1, 2),
):
    SETTINGS += [
        (
            "lcfl",
            "full",
            {"part": part},
            "*",
            TRAINING | {"training.lr": lr, ROUNDS: rounds, EPOCHS: epochs},
        )
    ]
    SETTINGS += [
        (
            "lcfl",
            "full",
            {"part": part},
            "lcfl",
            {"strategy.participation": share, "strategy.groups": groups},
        )
    ]
"""Of some runs of a paper's study: its size, the point, the variants, and what is published of
them.
"""


@pytest.mark.parametrize(("paper", "size", "where", "names", "published"), SETTINGS)
def test_settings_are_the_published_ones(
    paper: str, size: str, where: dict[str, Any], names: str, published: dict[str, Any]
) -> None:
    found = [
        scenario
        for name, scenario in scenarios(read(paper, size), **where).items()
        if fnmatch(name, names)
    ]
    assert found
    for tables in (scenario.model_dump() for scenario in found):
        assert {
            key: at(tables, key.split(".")[:-1])[key.split(".")[-1]] for key in published
        } == published


def test_field() -> None:
    study = read("field", "small")
    for similarity in (0.0, 0.1, 1.0):
        for name, scenario in scenarios(
            study, part="scaffold", **{"data.partition.similarity": similarity}
        ).items():
            params = scenario.strategy.model_dump()
            assert (scenario.population.devices, params["clients_per_round"]) == (100, 20)
            assert params["aggregation"]["kind"] == "mean"
            # steps an epoch
            assert (60_000 // 100) // scenario.training.batch_size == (1 if name == "sgd" else 5)
            assert params["local_epochs"] == (1 if name == "sgd" else int(name.split("-")[1]))
    for concurrency in (20, 100, 400):
        one = scenarios(study, part=f"fedbuff-{concurrency}")
        asked: Any = one["fedavg"].strategy
        assert (
            one["fedbuff"].strategy.model_dump()["concurrency"]
            == asked.asked_per_round
            == concurrency
        )
    for edges, digits in (("each-with-all-digits", 10), ("each-with-five-digits", 5)):
        for scenario in scenarios(study, part="hierfavg", edges=edges).values():
            params, network = scenario.strategy.model_dump(), scenario.network.model_dump()
            at = [
                {device % 10 for device in range(cell, 50, network["cells"])}
                for cell in range(network["cells"])
            ]
            assert {len(there) for there in at} == {digits}  # device i has digit i mod 10 alone
            assert (params["kappa1"] * params["kappa2"], params["clients_per_round"]) == (60, 50)


PEERS = {kind for kind in STRATEGIES if STRATEGIES.spec(kind).traits.serverless}  # type: ignore[attr-defined]
ELSEWHERE = {"fedbn", "flora", "flower", "heterofl", "hetlora", "hierfavg", *PEERS}
STUDIES = sorted(
    path.name for path in (HERE / "studies").glob("*.toml") if not path.stem.endswith("base")
)
PARTS = {
    "ccs": "figure",
    "cfl": "small",
    "flexcfl": "swap-part",
    "lcfl": "rotated-mnist",
    "stragglers": "fairness",
}
SOME = {f"{paper}/study": f"--only=part={part}" for paper, part in PARTS.items()}
"""A part of each paper's study, as an option."""


@pytest.mark.parametrize("name", [name for name in STUDIES if "mnist" not in name])
def test_every_run_can_be_built(name: str, tmp_path: Path) -> None:
    conductor = Conductor(read_study(HERE / "studies" / name, seeds=1), tmp_path / "out")
    assert set(conductor.states) == {"new"}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "search.toml"])
def test_all_variants_meet_the_same_worlds(name: str) -> None:
    """But for who is not trained in them; and what shifts does so at simulated times, whatever a
    strategy's rounds are.
    """
    study = read_study(HERE / "studies" / name)
    assert study.spec.baseline == "fedavg"
    assert len(study.spec.seeds) >= 3
    for point in {variant.point for variant in study.variants}:
        runs = [
            run
            for run in study.runs
            if run.variant.point == point and run.variant.name != "centralised"
        ]
        for part in ("data", "model", "training", "population", "network", "drift"):
            assert len({repr(getattr(run.scenario, part)) for run in runs}) == 1
        assert all(
            run.scenario.drift is None or run.scenario.drift.at.every is not None for run in runs
        )  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["communication.toml", "communication_mnist.toml"])
def test_communication_is_of_all_strategies(name: str) -> None:
    """But for what needs edge servers (edges.toml) or layers and models of its own, has no
    server, or is an app of Flower.
    """
    left_out = {"fedper", "fedrep", "fpfc", "moon", "pfedme", *ELSEWHERE}
    assert {run.scenario.strategy.kind for run in read_study(HERE / "studies" / name).runs} == set(
        STRATEGIES
    ) - left_out


def test_the_field_is_of_all_strategies_and_server_optimisers() -> None:
    """But for what needs another network, of links (hierfavg) or of layers (fedbn), apps of
    Flower, and what has no server.
    """
    strategies = [
        run.scenario.strategy for run in read_study(HERE / "studies" / "field.toml", seeds=1).runs
    ]
    assert {strategy.kind for strategy in strategies} == set(STRATEGIES) - ELSEWHERE
    servers = [getattr(strategy, "server", None) for strategy in strategies]
    assert {server.kind for server in servers if server is not None} == set(OPTIMIZERS.kinds)


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
    name: str,
    data_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Two rounds of each run; a warning is an error here, and anything that a worker prints."""
    monkeypatch.setenv("FEDSIM_DATA", str(data_folder))
    out = tmp_path / "out"
    words = ["study", name, "--out", out, "--seeds", "1", *([SOME[name]] if name in SOME else [])]
    # which looks for what reaches its target; whose part says its own rounds
    if name not in ("search", "stragglers/study"):
        words += ["--set", "stop.rounds=2"]
    called = [
        words,
        [*words, "--quiet"],
        ["report", out],
        ["compare", out],
        ["compare", out, "--all"],
    ]
    called += [["compare", out, form] for form in ("--csv", "--markdown")]
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
