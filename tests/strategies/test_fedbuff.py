"""FedBuff leaves out what is staler than its limit."""

from typing import Any

from tests.strategies.clustered import of_kind, ran, world


def test_an_update_that_is_too_stale_is_not_used(tmp_path: Any) -> None:
    population = {"speed": {"kind": "lognormal", "median": "200 samples/s", "spread": 3.0}}
    found = []
    for limit in ({}, {"most_staleness": 1}):
        strategy = {"kind": "fedbuff", "concurrency": 8, "buffer": 2} | limit
        run = ran(
            world({"source": "digits", "partition": "iid"}, 12, strategy, 12, population=population), tmp_path / str(limit)
        )
        records = [event["data"] for event in of_kind(run, "aggregate")]
        found.append([max(tau for tau, own in zip(each["staleness"], each["weights"], strict=True) if own) for each in records])
        assert {sum(own > 0 for own in each["weights"]) for each in records} == {2}
    assert max(found[0]) > 1
    assert max(found[1]) == 1
