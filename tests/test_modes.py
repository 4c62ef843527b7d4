"""A key that counts in a mode alone is refused elsewhere, by name, unless it is its default."""

from typing import Any

import pytest

import fedsim
from fedsim.language.spec import Spec, _modes_of
from fedsim.strategies import STRATEGIES
from fedsim.strategies.parts.aggregation.robust import Bulyan, Krum, cut_off
from tests.strategies.clustered import of_kind, ran
from tests.strategies.test_hierfavg import with_cells

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"kind": "fedasync", "hinge_slope": 3.0}, "'hinge_slope' is 3.0, which counts only where 'staleness' is 'hinge'; here"),
    ({"kind": "fedasync", "staleness": "hinge", "exponent": 1.0}, "'exponent' is 1.0, .* here 'staleness' is 'hinge'"),
    ({"kind": "fedprox", "partial_work": False}, "'partial_work' is false, .* 'deadline' or 'relative_deadline' is given"),
    ({"kind": "fednova", "partial_work": False}, "here 'deadline' is not given"),
    ({"kind": "fedavg", "deadline_base": "all"}, "'relative_deadline' is given; here 'relative_deadline' is not given"),
    ({"kind": "ifca", "averaging": "gradients", "local_epochs": 3}, "'averaging' is 'models'"),
    ({"kind": "ifca", "averaging": "gradients", "aggregation": "weighted"}, "'aggregation' is 'weighted', which counts only"),
    ({"kind": "cfl", "split_rounds": [1], "eps1": 0.3}, r"'split_rounds' is not given; here 'split_rounds' is \[1\]"),
    ({"kind": "tifl", "test_clients": 3}, "'mode' is 'credits'"),
    ({"kind": "lcfl", "clients_per_round": 5}, "'clients_per_round', which it does not take; allowed is 'participation'"),
    ({"kind": "fl-hc", "clients_per_round": 5}, "'clients_per_round', which it does not take; allowed is 'participation'"),
    ({"kind": "fedavg", "clients_per_round": 9, "aggregation": "trimmed-mean"}, "share is 0.1, which is less than one of 9"),
    *(
        ({"kind": "refl", "aggregation": how}, f"'aggregation' is '{how}', in which weights do not count")
        for how in ("first", "median", "trimmed-mean", "krum", "multi-krum", "bulyan", "private")
    ),
]


@pytest.mark.parametrize(("strategy", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_key_that_changes_nothing_is_refused(strategy: dict[str, Any], message: str) -> None:
    with pytest.raises(fedsim.ScenarioError, match=message):
        fedsim.Scenario(strategy=strategy)


def test_defaults_that_are_written_out_are_taken() -> None:
    specs: list[type[Spec]] = [STRATEGIES.spec(kind) for kind in STRATEGIES]
    assert sum(len(_modes_of(spec)) for spec in specs) > 50
    for kind, spec in zip(STRATEGIES, specs, strict=True):
        written = {name: spec.model_fields[name].get_default() for name, _ in _modes_of(spec)}
        if kind not in ("flower", "cata-fed", "hierfavg"):  # these need an app, a deadline or edge servers
            fedsim.Scenario(strategy={"kind": kind} | {name: value for name, value in written.items() if value is not None})


def test_what_few_updates_bear_is_said(tmp_path: Any) -> None:
    assert [cut_off(0.1, count) for count in (1, 2, 3, 9, 10, 19, 20)] == [0, 0, 1, 1, 1, 1, 2]
    assert [cut_off(0.0, count) for count in (3, 30)] == [0, 0]
    assert [Krum(malicious=2).told(count) for count in (7, 6, 3)] == [{}, {"bears": 1}, {"bears": 0}]
    assert Bulyan(malicious=2).told(10) == {"bears": 1}
    how = {"kind": "krum", "malicious": 1}
    run = ran(
        with_cells(3, {"kind": "hierfavg", "clients_per_round": 15, "kappa2": 1, "aggregation": how}, 1), tmp_path / "run"
    )
    records = [event["data"] for event in of_kind(run, "aggregate")]
    assert all(record.get("bears", 1) == min(1, max(0, (len(record["tasks"]) - 3) // 2)) for record in records)
    assert any("bears" in record for record in records)
