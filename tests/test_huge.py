"""Without learning no memory depends on the model: a sample of ``tests.benchmarks.huge``."""

import pytest

import fedsim
from fedsim.clock.simulation import Simulation
from fedsim.running.assembly import Run
from fedsim.toolbox.strategies.sizes import CutModels
from tests.benchmarks.huge import Case, all_cases, played, sections

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


@pytest.mark.parametrize("name", ["heterofl", "hetlora", "flora"])
def test_parts_of_a_model_are_counted_and_not_listed(name: str) -> None:
    """A model of 450,000 units a layer has as many rows, each of which would be a range."""
    run = Run(fedsim.Scenario(**sections(Case(name))), Simulation())
    strategy = run.strategy
    assert isinstance(strategy, CutModels)
    places = strategy.params.places(strategy.setting)
    assert [len(ranges) for ranges in places.values()] == [1] * len(places)
    numbers = [end - begin for ((begin, end),) in places.values()]
    assert numbers == sorted(numbers)
    assert len({*numbers}) == len(numbers)
