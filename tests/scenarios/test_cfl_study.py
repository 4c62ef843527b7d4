"""The CFL study: valid scenarios, and a report that says what the runs say."""

from pathlib import Path

import pytest

from fedsim.strategies.cfl.params import CFLParams
from scenarios.cfl.study import STUDY
from scenarios.published import report
from scenarios.published.measures import accuracy_before, events_of, rounds_before
from scenarios.published.study import folders
from tests.scenarios.published import require_consistent, scenarios, write_run


@pytest.mark.parametrize("size", list(STUDY.sizes))
def test_every_row_is_a_valid_scenario(size: str) -> None:
    require_consistent(STUDY, size)
    for table in STUDY.sizes[size].values():
        every = scenarios(table)
        rounds = {scenario.stop.rounds for scenario in every.values()}
        assert rounds == {25 if size == "small" else 200}  # "at the end" is that round
        for label, scenario in every.items():
            assert scenario.population.devices == 20
            assert scenario.strategy.model_dump()["local_epochs"] == (1 if size == "small" else 3)
            if label == "fedavg":
                assert scenario.strategy.model_dump()["clients_per_round"] == 20
            else:
                assert isinstance(scenario.strategy, CFLParams)
                assert scenario.strategy.split == ("complete" if label == "cfl-complete" else "single")
                assert (scenario.strategy.split_rounds is not None) == (label == "cfl-scheduled")


def test_the_report_says_when_splits_were_and_how_far_accuracy_had_come(tmp_path: Path) -> None:
    tables = [STUDY.sizes["full"][f"cifar10-{part}"] for part in ("accuracy", "splits")]
    accuracy, splits = ((table, folders(table, tmp_path, (1,))) for table in tables)
    at = {"cfl": (48, 100, 150), "cfl-scheduled": (50, 100, 150), "cfl-complete": (60, 90, 90, 120), "fedavg": ()}
    for label, (folder,) in accuracy[1].items():
        found = at[label]
        tested = [0.22 + 0.12 * sum(split <= number for split in found) for number in range(200)]
        purity = [None if label == "fedavg" else 0.25 * (1 + sum(split <= number for split in found)) for number in range(200)]
        write_run(
            folder,
            {"accuracy": tested, "purity": purity},
            [(kind, number) for number in found for kind in ("cluster-split", "assign")],
        )
    text = report.section(*accuracy)
    assert "| CFL | accuracy % before the first split | 20.0 | 22.0 | +2.0 | 5 | yes |" in text
    assert "| CFL | accuracy % at the end | 60.0 | 58.0 | -2.0 | 5 | yes |" in text
    assert "| FedAvg | accuracy % before the first split |  | 22.0 | | |  |" in text
    text = report.section(*splits)
    assert "| CFL | splits | 3.0 | 3.0 | +0.0 | 0 | yes |" in text
    assert "| CFL | rounds before split 1 | 50.0 | 48.0 | -2.0 | |  |" in text
    assert "| CFL, complete linkage | splits |  | 4.0 | | |  |" in text
    assert "| CFL | purity at the end | 1.000 | 1.000 | +0.000 | 0 | yes |" in text
    claims = report.claims([accuracy, splits])
    assert "| CFL more than doubles FedAvg's accuracy | 0.636 |" in claims  # 0.58 / 0.22 - 2


def test_a_split_that_there_was_not_counts_with_all_rounds(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"accuracy": [0.1, None, 0.3, 0.4]}, [("cluster-split", 2)])
    folder = tmp_path / "run"
    assert events_of("cluster-split")(folder) == 1
    assert rounds_before("cluster-split", 1)(folder) == 2
    assert rounds_before("cluster-split", 2)(folder) == 4
    assert accuracy_before("cluster-split")(folder) == pytest.approx(10.0)
    assert accuracy_before("another")(folder) == pytest.approx(40.0)


def test_an_accuracy_before_the_first_test_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"accuracy": [None, 0.3]}, [("cluster-split", 1)])
    with pytest.raises(ValueError, match=r"evaluation\.every"):
        accuracy_before("cluster-split")(tmp_path / "run")
