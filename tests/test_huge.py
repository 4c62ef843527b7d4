"""Without learning no memory depends on the model: a sample of ``tests.benchmarks.huge``."""

import pytest

from tests.benchmarks.huge import Case, all_cases, played

SAMPLE = [
    *map(Case, ("fedavg", "scaffold", "diloco", "feddyn", "hierfavg", "gossip")),
    Case("scaffold", "aggregation", "median"),
    Case("fedavg", "codec", {"kind": "top-k", "share": 0.2}),
    Case("fedavg", "attack", "gaussian"),
]


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_a_model_of_810_gb_is_checked_and_played(case: Case) -> None:
    assert played(case) == "2 rounds"


def test_the_sweep_has_every_strategy() -> None:
    names = {case.name for case in all_cases()}
    assert {"scaffold", "diloco", "lcfl/members", "pfedme"} <= names
