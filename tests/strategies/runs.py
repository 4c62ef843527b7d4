"""Runs that are made for the tests of strategies, and what these look up in them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedsim
from fedsim.clock.simulation import Record, Simulation
from fedsim.lab.audit import audit
from fedsim.records.reading import RunFolder
from fedsim.running.assembly import Run
from tests.strategies.worlds import Sections

Weights = NDArray[np.float32]


def made(sections: Sections) -> Run:
    """A run that has not begun."""
    run: Run = Simulation(fedsim.Scenario(**sections)).installed
    return run


def ran(sections: Sections, folder: Path) -> RunFolder:
    """The folder of a run, which passes its audit."""
    fedsim.run(fedsim.Scenario(**sections), folder, executor="inline")
    found = audit(folder)
    assert not any(found.values()), found
    return RunFolder(folder)


def played(sections: Sections) -> tuple[Run, list[Record]]:
    """A run that is over, to look into, and its records."""

    async def play() -> tuple[Run, list[Record]]:
        simulation = Simulation(fedsim.Scenario(**sections))
        records = [record async for record in simulation]
        return simulation.installed, records

    return asyncio.run(play())


def weights(run: Run, models: Sequence[Any] | None = None) -> list[Weights]:
    """The values of models, by default those of the strategy's groups."""
    return asyncio.run(
        run.learner.values(run.strategy.state["models"] if models is None else models)
    )


def model_of(run: Run) -> Weights:
    """The values of the global model."""
    return weights(run, [run.strategy.state["model"]])[0]


def model_after(sections: Sections) -> Weights:
    """The global model at the end of a run."""
    return model_of(played(sections)[0])


def all_after(sections: Sections) -> tuple[Weights, Weights]:
    """The global model at the end of a run, [d], and those of the devices that have one of their
    own, [devices, d].
    """
    run, _ = played(sections)
    own = run.strategy.state["own"]
    return model_of(run), np.array(weights(run, [own[device] for device in sorted(own)]))


def initial_weights(sections: Sections) -> Weights:
    run = made(sections)
    return weights(run, [run.learner.initial()])[0]


def of_kind(run: RunFolder, kind: str) -> list[dict[str, Any]]:
    return [event for event in run.events if event["kind"] == kind]


def told(records: Sequence[Record], kind: str) -> list[dict[str, Any]]:
    """The fields of the records of a kind."""
    return [record.fields for record in records if record.kind == kind]


def trainings(run: RunFolder) -> list[dict[str, Any]]:
    """The ends of local trainings."""
    return [event for event in of_kind(run, "step-end") if event["step"] == "train"]


def ends_of(run: RunFolder) -> list[str]:
    """The outcome of each device's only task, by device."""
    return [
        event["outcome"]
        for event in sorted(of_kind(run, "task-end"), key=lambda event: event["device"])
    ]


def moved(run: RunFolder) -> dict[str, float]:
    """Bytes by purpose."""
    return run.summary["bytes"]["by_purpose"]  # type: ignore[no-any-return]


def groups_of(run: RunFolder) -> list[int | None]:
    """The group of each device at the end."""
    return [row["group"] for row in run.devices]


def moves(run: RunFolder, why: str) -> list[dict[str, Any]]:
    return [event for event in of_kind(run, "assign") if event["data"]["why"] == why]
