"""The CCS study: valid scenarios, the paper's four schemes, and a report that says what the runs say."""

from pathlib import Path

import pytest

from fedsim.strategies.rfedavg.params import RFedAvgParams
from scenarios.ccs.study import STUDY
from scenarios.published import report
from scenarios.published.study import folders
from tests.scenarios.published import require_consistent, scenarios, write_run


@pytest.mark.parametrize("size", list(STUDY.sizes))
def test_every_row_is_a_valid_scenario(size: str) -> None:
    require_consistent(STUDY, size)
    for classes in (10, 5, 2, 1):
        for label, scenario in scenarios(STUDY.sizes[size][f"classes-{classes}"]).items():
            params = scenario.strategy
            assert isinstance(params, RFedAvgParams)
            assert params.weights == {"fedavg": "uniform-by-data", "optimal": "optimal"}.get(label, "rfedavg")
            assert params.clustering == ("kmeans" if label == "kmeans" else "ccs")
            assert scenario.data.partition.model_dump()["classes_per_device"] == classes
            assert (scenario.stop.rounds, scenario.evaluation.every) == (300, 5)  # what the measures' names say


def test_leads_are_over_rfedavg_and_of_the_last_tests_alone(tmp_path: Path) -> None:
    table = STUDY.sizes["full"]["classes-1"]
    runs = folders(table, tmp_path, (1,))
    ends = {"rfedavg": 0.9, "optimal": 0.91, "kmeans": 0.8, "fedavg": 0.805}
    for label, (folder,) in runs.items():
        tested = [0.5] * 50 + [ends[label]] * 10
        write_run(folder, {"accuracy": tested, "purity": [1.0] * 60})
    text = report.section(table, runs)
    assert "| RFedAvg | accuracy %, rounds 255 to 300 |  | 90.00 | | |  |" in text
    assert "| K-means | points over RFedAvg, rounds 255 to 300 | -8.00 | -10.00 | -2.00 | 1.5 | **no** |" in text
    assert "| FedAvg | points over RFedAvg, rounds 255 to 300 | -10.00 | -9.50 | +0.50 | 1.5 | yes |" in text
    assert "| Optimal | accuracy %, rounds 5 to 100 |  | 50.00 | | |  |" in text
    assert "1 of 2 figures are within the tolerance." in text
    claims = report.claims([(table, runs)])
    assert "| RFedAvg ends above FedAvg | 9.5 | none: one seed | not judged: one seed |" in claims
    assert "| K-means ends above FedAvg | -0.5 |" in claims


def test_another_network_than_the_published_one_is_not_judged() -> None:
    assert all(measure.tolerance is None for table in STUDY.sizes["small"].values() for measure in table.measures)
