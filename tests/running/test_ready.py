"""The ready scenarios: they run without files through all verbs, and their full forms are as
published.
"""

from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.common.errors import DataError
from fedsim.running.shipped import shipped
from tests.calls import done

TASKS = ("cifar10", "femnist", "shakespeare")
PUBLISHED: dict[str, tuple[int, int, int, int]] = {
    "cifar10": (500, 10, 20, 4_000),
    "femnist": (3_400, 10, 20, 1_500),
    "shakespeare": (715, 10, 4, 1_200),
}
"""Clients, clients of a round, size of a batch, and rounds."""

PARAMETERS = {"cifar10": 176_402, "femnist": 1_206_590, "shakespeare": 814_885}
"""Parameters of the small forms."""

LEARNT = {"cifar10": 0.6, "femnist": 0.4, "shakespeare": 0.25}
"""Accuracy above which a task counts as learnt; labels at random give 0.1, 0.02 and 0.02."""

SMALLER = {
    "cifar10": ["model.channels=8"],
    "femnist": ["model.width=0.1"],
    "shakespeare": ["model.hidden=8"],
}
"""Changes by which a task takes a moment. With fewer than 8 channels oneDNN crashes on some processors."""

DRAWN = {
    "cifar10": '{kind="drawn-images", shape=[3, 32, 32], samples=1500}',
    "femnist": '{kind="drawn-images", shape=[1, 28, 28], classes=62, users=3400, samples=17000}',
}


def test_each_task_has_both_forms() -> None:
    names = {name.removeprefix("ready/") for name in shipped() if name.startswith("ready/")}
    assert names == {*TASKS, *(f"{task}_full" for task in TASKS)}


@pytest.mark.parametrize("task", TASKS)
def test_the_models_have_the_sizes_that_the_page_names(task: str) -> None:
    scenario: Any = fedsim.load(f"ready/{task}")
    shape, classes = scenario.data.shape_and_classes()
    outputs = getattr(shape, "vocabulary", classes)
    assert scenario.model.parameters(shape, outputs) == PARAMETERS[task]


def test_the_full_form_of_cifar10_has_the_whole_resnet_on_plain_pixels() -> None:
    scenario: Any = fedsim.load("ready/cifar10_full")
    assert scenario.model.parameters((3, 32, 32), 10) == 11_173_962
    assert scenario.data.normalize == "pixel"


@pytest.mark.parametrize("task", TASKS)
def test_a_task_runs_without_files_through_the_verbs(task: str, tmp_path: Path) -> None:
    name = f"ready/{task}"
    smaller = [word for change in SMALLER[task] for word in ("--set", change)]
    assert "devices with" in done("check", name, "--no-trial", *smaller)
    runs = []
    for server in ("sgd", "yogi"):
        runs.append(tmp_path / server)
        changes = ["learning=off", "stop.rounds=2", f"strategy.server.kind={server}"]
        words = [word for change in changes for word in ("--set", change)]
        done("run", name, *words, *smaller, "--executor", "inline", "--out", runs[-1])
        assert "FAIL" not in done("audit", runs[-1])
    assert "yogi" in done("compare", *runs)
    assert fedsim.load_run(runs[0]).devices["speed"].nunique() > 1


@pytest.mark.parametrize("task", TASKS)
def test_a_task_trains(task: str, tmp_path: Path) -> None:
    scenario = fedsim.load(f"ready/{task}", ["stop.rounds=1", *SMALLER[task]])
    result = fedsim.run(scenario, tmp_path / "run", executor="inline")
    assert 0 <= result.summary["accuracy"]["final"] <= 1
    assert result.summary["bytes"]["up"] > 0


@pytest.mark.long
@pytest.mark.parametrize("task", TASKS)
def test_a_task_learns_what_its_header_says(task: str, tmp_path: Path) -> None:
    rounds = fedsim.run(fedsim.load(f"ready/{task}"), tmp_path / "run").rounds
    accuracy = rounds["accuracy"].dropna()
    assert accuracy.iloc[-1] > LEARNT[task]
    assert accuracy.iloc[-4:].mean() > accuracy.iloc[:4].mean() + 0.1


@pytest.mark.parametrize("task", TASKS)
def test_the_full_form_is_as_published(task: str) -> None:
    scenario: Any = fedsim.load(f"ready/{task}_full")
    assert (
        scenario.population.devices,
        scenario.strategy.clients_per_round,
        scenario.training.batch_size,
        scenario.stop.rounds,
    ) == PUBLISHED[task]
    assert scenario.strategy.local_epochs == 1


@pytest.mark.parametrize("task", TASKS)
def test_the_full_form_says_which_data_to_fetch(task: str, tmp_path: Path) -> None:
    scenario = fedsim.load(f"ready/{task}_full", [f"data.root={tmp_path}"])
    with pytest.raises(DataError, match=f"fedsim data fetch {task} --root"):
        fedsim.run(scenario, tmp_path / "run", executor="inline")


@pytest.mark.parametrize("task", DRAWN)
def test_the_full_form_runs_on_drawn_images(task: str, tmp_path: Path) -> None:
    changes = ["learning=off", "stop.rounds=1", f"data.source={DRAWN[task]}", *SMALLER[task]]
    result = fedsim.run(fedsim.load(f"ready/{task}_full", changes), tmp_path / "run")
    assert result.summary["bytes"]["down"] > 0
    assert result.devices["selected"].sum() == 10
