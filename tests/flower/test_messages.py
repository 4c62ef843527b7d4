"""Bytes of messages, against what Flower itself writes."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from fedsim.flower.client_side import bytes_of, bytes_of_content

TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 2, 1


def written(message: Message) -> int:
    """What Flower would send: every object under its id once."""
    return sum(len(each.deflate()) for each in get_all_nested_objects(deepcopy(message)).values())


ZERO, ONE = np.zeros(300, np.float32), np.ones(300, np.float32)
CONTENTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a model": {"arrays": ArrayRecord([ONE.reshape(30, 10), ZERO])},
    "equal arrays": {"arrays": ArrayRecord([ZERO, ZERO, ZERO.astype(np.float64), ONE])},
    "equal records": {"one": ArrayRecord([ONE]), "two": ArrayRecord([ONE]), "three": MetricRecord({"a": 1})},
    "no numbers": {"arrays": ArrayRecord([np.zeros(0)]), "raw": ArrayRecord({"ü": Array("int8", (0,), "x", b"")})},
    "facts": {"config": ConfigRecord({"lr": 0.1, "on": True, "names": ["a"], "key": b"123"}), "m": MetricRecord({"n": [1, 2]})},
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_bytes_are_those_that_flower_writes(content: dict[str, Any]) -> None:
    message = Message(RecordDict(content), 1 << 61, "train", group_id="3")
    assert bytes_of(message) == bytes_of(message, bytes_of_content(message.content)) == written(message)
    reply = Message(RecordDict(content), reply_to=message)
    assert bytes_of(reply) == written(reply)


def test_bytes_of_an_error() -> None:
    error = Message(Error(5, "gone"), reply_to=Message(RecordDict(), 7, "query.facts"))
    assert bytes_of(error) == written(error)


def test_a_deep_copy_shares_only_what_cannot_change() -> None:
    config = ConfigRecord({"round": 1, "names": ["a"]})
    message = Message(RecordDict({"arrays": ArrayRecord([ONE]), "config": config}), 7, "train")
    sent = deepcopy(message)
    config["round"], sent.metadata.dst_node_id = 2, 8
    config["names"].append("b")
    assert (sent.content["config"], message.metadata.dst_node_id) == ({"round": 1, "names": ["a"]}, 7)
    assert sent.content["arrays"]["0"].data is message.content["arrays"]["0"].data
