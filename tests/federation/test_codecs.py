"""Codecs: what arrives, what is kept, and the bytes of what is written."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedsim
from fedsim.federation.codecs import CODECS
from fedsim.learning.functions import function_at, path_of
from fedsim.learning.models import Logistic
from fedsim.toolbox import codecs
from fedsim.toolbox.codecs import Lossy, Sparse, TopK, added, largest
from tests.learning.small import federation, learning
from tests.learning.test_choices import noisy
from tests.strategies.runs import played, ran, weights
from tests.strategies.worlds import world


@pytest.mark.parametrize("size", [1, 255, 300, 5000, 20_011])
def test_top_k_sends_what_a_stable_sort_puts_first(size: int) -> None:
    draw = np.random.default_rng(size)
    smooth = draw.normal(size=size).astype(np.float32)
    for array in (
        smooth,
        np.sort(smooth),
        np.round(smooth, 1),
        np.zeros_like(smooth),
        np.where(smooth > 1.5, smooth, 0),
    ):
        for k in {1, max(1, size // 100), max(1, size // 3), size}:
            first = np.sort(np.argsort(-np.abs(array), kind="stable")[:k])
            assert (largest(array, k) == first).all()


LOSSY: list[dict[str, Any]] = [
    {"kind": "float16"},
    {"kind": "bfloat16"},
    {"kind": "int8"},
    {"kind": "int8", "bucket": 8},
    {"kind": "qsgd", "levels": 4},
    {"kind": "qsgd", "levels": 1, "bucket": 5},
    {"kind": "top-k", "share": 0.2},
    {"kind": "random-k", "share": 0.2},
    {"kind": "sign"},
    {"kind": "sign", "bucket": 6},
]


def lossy(spec: dict[str, Any]) -> Lossy:
    return CODECS.spec(spec["kind"])(**spec)  # type: ignore[return-value]


@given(
    st.sampled_from(LOSSY),
    st.integers(1, 300),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1e-42, 1.0, 1e4, 1e30]),
)
def test_what_arrives_is_finite_and_as_few_numbers_as_its_bytes_can_say(
    spec: dict[str, Any], size: int, seed: int, scale: float
) -> None:
    codec = lossy(spec)
    array = (scale * np.random.default_rng(seed).normal(size=size)).astype(np.float32)
    function, draws = (
        function_at(path_of(type(codec).function)),
        {"rng": np.random.default_rng(0)} if codec.is_random else {},
    )
    arrived = function([array], **codec.constants(size), **draws)
    assert arrived.shape == array.shape
    if scale < 1e30 or spec["kind"] != "float16":
        assert np.isfinite(arrived).all()
    assert arrived.any() <= array.any()
    buckets = np.split(arrived, range(spec.get("bucket", size), size, spec.get("bucket", size)))
    most = {"int8": 255, "sign": 2, "qsgd": 2 * spec.get("levels", 0) + 1}.get(spec["kind"], size)
    assert all(len(np.unique(bucket)) <= most for bucket in buckets)
    assert np.count_nonzero(arrived) <= (codec.k(size) if isinstance(codec, Sparse) else size)


@pytest.mark.parametrize(
    ("spec", "size", "expected"),
    [
        ({"kind": "float16"}, 300, 600),
        ({"kind": "int8", "bucket": 8}, 17, 17 + 3 * 4),
        ({"kind": "qsgd", "levels": 1, "bucket": 5}, 11, 3 + 3 * 4),  # 2 bits for -1, 0 and 1
        ({"kind": "qsgd", "levels": 127}, 300, 300 + 4),
        ({"kind": "qsgd", "levels": 128}, 300, 338 + 4),  # 9 bits
        ({"kind": "sign", "bucket": 6}, 18, 3 + 3 * 4),
        # 100 positions are shorter than 10,000 bits
        ({"kind": "top-k", "share": 0.01}, 10_000, 400 + 400),
        ({"kind": "top-k", "share": 0.2}, 300, 240 + 38),  # a bitmap
        ({"kind": "random-k", "share": 1.0}, 300, 1200),
    ],
    ids=str,
)
def test_bytes_by_hand(spec: dict[str, Any], size: int, expected: float) -> None:
    assert lossy(spec).bytes(size) == expected


def test_number_formats_are_torchs() -> None:
    array = (
        np.random.default_rng(1).normal(size=5000) * 10.0 ** np.arange(-10, 10).repeat(250)
    ).astype(np.float32)
    for function, dtype in (
        (codecs.as_float16, torch.float16),
        (codecs.as_bfloat16, torch.bfloat16),
    ):
        theirs = torch.from_numpy(array).to(dtype).to(torch.float32).numpy()
        assert (function([array]) == theirs).all()


@pytest.mark.parametrize("bucket", [None, 64, 10**9])
def test_int8_is_within_half_a_step_of_each_bucket(bucket: int | None) -> None:
    array = (np.random.default_rng(1).normal(size=1000) * np.arange(1000)).astype(np.float32)
    arrived = codecs.as_int8([array], bucket)
    for at in range(0, 1000, bucket or 1000):
        part = slice(at, at + (bucket or 1000))
        assert (
            np.abs(arrived[part] - array[part]).max()
            <= np.abs(array[part]).max() / 127 / 2 * 1.0001
        )
        assert np.abs(arrived[part]).max() == pytest.approx(np.abs(array[part]).max(), rel=1e-6)


@pytest.mark.parametrize(
    ("spec", "bound"),
    [
        *(({"kind": "qsgd", "levels": s}, min(40 / s**2, 40**0.5 / s)) for s in (1, 4, 64)),
        ({"kind": "random-k", "share": 0.25}, 40 / 10 - 1),
    ],
    ids=str,
)
def test_the_mean_of_all_draws_is_what_was_meant_and_the_variance_is_bounded(
    spec: dict[str, Any], bound: float
) -> None:
    array, codec, count = (
        np.random.default_rng(3).normal(size=40).astype(np.float32),
        lossy(spec),
        10_000,
    )
    draw = np.random.default_rng(5)
    drawn = np.stack(
        [type(codec).function([array], **codec.constants(40), rng=draw) for _ in range(count)]
    ).astype(np.float64)
    errors = drawn.std(axis=0) / count**0.5
    assert (np.abs(drawn.mean(axis=0) - array) <= 4 * errors + 1e-6).all()
    variance = ((drawn - array) ** 2).sum(axis=1).mean()
    assert variance <= bound * float(array @ array) * 1.02


def test_signs_by_hand() -> None:
    array = np.array([3.0, -1.0, 0.0, -4.0, 5.0], dtype=np.float32)
    assert codecs.as_signs([array], None).tolist() == pytest.approx([2.6, -2.6, 2.6, -2.6, 2.6])
    assert codecs.as_signs([array], 2).tolist() == [2.0, -2.0, 2.0, -2.0, 5.0]


@pytest.mark.parametrize("spec", LOSSY, ids=str)
def test_with_memory_what_is_sent_and_what_is_kept_is_what_was_meant(spec: dict[str, Any]) -> None:
    """What is kept is the float32 next to what was not sent, at every round; of changes to a
    model as of changes alone.
    """
    for meant, sent, rest in fed_back(lossy(spec | {"error_feedback": True}), 3):
        assert (rest == (meant.astype(np.float64) - sent).astype(np.float32)).all()
        if spec["kind"] == "random-k":  # loses nothing, to the bit
            assert (sent + rest == meant).all()
            assert (rest[sent != 0] == 0).all()


def fed_back(codec: Lossy, rounds: int) -> Iterator[tuple[Any, Any, Any]]:
    """What was meant, sent and kept in every round of a device that makes noisy steps; nothing
    but the changes is sent.
    """
    core, _ = learning(federation([30]), Logistic(), lr=0.3)
    size, zero, kept, before = (
        int(core.parameters),
        core.initial(),
        None,
        np.zeros(int(core.parameters), np.float32),
    )
    for number in range(rounds):
        change = core.apply(noisy, [zero], scale=0.1, stream=("test", number))
        coded = codec.code(core, size, change, None, kept)
        values = asyncio.run(core.values([change, coded.received, coded.residual]))  # type: ignore[list-item]
        meant = (values[0].astype(np.float64) + before).astype(np.float32)
        yield meant, values[1], values[2]
        # the same change of a model that both sides have
        update = core.apply(added, [zero, change])
        arrived, rest = codec.code(core, size, update, zero, kept)
        start, received, left = asyncio.run(core.values([zero, arrived, rest]))  # type: ignore[list-item]
        if not codec.is_random:
            assert received - start == pytest.approx(values[1], abs=1e-5)
            assert left == pytest.approx(values[2], abs=1e-5)
        kept, before = coded.residual, values[2]


def sections(up: Any, **others: Any) -> dict[str, Any]:
    return {
        "seed": 4,
        "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 1.0}},
        "population": {
            "devices": 10,
            "speed": {"kind": "lognormal", "median": "60 samples/s", "spread": 2.0},
        },
        "network": {"kind": "star", "device": {"up": "100 kbit/s", "down": "1 Mbit/s"}},
        "strategy": {"kind": "fedavg", "clients_per_round": 4, "local_epochs": 2},
        "messages": {"up": up},
        "stop": {"rounds": 5},
    } | others


def test_with_k_of_d_it_is_the_plain_run_and_with_less_links_carry_what_is_encoded(
    tmp_path: Any,
) -> None:
    ways = ({}, {"kind": "top-k", "share": 1.0}, {"kind": "top-k", "share": 0.05})
    plain, whole, sparse = (ran(sections(up), tmp_path / str(up.get("share"))) for up in ways)
    for name in ("events_sha256", "models_sha256", "bytes"):
        assert plain.summary[name] == whole.summary[name]
    assert {row["bytes"] for row in sparse.transfers if row["direction"] == "up"} == {
        TopK(share=0.05).bytes(650)
    }
    assert sparse.summary["simulated_s"] < plain.summary["simulated_s"]


@pytest.mark.parametrize("encodes", ["change", "model"])
@pytest.mark.parametrize(
    "spec",
    [{"kind": "float16"}, {"kind": "int8", "bucket": 50}, {"kind": "qsgd", "levels": 500}],
    ids=str,
)
def test_both_ways_changes_or_models_the_learning_sees_the_loss(
    spec: dict[str, Any], encodes: str, tmp_path: Any
) -> None:
    run = ran(
        sections({}, messages={"up": spec | {"encodes": encodes}, "down": spec}), tmp_path / "run"
    )
    plain = fedsim.run(fedsim.Scenario(**sections({})), executor="inline").summary
    assert {row["bytes"] for row in run.transfers if row["purpose"] in ("model", "update")} == {
        lossy(spec).bytes(650)
    }
    assert run.summary["models_sha256"] != plain["models_sha256"]
    assert run.summary["accuracy"]["final"] == pytest.approx(plain["accuracy"]["final"], abs=0.05)


def test_encoding_and_decoding_take_time_on_the_device(tmp_path: Any) -> None:
    """650 numbers are 2,600 bytes; at 1 kB/s a device encodes them for 2.6 s, and at 2 kB/s
    decodes three models for 3.9 s.
    """
    strategy = {"kind": "ifca", "groups": 3, "clients_per_round": 4, "local_epochs": 1}
    coded = {
        "up": {"kind": "int8", "encode_rate": "1 kB/s"},
        "down": {"kind": "float16", "encode_rate": "2 kB/s"},
    }
    free = {way: {"kind": codec["kind"]} for way, codec in coded.items()}
    slow, quick = (
        ran(sections({}, strategy=strategy, messages=messages, stop={"rounds": 2}), tmp_path / name)
        for name, messages in (("coded", coded), ("free", free))
    )
    steps = [event for event in slow.events if event["kind"] in ("step-start", "step-end")]
    names = [
        event["step"] for event in steps if event["task"] == 0 and event["kind"] == "step-start"
    ]
    assert names == ["download", "decode", "evaluate", "train", "encode", "upload"]
    for name, seconds in (("decode", 3 * 1.3), ("encode", 2.6)):
        begin, end = (
            {
                event["task"]: event["time"]
                for event in steps
                if (event["step"], event["kind"]) == (name, kind)
            }
            for kind in ("step-start", "step-end")
        )
        assert [end[task] - begin[task] for task in begin] == pytest.approx([seconds] * 8)
    for name in ("models_sha256", "bytes"):
        assert slow.summary[name] == quick.summary[name]
    assert not {"encode", "decode"} & {event["step"] for event in quick.events}


def test_partial_work_leaves_time_to_encode(tmp_path: Any) -> None:
    strategy = {"kind": "fedprox", "clients_per_round": 6, "local_epochs": 50, "deadline": "40 s"}
    up = {"kind": "float16", "encode_rate": "500 B/s"}
    network = {"kind": "star", "device": {"up": "1 kbit/s"}}
    run = ran(sections(up, strategy=strategy, stop={"rounds": 3}, network=network), tmp_path)
    assert [row["valid"] for row in run.rounds] == [6, 6, 6]


def test_a_model_that_is_sent_to_all_is_one_draw() -> None:
    """Two devices that get the same model through a random codec get the same of it."""
    core, _ = learning(federation([30]), Logistic())
    codec, model, size = codecs.QSGD(levels=2), core.initial(), int(core.parameters)
    first, second = (
        asyncio.run(core.value(codec.code(core, size, model, None, None).received))
        for _ in range(2)
    )
    other = asyncio.run(core.value(codec.code(core, size, core.initial(), None, None).received))
    assert (first == second).all()
    assert (first != other).any()


# With strategies whose devices keep a state that the server adds up too: both have the same, and it
# learns.

UP: list[dict[str, Any]] = [
    LOSSY[6] | {"share": 0.05},
    LOSSY[7] | {"share": 0.1},
    LOSSY[5],
    LOSSY[8],
    LOSSY[2],
    LOSSY[0],
]
SERVERS = {
    "scaffold": ("control", "control"),
    "feddyn": ("moved", "moved"),
    "feddr": ("z", "model"),
}
"""The state of a device, and the server's."""


