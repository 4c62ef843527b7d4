"""Apps as Flower's quickstarts have them: what they learn, always the same; each half has its
own modules and generators.
"""

import inspect
import json
import logging
import math
import random
import re
import subprocess
import sys
import threading
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message import message as message_module
from flwr.serverapp import strategy as strategies
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

import fedsim
from fedsim.clock.executors import Threads
from fedsim.flower.app import read_app
from fedsim.flower.app_half import AppHalf
from fedsim.flower.client_side import _examples_of, bytes_of, bytes_of_content
from fedsim.flower.patches import EPOCH_S, ClientCall, replace_all, running
from fedsim.flower.turns import RunOver
from fedsim.testing import FIGURES, assert_sound
from tests.calls import done
from tests.flower.runs import APPS, eventful, execute, last_arrays, run_plain, scenario, seed_all


@pytest.mark.parametrize("app", ["numpy_app", "torch_app", "legacy_app", "private_app"])
def test_always_on_devices_learn_what_a_plain_loop_does(app: str, tmp_path: Path) -> None:
    result = execute(
        scenario(app, **({"loss": "eval_loss"} if app == "torch_app" else {})), tmp_path / "run"
    )
    assert result.summary["status"] == "done"
    assert result.summary["accuracy"]["final"] > 0.5
    assert result.summary["algorithm"] == {
        "private_app": "DifferentialPrivacyClientSideFixedClipping"
    }.get(app, "FedAvg")
    # it never sends what its last round has made
    rounds = {"num-server-rounds": 4} if app == "private_app" else {}
    expected = last_arrays(run_plain(app, devices=6, **rounds))
    (found,) = assert_sound(tmp_path / "run").models().values()
    assert {name: (values.dtype, values.tobytes()) for name, values in found.items()} == {
        name: (values.dtype, values.tobytes()) for name, values in expected.items()
    }


def test_a_round_s_figures_are_the_means_that_flower_computes(tmp_path: Path) -> None:
    """Accuracy by hand: every device's model test, weighted by its examples."""
    result = execute(scenario("numpy_app"))
    weights = list(last_arrays(run_plain("numpy_app", devices=6)).values())
    right, count = 0.0, 0
    for device in range(6):
        draw = np.random.default_rng([device, 6])
        y = draw.integers(0, 3, size=20 + 5 * (device % 4))
        centres = np.random.default_rng(0).normal(size=(3, 4)) * 2
        x = (centres[y] + draw.normal(size=(len(y), 4))).astype(np.float32)
        right += float(((x @ weights[0] + weights[1]).argmax(axis=1) == y).sum())
        count += len(y)
    assert result.rows[-1]["accuracy"] == pytest.approx(right / count)
    assert [row["selected"] for row in result.rows] == [6, 6, 6]
    # 35 examples at 20 a second, and a third of that to test: the slowest of equal devices
    assert result.rows[0]["time"] == pytest.approx(35 / 20 * 4 / 3)


def test_an_eventful_world_is_the_same_twice_and_on_any_number_of_workers(tmp_path: Path) -> None:
    sections = eventful(
        "numpy_app", run_config={"fraction-train": 0.5, "timeout": 20.0, "num-server-rounds": 4}
    )
    one = execute(sections, tmp_path / "one").summary
    folder = assert_sound(tmp_path / "one")
    assert {event["outcome"] for event in folder.events if event["kind"] == "task-end"} >= {
        "done",
        "lost",
    }
    for executor in (None, Threads(1), Threads(2)):
        other = execute(sections, executor=executor).summary
        assert [other[name] for name in FIGURES] == [one[name] for name in FIGURES]


# Every strategy that Flower has runs among stragglers and devices that come and go.


NAMES = [
    name
    for name in strategies.__all__
    if not inspect.isabstract(getattr(strategies, name)) and name != "Result"
]


@pytest.mark.parametrize("name", NAMES)
def test_five_rounds_of(name: str, tmp_path: Path) -> None:
    assert len(NAMES) >= 18
    config = {"strategy": name, "fraction-train": 0.3, "num-server-rounds": 5, "timeout": 60.0}
    summary = execute(eventful("numpy_app", run_config=config), tmp_path / "run").summary
    assert summary["status"] == "done"
    assert summary["stopped"] == "the ServerApp has ended"
    assert summary["rounds"] == 5
    assert summary["accuracy"]["final"] > (0.2 if "Xgb" not in name else 0.8)
    folder = assert_sound(tmp_path / "run")
    assert [row["round"] for row in folder.rounds] == [0, 1, 2, 3, 4]
    (tensors,) = folder.models().values()
    assert tensors


