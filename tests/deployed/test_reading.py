"""Packets of broken and hostile senders: each is read, or refused by a plain error."""

import ast
import copy
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fedsim.deployed
from fedsim.clock.simulation import Simulation
from fedsim.deployed.packing import ContentPacker, ModelPlace, Packet, PlacedModel
from fedsim.deployed.reading import Json, PacketError
from fedsim.deployed.step_log import LoggedStep, read_step
from fedsim.federation.codecs import Codec, Plain
from fedsim.federation.contents import Header, Lazy, Opaque
from fedsim.learning.refs import Loss, Ref
from fedsim.running.assembly import Run
from fedsim.running.scenario import Scenario
from fedsim.toolbox.codecs import QSGD, Int8, Sign, TopK

SCENARIO = Scenario(data={"source": "digits"}, population={"devices": 10})
LEARNER = Run(SCENARIO, Simulation()).learner
CODECS = [Plain(), Int8(bucket=3), QSGD(), Sign(), TopK(share=0.3)]
VALUES: list[Json] = [
    *(
        None,
        True,
        -1,
        0,
        3,
        10**30,
        1.5,
        float("nan"),
        float("inf"),
        "",
        "model",
        "<f8",
        "x" * 3000,
    ),
    *([], [1], [1, 2], ["a", None], [[]], {}, {"array": 7}, {"array": -1}, {"model": 0}),
    *({"list": 3}, {"dict": [[1]]}, {"dict": [[{"list": []}, 1]]}, {"a": 1, "b": 2}),
    [10**9, 10**9],
]


def model_of(value: float) -> Ref:
    ref = LEARNER.received(np.full(int(LEARNER.parameters), value, dtype=np.float32))
    ref.loss = Loss(0.5, {"share": 1.0})
    return ref


def answer(codec: Codec) -> tuple[Packet, Ref]:
    """An answer with a content of each kind, and the model of the request."""
    start = model_of(1.0)
    update = model_of(2.0)
    losses = LEARNER.received(np.ones(3, dtype=np.float32))
    losses.losses = np.array([0.1, 0.2, 0.3])
    contents = {
        "update": update,
        "models": [model_of(0.0), model_of(3.0)],
        "samples": Header(12),
        "kept": Header({"places": (1, [2.0, None]), "sums": np.arange(4), "best": model_of(1.0)}),
        "opaque": Opaque([1, "a"], 40.0),
        "losses": Lazy("losses", losses, 3),
        "counts": np.array([[1, 2], [3, 4]]),
        "rate": 0.25,
    }
    packer = ContentPacker(codec, LEARNER)
    bases = {update: PlacedModel(ModelPlace("model"), start)}
    return packer.pack(contents, bases, {}), start


def places(tree: Json, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all values in a tree."""
    if path:
        yield path
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from places(value, (*path, name))
    if isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from places(value, (*path, index))


def broken(tree: Json, path: tuple[str | int, ...], value: Json) -> Json:
    """A copy of a tree with another value at a path."""
    if not path:
        return value
    first, *rest = path
    other = copy.copy(tree)
    if (isinstance(other, dict) and isinstance(first, str)) or (
        isinstance(other, list) and isinstance(first, int)
    ):
        other[first] = broken(other[first], tuple(rest), value)
    return other


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.kind)
def test_a_packet_with_any_value_at_any_place_is_read_or_refused(codec: Codec) -> None:
    packet, start = answer(codec)
    packer = ContentPacker(codec, LEARNER)
    assert list(packer.unpack(packet, lambda _: start)) == list(packet.head["contents"])
    rng = random.Random(4)
    refusals = []
    for path in places(packet.head):
        for value in rng.sample(VALUES, 6):
            head = broken(packet.head, path, value)
            try:
                packer.unpack(Packet(head, packet.payloads, packet.arrays), lambda _: start)
            except PacketError as error:
                refusals.append(str(error))
    assert len(refusals) > 100
    assert max(map(len, refusals)) < 600


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.kind)
def test_a_payload_that_is_cut_lengthened_missing_or_noise_is_read_or_refused(codec: Codec) -> None:
    packet, start = answer(codec)
    packer = ContentPacker(codec, LEARNER)
    rng = np.random.default_rng(2)
    refusals = []
    for name, payload in packet.payloads.items():
        for other in (payload[:-1], payload + b"\0", b"", None):
            payloads = packet.payloads | {name: other}
            if other is None:
                del payloads[name]
            with pytest.raises(PacketError, match=name.partition("/")[0]):
                packer.unpack(Packet(packet.head, payloads, packet.arrays), lambda _: start)
        for _ in range(5):
            noise = rng.bytes(len(payload))
            try:
                packer.unpack(
                    Packet(packet.head, packet.payloads | {name: noise}, packet.arrays),
                    lambda _: start,
                )
            except PacketError as error:
                refusals.append((name.partition("/")[0], str(error)))
    assert all(name in text for name, text in refusals)


def test_a_step_with_any_value_at_any_place_is_read_or_refused() -> None:
    tree = LoggedStep("train", 1.0, 2.0, {"epochs": 1, "asked": 2}).tree()
    assert read_step(tree).facts == {"epochs": 1, "asked": 2}
    for path in places(tree):
        for value in VALUES:
            step: LoggedStep | None = None
            try:
                step = read_step(broken(tree, path, value))
            except PacketError:
                continue
            assert np.isfinite([step.start, step.end]).all()
            assert step.name == "train"
            assert all(isinstance(fact, int) for fact in step.facts.values())


def test_no_packet_is_read_by_an_assertion() -> None:
    folder = Path(fedsim.deployed.__file__).parent
    found = []
    for file in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Assert):
                found.append(f"{file.name}: {ast.unparse(node)}")
    assert found == ["trees.py: assert value is not None"]