def learning_both(strategy: dict[str, Any], up: dict[str, Any], rounds: int) -> dict[str, Any]:
    strategy = {"clients_per_round": 5, "local_epochs": 2} | strategy
    data = {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.3}}
    return world(data, 12, strategy, rounds, messages={"up": up}, evaluation={"every": rounds})


@pytest.mark.parametrize(
    ("kind", "up"),
    [(kind, up) for kind in SERVERS for up in (UP if kind == "scaffold" else UP[:3])],
    ids=lambda value: value["kind"] if isinstance(value, dict) else value,
)
def test_what_the_server_has_is_what_its_devices_have(kind: str, up: dict[str, Any]) -> None:
    run, _ = played(learning_both({"kind": kind}, up, 5))
    on_device, name = SERVERS[kind]
    devices, state = run.dispatch.snapshot()["devices"]["states"], run.strategy.state[name]
    own = {number: kept[on_device] for number, kept in devices.items() if on_device in kept}
    assert len(own) >= 5
    at_first = run.learner.initial(0) if kind == "feddr" else run.server.models.zero()
    on_server, others, *states = weights(run, [state, at_first, *own.values()])
    assert on_server == pytest.approx((sum(states) + (12 - len(own)) * others) / 12, abs=1e-5)


@pytest.mark.parametrize("up", UP[:3], ids=lambda value: value["kind"])
def test_the_models_that_fpfc_compares_are_those_that_its_devices_go_on_from(
    up: dict[str, Any],
) -> None:
    run, _ = played(learning_both({"kind": "fpfc"}, up, 5))
    states = run.dispatch.snapshot()["devices"]["states"]
    models = {number: state["model"] for number, state in states.items() if "model" in state}
    assert len(models) >= 5
    on_devices = weights(run, [*models.values()])
    on_server = weights(run, [run.strategy.state["own"][number] for number in models])
    assert np.array_equal(on_devices, on_server)