# The page's example of Flower's partitions, as it stands there.


PAGE = Path(__file__).parents[2] / "docs" / "flower.md"


@pytest.mark.filterwarnings("ignore")  # of Hugging Face's libraries
def test_a_partition_of_flower_s_deals_fedsim_s_own_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr_datasets")
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    Path("scenario.toml").write_text(fedsim.Scenario().to_toml())
    exec(compile(example, str(PAGE), "exec"), {})
    sections = {
        "data": {"partition": {"kind": "file", "path": "shards.json"}},
        "population": {"devices": 20},
    }
    summary = fedsim.run(fedsim.Scenario(**sections, stop={"rounds": 1}), executor="inline").summary
    assert summary["rounds"] == 1


# The other verbs on runs of Flower apps: they are as any other.


def test_report_compare_audit_trace_and_run_again(tmp_path: Path) -> None:
    for name in ("FedAvg", "FedAdam"):
        config = {"strategy": name, "size": 2_000, "num-server-rounds": 3, "fraction-train": 0.3}
        execute(eventful("numpy_app", devices=8, run_config=config), tmp_path / name)
        done("audit", tmp_path / name)
    one, other = (fedsim.load_run(tmp_path / name) for name in ("FedAvg", "FedAdam"))
    table = done("compare", tmp_path / "FedAvg", tmp_path / "FedAdam")
    assert "flower (FedAvg)" in table
    assert "flower (FedAdam)" in table
    down = [run.summary["bytes"]["down"] for run in (one, other)]
    assert 1.5 < down[1] / down[0] < 2.1  # FedAdam's server computes in float64
    done("report", tmp_path / "FedAvg", tmp_path / "FedAdam", "--out", tmp_path / "report.html")
    assert "compute" in (tmp_path / "report.html").read_text()
    done("trace", tmp_path / "FedAvg", "--out", tmp_path / "trace.json")
    entries = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"compute", "download", "upload"} <= {entry["name"].split(" ")[0] for entry in entries}
    text = (tmp_path / "FedAvg" / "scenario.toml").read_text()
    assert not {"[model]", "[data]"} & set(text.splitlines())
    again = fedsim.run(
        fedsim.load(tmp_path / "FedAvg" / "scenario.toml", allow_code=True), executor="inline"
    )
    assert again.summary["events_sha256"] == one.summary["events_sha256"]


def test_check_and_a_study_of_strategies(tmp_path: Path) -> None:
    base = eventful("numpy_app", devices=6)
    (tmp_path / "app.toml").write_text(fedsim.Scenario(**base).to_toml())
    said = done("check", tmp_path / "app.toml", "--allow-code")
    assert "6 devices; what they compute, send and learn is for a Flower app" in said
    variants = {
        name: {"strategy": {"run_config": {"strategy": name, "num-server-rounds": 2}}}
        for name in ("FedAvg", "FedMedian")
    }
    (tmp_path / "study.toml").write_text(
        tomli_w.dumps({"seeds": [1], "base": base, "variants": variants})
    )
    done(
        "study",
        tmp_path / "study.toml",
        "--out",
        tmp_path / "study",
        "--allow-code",
        "--workers",
        "1",
        "--quiet",
    )
    assert {run.parent.name for run in (tmp_path / "study" / "runs").glob("*/seed-1")} == {
        "FedAvg",
        "FedMedian",
    }
    assert (tmp_path / "study" / "compare.csv").is_file()


def drawn() -> tuple[float, float, float]:
    """From each global generator; a normal one, of which numpy draws two and keeps the other."""
    return random.random(), float(np.random.standard_normal()), float(torch.rand(()))  # noqa: NPY002


