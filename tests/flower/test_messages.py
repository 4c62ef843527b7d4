"""Bytes of messages, against what Flower itself writes."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from fedsim.flower.client_side import bytes_of, bytes_of_content

TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 2, 1


def written(message: Message) -> int:
    """What Flower would send: every object under its id once."""
    return sum(len(each.deflate()) for each in get_all_nested_objects(deepcopy(message)).values())


ZERO, ONE = np.zeros(300, np.float32), np.ones(300, np.float32)


@pytest.mark.parametrize(
    "content", [{}, {"arrays": ArrayRecord([ZERO, ZERO, ZERO.astype(np.float64), ONE]), "m": MetricRecord({"n": [1, 2]})}]
)
def test_bytes_are_those_that_flower_writes(content: dict[str, Any]) -> None:
    message = Message(RecordDict(content), 1 << 61, "train", group_id="3")
    assert bytes_of(message) == bytes_of(message, bytes_of_content(message.content)) == written(message)
    for reply in (Message(RecordDict(content), reply_to=message), Message(Error(5, "gone"), reply_to=message)):
        assert bytes_of(reply) == written(reply)


def test_a_deep_copy_shares_only_what_cannot_change() -> None:
    config = ConfigRecord({"round": 1, "names": ["a"]})
    message = Message(RecordDict({"arrays": ArrayRecord([ONE]), "config": config}), 7, "train")
    sent = deepcopy(message)
    config["round"], sent.metadata.dst_node_id = 2, 8
    config["names"].append("b")
    assert (sent.content["config"], message.metadata.dst_node_id) == ({"round": 1, "names": ["a"]}, 7)
    assert sent.content["arrays"]["0"].data is message.content["arrays"]["0"].data