@pytest.mark.parametrize(
    ("strategy", "up"),
    [
        ({"kind": "fedavg"}, {"kind": "qsgd", "levels": 1, "error_feedback": True}),
        ({"kind": "scaffold"}, {"kind": "qsgd", "levels": 1}),
        ({"kind": "scaffold"}, {"kind": "random-k", "share": 0.2}),
    ],
    ids=str,
)
def test_what_is_left_out_does_not_grow(strategy: dict[str, Any], up: dict[str, Any]) -> None:
    found = fedsim.run(
        fedsim.Scenario(**learning_both(strategy, up, 30)), executor="inline"
    ).summary["accuracy"]["final"]
    assert found > 0.7


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ({"down": "top-k"}, r"messages: 'down' is 'top-k', which is a codec for up only"),
        (
            {"down": {"kind": "float16", "error_feedback": True}},
            r"messages: 'down' has error_feedback = true",
        ),
        (
            {"up": {"kind": "int8", "error_feedback": True, "encodes": "model"}},
            r"messages.up.*'error_feedback' is true and",
        ),
        (
            {"up": {"kind": "os:system"}},
            r"messages.up.kind is 'os:system'.*must be a subclass of fedsim.plugin.Codec",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(messages: dict[str, Any], message: str) -> None:
    with pytest.raises(fedsim.ScenarioError, match=message):
        fedsim.Scenario(messages=messages)


@pytest.mark.parametrize("kind", ["feddyn", "feddr"])
@pytest.mark.parametrize(("up", "feedback"), [("top-k", False), ("random-k", True)])
def test_error_feedback_that_changes_nothing_is_refused(kind: str, up: str, feedback: bool) -> None:
    fedsim.Scenario(strategy={"kind": kind}, messages={"up": up})
    with pytest.raises(
        fedsim.ScenarioError,
        match=f"error_feedback = {str(feedback).lower()}, and with the strategy '{kind}'",
    ):
        fedsim.Scenario(
            strategy={"kind": kind}, messages={"up": {"kind": up, "error_feedback": feedback}}
        )