def test_a_call_within_another_leaves_the_time_of_messages_as_it_was() -> None:
    replace_all()
    with running(ClientCall(APPS, 10.0)):
        with running(ClientCall(APPS, 20.0)):
            assert message_module.now().timestamp() == 20.0
        assert message_module.now().timestamp() == 10.0
    assert message_module.now().timestamp() > EPOCH_S


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
    """Nor any of another run; a module that is imported within a function only is the half's own
    too.
    """
    app = read_app(str(APPS / "odd_app"), {})
    before = (
        list(sys.modules),
        list(sys.path),
        torch.get_num_threads(),
        logging.getLogger("flwr").level,
    )
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
    assert (
        list(sys.modules),
        list(sys.path),
        torch.get_num_threads(),
        logging.getLogger("flwr").level,
    ) == before


def test_a_half_waits_until_no_other_one_is_in_use() -> None:
    """At the end of a run the ServerApp runs once more, while a ClientApp may still compute."""
    app = read_app(str(APPS / "odd_app"), {})
    server, client = [AppHalf(app, name, 1) for name in ("server", "client")]
    before = list(sys.modules), list(sys.path), random.getstate()
    begun = threading.Event()
    order = []

    def use_server() -> None:
        begun.set()
        with server.in_use():
            order.append("server")
            random.random()

    thread = threading.Thread(target=use_server)
    with client.in_use(3):
        thread.start()
        begun.wait()
        thread.join(0.05)  # time to begin, which it must not do
        import odd_app.late  # type: ignore[import-not-found]  # noqa: F401

        order.append("client")
    thread.join()
    assert order == ["client", "server"]
    assert (list(sys.modules), list(sys.path), random.getstate()) == before


def test_a_half_that_is_closed_in_use_lets_others_begin() -> None:
    app = read_app(str(APPS / "odd_app"), {})
    server, client = [AppHalf(app, name, 1) for name in ("server", "client")]
    with client.in_use(3):
        client.close()  # as for a thread that computes without end
        with server.in_use():
            pass
    with pytest.raises(RunOver), client.in_use():
        pass
    with server.in_use():
        pass


def test_a_fresh_process_with_two_workers_gives_the_same_run_as_this_one(tmp_path: Path) -> None:
    """Both halves draw as they are loaded, and import torch within a function: unseeded, torch
    draws its seed from the system.

    Two processes that load torch and Flower take seconds; nothing less tells.
    """
    sections = scenario("odd_app", 2, run_config={"server": "draws", "client": "draws"})
    (tmp_path / "app.toml").write_text(fedsim.Scenario(**sections).to_toml())
    command = [
        "run",
        str(tmp_path / "app.toml"),
        "--out",
        str(tmp_path / "run"),
        "--workers",
        "2",
        "--allow-code",
        "--quiet",
    ]
    subprocess.run(
        [sys.executable, "-c", "from fedsim.cli import main; main()", *command], check=True
    )
    fresh, here = (
        json.loads((tmp_path / "run" / "summary.json").read_text()),
        execute(sections).summary,
    )
    for name in ("events_sha256", "models_sha256"):
        assert fresh[name] == here[name]


# Bytes of messages, against what Flower itself writes.


TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 2, 1


def written(message: Message) -> int:
    """What Flower would send: every object under its id once."""
    return sum(len(each.deflate()) for each in get_all_nested_objects(deepcopy(message)).values())


ZERO, ONE = np.zeros(300, np.float32), np.ones(300, np.float32)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {
            "arrays": ArrayRecord([ZERO, ZERO, ZERO.astype(np.float64), ONE]),
            "m": MetricRecord({"n": [1, 2]}),
        },
    ],
)
def test_bytes_are_those_that_flower_writes(content: dict[str, Any]) -> None:
    message = Message(RecordDict(content), 1 << 61, "train", group_id="3")
    assert (
        bytes_of(message)
        == bytes_of(message, bytes_of_content(message.content))
        == written(message)
    )
    for reply in (
        Message(RecordDict(content), reply_to=message),
        Message(Error(5, "gone"), reply_to=message),
    ):
        assert bytes_of(reply) == written(reply)


@pytest.mark.parametrize(
    ("examples", "expected"), [(12, 12.0), (0, 0.0), (-1, None), (math.nan, None), (math.inf, None)]
)
def test_only_finite_counts_of_examples_weigh(examples: float, expected: float | None) -> None:
    records = RecordDict({"metrics": MetricRecord({"num-examples": examples})})
    message = Message(records, dst_node_id=1, message_type="train")
    assert _examples_of(message) == expected
