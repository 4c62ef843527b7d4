"""Kinds with their defaults, and keys at their bounds: a part of what
``tests.benchmarks.bounds`` tries by hand.
"""

from collections import Counter

import pytest

from fedsim.strategies import STRATEGIES
from tests.benchmarks import bounds, idle_keys


def test_every_family_and_every_key_is_among_the_trials() -> None:
    titles = [trial.title for trial in bounds.trials()]
    firsts = {title.partition(" ")[0].partition(".")[0] for title in titles}
    assert firsts >= {
        "model",
        "strategy",
        "population",
        "network",
        "energy",
        "objective",
        "data",
        "messages",
        "training",
    }
    assert len(titles) > 5_000
    assert all(
        any(f"strategy {kind} in " in title for title in titles)
        for kind in STRATEGIES
        if kind != "flower"
    )


@pytest.mark.long
def test_keys_at_their_bounds_run_or_are_refused() -> None:
    """Every two hundredth trial; by hand all are tried."""
    tried = Counter[str]()
    for trial in [*bounds.trials()][50::200]:
        result = bounds.outcome(trial.sections)
        assert result in ("run", "refused"), f"{trial.title}: {result}"
        tried[result] += 1
    assert min(tried["run"], tried["refused"]) > 5


@pytest.mark.parametrize("path", ["strategy.local_epochs", "strategy.deadline", "messages.up"])
def test_a_key_that_acts_is_found_to_act(path: str) -> None:
    values = dict(idle_keys.trials("fedavg"))[path]
    assert idle_keys.judge("fedavg", path, values) == "acts"


def test_a_key_that_is_refused_is_found_to_be_refused() -> None:
    assert idle_keys.judge("local", "messages.up", ["float16"]) == "refused"
