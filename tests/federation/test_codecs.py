"""Codecs: what arrives, what is kept, and the bytes of what is written."""

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsim
from fedsim.federation.codecs.top_k import TopK, decode, encode
from fedsim.learning.models import Logistic
from fedsim.learning.refs import Ref
from fedsim.records.reading import RunFolder
from tests.learning.small import federation, learning
from tests.learning.test_functions import noisy_step
from tests.strategies.clustered import ran


@given(st.integers(1, 300), st.integers(0, 10**6), st.floats(0.001, 1.0))
def test_top_k_keeps_the_largest_and_writes_as_many_bytes_as_it_says(size: int, seed: int, share: float) -> None:
    array = np.round(np.random.default_rng(seed).normal(size=size), 1).astype(np.float32)  # with equals
    codec = TopK(share=share)
    k = codec.k(size)
    written = encode(array, k)
    found = decode(written, size, k)
    assert len(written) == codec.bytes(size)
    sent = np.flatnonzero(found)
    assert len(sent) <= k
    assert (found[sent] == array[sent]).all()
    left = np.abs(array[found == 0])
    assert not len(sent) or not len(left) or np.sort(np.abs(array))[-k] >= left[left > 0].max(initial=0)


def test_what_is_sent_and_what_is_kept_is_what_was_meant_at_every_round() -> None:
    core, _ = learning(federation([30]), Logistic(), lr=0.3)
    codec, size = TopK(share=0.2), int(core.parameters)
    base, kept = core.initial(), None
    for number in range(5):
        update = core.apply(noisy_step, [base], stream=("test", number))
        coded = codec.code(core, size, update, base, kept)
        values = [asyncio.run(core.value(ref)) for ref in (update, base, coded.received, _there(coded.kept))]
        before = np.zeros(size, np.float32) if kept is None else asyncio.run(core.value(kept))
        meant = (values[0].astype(np.float64) - values[1]).astype(np.float32).astype(np.float64) + before
        meant = meant.astype(np.float32)
        sent = meant * (values[3] == 0)
        assert np.count_nonzero(sent) <= codec.k(size)
        assert (sent + values[3] == meant).all()
        assert (values[2] == (values[1].astype(np.float64) + sent).astype(np.float32)).all()
        base, kept = coded.received, coded.kept


def _there(ref: Ref | None) -> Ref:
    assert ref is not None
    return ref


def sections(up: Any, **others: Any) -> dict[str, Any]:
    return {
        "seed": 4,
        "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 1.0}},
        "population": {"devices": 10, "speed": {"kind": "lognormal", "median": "60 samples/s", "spread": 2.0}},
        "network": {"kind": "star", "device": {"up": "100 kbit/s", "down": "1 Mbit/s"}},
        "strategy": {"kind": "fedavg", "clients_per_round": 4, "local_epochs": 2},
        "messages": {"up": up},
        "stop": {"rounds": 5},
    } | others


def test_with_k_of_d_it_is_the_plain_run_bit_for_bit() -> None:
    plain, whole = (
        fedsim.run(fedsim.Scenario(**sections(up)), executor="inline").summary for up in ({}, {"kind": "top-k", "share": 1.0})
    )
    for name in ("events_sha256", "models_sha256", "bytes"):
        assert plain[name] == whole[name]


def test_the_link_carries_what_is_encoded_and_the_rounds_are_shorter(tmp_path: Any) -> None:
    plain: RunFolder = ran(sections({}), tmp_path / "plain")
    sparse: RunFolder = ran(sections({"kind": "top-k", "share": 0.05}), tmp_path / "sparse")
    assert {row["bytes"] for row in sparse.transfers if row["direction"] == "up"} == {TopK(share=0.05).bytes(650)}
    assert sparse.summary["simulated_s"] < plain.summary["simulated_s"]


def test_error_feedback_learns_what_plain_sparsification_forgets() -> None:
    found = {}
    for feedback in (True, False):
        up = {"kind": "top-k", "share": 0.01, "error_feedback": feedback}
        scenario = fedsim.Scenario(**sections(up, stop={"rounds": 40}, evaluation={"every": 40}))
        found[feedback] = fedsim.run(scenario, executor="inline").summary["accuracy"]["final"]
    assert found[True] > found[False] + 0.05


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ({"down": "top-k"}, r"messages: 'down' is 'top-k', which is a codec for up only"),
        ({"up": "topk"}, r"messages.up.kind is 'topk'; allowed are plain, top-k.*did you mean 'top-k'"),
        ({"up": {"kind": "top-k", "share": 0.0}}, r"messages.up.share is 0.0"),
        ({"up": {"kind": "os:system"}}, r"messages.up.kind is 'os:system'.*must be a subclass of fedsim.plugin.Codec"),
    ],
)
def test_what_cannot_be_is_refused_by_name(messages: dict[str, Any], message: str) -> None:
    with pytest.raises(fedsim.ScenarioError, match=message):
        fedsim.Scenario(messages=messages)
