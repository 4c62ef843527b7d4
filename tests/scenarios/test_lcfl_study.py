"""The LCFL study: valid scenarios, the published settings, and a report that says what the runs say."""

from pathlib import Path

import pytest

from fedsim.strategies.lcfl.params import LCFLParams
from scenarios.lcfl.study import STUDY
from scenarios.published import report
from scenarios.published.study import folders
from tests.scenarios.published import require_consistent, scenarios, write_run


@pytest.mark.parametrize("size", list(STUDY.sizes))
def test_every_row_is_a_valid_scenario(size: str) -> None:
    require_consistent(STUDY, size)
    for table in STUDY.sizes[size].values():
        for label, scenario in scenarios(table).items():
            every_fifth = label in ("ifca", "fedavg", "local")
            assert scenario.evaluation.every == (5 if every_fifth else 1)  # iterations to an accuracy need each round
            assert isinstance(scenario.strategy, LCFLParams) != every_fifth
            assert scenario.training.batch_size == 20


@pytest.mark.parametrize(
    ("name", "lr", "epochs", "rounds", "participation", "groups"),
    [("table-2", 0.02, 10, 60, 1.0, 4), ("figure-4", 0.03, 5, 100, 0.3, 10), ("figure-5", 0.03, 5, 200, 0.1, 2)],
)
def test_the_full_size_is_the_published_one(
    name: str, lr: float, epochs: int, rounds: int, participation: float, groups: int
) -> None:
    for label, scenario in scenarios(STUDY.sizes["full"][name]).items():
        assert (scenario.training.lr, scenario.stop.rounds) == (lr, rounds)
        assert scenario.strategy.model_dump()["local_epochs"] == epochs
        if label in ("lcfl", "ifca"):
            assert scenario.strategy.model_dump()["groups"] == groups
        if isinstance(scenario.strategy, LCFLParams):
            assert scenario.strategy.participation == participation
        elif label != "local":
            assert scenario.strategy.model_dump()["clients_per_round"] == round(participation * scenario.population.devices)


def test_a_report_reads_the_rounds_that_the_paper_names(tmp_path: Path) -> None:
    table = STUDY.sizes["full"]["table-2"]
    runs = folders(table, tmp_path, (1,))
    levels = {"lcfl": 0.98, "ifca": 0.95, "fedavg": 0.9, "local": 0.91}
    for label, (folder,) in runs.items():
        tested = [levels[label] - 0.001 * (60 - number) if number % 5 == 0 else None for number in range(1, 61)]
        write_run(folder, {"accuracy": tested})
    text = report.section(table, runs)
    assert "| LCFL | accuracy % at 60 | 97.90 | 98.00 | +0.10 | 1 | yes |" in text
    assert "| LCFL | accuracy % at 5 | 89.66 | 92.50 | +2.84 | 1 | **no** |" in text
    claims = report.claims([(table, runs)])
    assert "| Table II | LCFL ends above IFCA | 3 |" in claims
    assert "| Table II | FedAvg ends above Local | -1 |" in claims


def test_iterations_to_an_accuracy_are_counted_from_one_and_a_run_that_never_gets_there_counts_whole(tmp_path: Path) -> None:
    table = STUDY.sizes["small"]["figure-3"]
    runs = folders(table, tmp_path, (1,))
    reached = {"lcfl": 11, "diff-norm": 20, "grad-cos": 1000}
    for label, (folder,) in runs.items():
        tested = [0.96 if number >= reached[label] else 0.9 for number in range(1, 61)]
        write_run(folder, {"accuracy": tested, "purity": [None] * 5 + [0.5] * 54 + [0.75]})
    text = report.section(table, runs)
    assert "| LCFL | iterations to 95 % | 11.0 | 11.0 | +0.0 | |  |" in text  # not judged
    assert "| DiffNorm | iterations to 95 % | 14.0 | 20.0 | +6.0 | |  |" in text
    assert "| GradCos | iterations to 95 % | 27.0 | 60.0 | +33.0 | |  |" in text
    assert "| LCFL | purity of the clusters at the end |  | 0.750 | | |  |" in text
