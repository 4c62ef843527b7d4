"""Apps as Flower's quickstarts have them, unmodified: what they learn, and that it always is the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedsim.executors.threads import Threads
from fedsim.records.reading import RunFolder
from fedsim.testing import FIGURES, assert_sound
from tests.flower.plain import last_arrays, run_plain
from tests.flower.runs import eventful, execute, scenario

APPS = {"numpy_app": {}, "torch_app": {}, "legacy_app": {}, "private_app": {}}
OWN_NAMES = {"torch_app": {"loss": "eval_loss"}}


@pytest.mark.parametrize(("app", "config"), APPS.items(), ids=APPS)
def test_always_on_devices_learn_what_a_plain_loop_does(app: str, config: dict[str, Any], tmp_path: Path) -> None:
    result = execute(scenario(app, run_config=config, **OWN_NAMES.get(app, {})), tmp_path / "run")
    assert result.summary["status"] == "done"
    assert result.summary["accuracy"]["final"] > 0.5
    assert result.summary["algorithm"] == {"private_app": "DifferentialPrivacyClientSideFixedClipping"}.get(app, "FedAvg")
    rounds = {"num-server-rounds": 4} if app == "private_app" else {}  # it never sends what its last round has made
    expected = last_arrays(run_plain(app, devices=6, **config, **rounds))
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
    sections = eventful("numpy_app", run_config={"fraction-train": 0.5, "timeout": 20.0, "num-server-rounds": 4})
    one = execute(sections, tmp_path / "one").summary
    folder = assert_sound(tmp_path / "one")
    assert {event["outcome"] for event in folder.events if event["kind"] == "task-end"} >= {"done", "lost"}
    for executor in (None, Threads(1), Threads(2)):
        other = execute(sections, executor=executor).summary
        assert [other[name] for name in FIGURES] == [one[name] for name in FIGURES]


def test_the_run_folder_says_it_again(tmp_path: Path) -> None:
    """The scenario that is written can be read and gives the same run; sections that are not used are not in it."""
    import fedsim

    execute(scenario("numpy_app"), tmp_path / "one")
    text = (tmp_path / "one" / "scenario.toml").read_text()
    assert "[model]" not in text
    assert "[data]" not in text
    again = fedsim.run(fedsim.load(tmp_path / "one" / "scenario.toml", allow_code=True), tmp_path / "two", executor="inline")
    assert again.summary["events_sha256"] == RunFolder(tmp_path / "one").summary["events_sha256"]
