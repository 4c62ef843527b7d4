"""Payloads of a deployment: as many bytes as a simulation counts, and the same values."""

import numpy as np
import pytest

from fedsim.deployed.refusals import refusals
from fedsim.federation.codecs import Codec, Plain
from fedsim.running.scenario import Scenario
from fedsim.toolbox.codecs import QSGD, BFloat16, Float16, Int8, Lossy, RandomK, Sign, TopK

CODECS = [
    Float16(),
    BFloat16(),
    Int8(),
    Int8(bucket=3),
    QSGD(),
    QSGD(levels=3, bucket=5),
    QSGD(levels=32_767),
    QSGD(levels=1, error_feedback=True),
    Sign(bucket=4),
    TopK(),
    TopK(share=0.5),
    RandomK(share=0.3, error_feedback=True),
]


def unpacked(codec: Codec, sent: np.ndarray, exact: np.ndarray) -> np.ndarray:
    payload = codec.pack(sent, exact)
    assert len(payload) == codec.bytes(len(sent))
    return codec.unpack(payload, len(sent))


@pytest.mark.parametrize("size", [1, 7, 650])
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_a_payload_has_the_counted_bytes_and_the_decoded_values(codec: Lossy, size: int) -> None:
    exact = np.random.default_rng(3).normal(size=size).astype(np.float32)
    exact[0] = 0.0
    sent = exact
    if getattr(codec, "k", lambda _: 0)(size) != size:
        constants = codec.constants(size)
        if codec.is_random:
            constants["rng"] = np.random.default_rng(1)
        sent = type(codec).function([exact], **constants)
    assert unpacked(codec, sent, exact).tobytes() == sent.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_plain_models_are_sent_as_they_are(dtype: str) -> None:
    model = np.random.default_rng(3).normal(size=9).astype(np.float32)
    assert unpacked(Plain.model_validate({"dtype": dtype}), model, model).tobytes() == (
        model.tobytes()
    )


@pytest.mark.parametrize(
    ("sections", "name"),
    [
        ({"messages": {"up": {"kind": "plain", "dtype": "int8"}}}, "messages.up"),
        ({"messages": {"down": {"kind": "plain", "size": "1 MB"}}}, "messages.down"),
        ({"malicious": {"share": 0.2, "attack": "sign-flip"}}, "malicious"),
        ({"drift": {"kind": "swap-all", "probability": 0.1}}, "drift"),
        ({"energy": {"preset": "smartphone-wifi"}}, "energy"),
        ({"strategy": {"kind": "gossip"}}, "strategy.kind"),
        ({"strategy": {"kind": "fedper"}}, "strategy.kind"),
        ({"server": {"speed": 1e9}}, "server.speed"),
        (
            {"population": {"device": "laptop", "short_of_memory": "refuse"}},
            "population.short_of_memory",
        ),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(
    sections: dict[str, dict[str, object]], name: str
) -> None:
    reasons = list(refusals(Scenario(data={"source": "digits"}, **sections)))
    assert [reason.split()[0] for reason in reasons] == [name]
    assert list(refusals(Scenario(data={"source": "digits"}))) == []
