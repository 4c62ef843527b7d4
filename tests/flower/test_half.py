"""A half of an app has its own modules, generators and threads, whatever the process has, and leaves those as they were."""

import json
import logging
import random
import subprocess
import sys
import threading
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

import fedsim
from fedsim.errors import SimulationError
from fedsim.flower.app import carried_out, read_app
from fedsim.flower.client_side import bytes_of, bytes_of_content
from fedsim.flower.replaced import AppHalf
from tests.flower.plain import APPS, seed_all
from tests.flower.runs import execute, scenario


def drawn() -> tuple[float, float, float]:
    """From each global generator; a normal one, of which numpy draws two and keeps the other."""
    return random.random(), float(np.random.standard_normal()), float(torch.rand(()))  # noqa: NPY002


def test_generators_go_on_from_their_seed_and_those_outside_from_where_they_were() -> None:
    seed_all(7)
    expected = [drawn() for _ in range(4)]
    seed_all(7)
    outside = []
    half = AppHalf(read_app(str(APPS / "numpy_app"), {}), "client", 7)
    for seed, drawn_before in ((None, 0), (8, 0), (None, 1), (7, 0)):
        outside.append(drawn())
        with half.in_use(seed):
            assert (drawn() == expected[drawn_before]) == (seed != 8)
    assert outside == expected


def test_halves_share_no_modules_and_leave_none() -> None:
    """Nor any of another run; a module that is imported within a function only is the half's own too."""
    app = read_app(str(APPS / "odd_app"), {})
    before = list(sys.modules), list(sys.path), torch.get_num_threads(), logging.getLogger("flwr").level
    halves = [AppHalf(app, name, 1) for name in ("server", "client", "client")]
    seen = set()
    for half in halves * 2:
        with half.in_use():
            import odd_app.task  # type: ignore[import-not-found]

            seen.add(id(odd_app.task))
            assert torch.get_num_threads() == 1
            assert logging.getLogger("flwr").level == logging.WARNING
            assert sys.path[0] == str(app.folder)
    assert len(seen) == 3
    assert (list(sys.modules), list(sys.path), torch.get_num_threads(), logging.getLogger("flwr").level) == before


def test_a_fresh_process_with_two_workers_gives_the_same_run_as_this_one(tmp_path: Path) -> None:
    """Both halves draw as they are loaded, and import torch within a function: unseeded, torch draws its seed from the system.

    Two processes that load torch and Flower take seconds; nothing less tells.
    """
    sections = scenario("odd_app", 2, run_config={"server": "draws", "client": "draws"})
    (tmp_path / "app.toml").write_text(fedsim.Scenario(**sections).to_toml())
    command = ["run", str(tmp_path / "app.toml"), "--out", str(tmp_path / "run"), "--workers", "2", "--allow-code", "--quiet"]
    subprocess.run([sys.executable, "-c", "from fedsim.cli import main; main()", *command], check=True)
    fresh, here = json.loads((tmp_path / "run" / "summary.json").read_text()), execute(sections).summary
    for name in ("events_sha256", "models_sha256"):
        assert fresh[name] == here[name]


def test_a_function_s_value_its_error_and_its_never_ending() -> None:
    here = Path(__file__).parent
    assert carried_out(lambda: 3, 60.0, here, "it") == 3
    with pytest.raises(ZeroDivisionError):
        carried_out(lambda: 1 / 0, 60.0, here, "it")
    waits = threading.Event()

    def stuck() -> None:
        waits.wait()

    with pytest.raises(SimulationError, match=r"^it has computed for 0\.01 s of real time, in test_half\.py, line \d+; "):
        carried_out(stuck, 0.01, here, "it")
    assert carried_out(lambda: 4, 60.0, here, "it") == 4  # another thread's, for that one is still at it
    waits.set()


# Bytes of messages, against what Flower itself writes.


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
