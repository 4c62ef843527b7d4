"""What a strategy needs that brings its own learning: real work, steps without a ref, contents, figures and models."""

import asyncio
import os
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from pydantic import Field

import fedsim
from fedsim.errors import ScenarioError, SimulationError
from fedsim.executors.processes import WorkerProcesses
from fedsim.executors.threads import Threads
from fedsim.plugin import Client, Device, Instruction, LocalResult, Opaque, Real, Strategy, StrategyParams, TaskEnd, Work
from fedsim.records.reading import RunFolder
from fedsim.running.runner import Job
from fedsim.testing import FIGURES, assert_sound, run
from fedsim.world.device_kinds import find_kind

ENDED: list[str] = []
PI = find_kind("raspberry-pi-4", {}, "device")


class OwnParams(StrategyParams):
    kind: Literal["own"] = "own"
    bytes: float = 1000.0
    work: dict[str, float] = Field(default={"samples": 40.0})
    brings_learning: ClassVar[bool] = True

    @property
    def not_restorable(self) -> str | None:
        return "it keeps things in a thread"


def doubled(values: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], int]:
    return values * 2, os.getpid()


class OwnClient(Client[OwnParams]):
    def real(self, device: Device, instruction: Instruction) -> Real:
        return Real(doubled, (instruction["values"],))

    def work(self, device: Device, instruction: Instruction) -> list[Work]:
        return [Work(**self.params.work, what="doubling")]

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> dict[str, Any]:
        return {"answer": Opaque(instruction.value[0], 500.0)}


class Own(Strategy[OwnParams]):
    """Asks device 0 and 1, three times, and takes the sum of what they say."""

    Params = OwnParams
    Client = OwnClient

    async def on_start(self) -> None:
        assert self.server.clients.reachable() == [0, 1, 2]
        self.state |= {"round": 0, "sum": np.ones(2, np.float64)}
        self._ask()

    def _ask(self) -> None:
        self.state["open"] = []
        for device in (0, 1):
            contents = {"values": Opaque(self.state["sum"], self.params.bytes)}
            self.state["open"].append(self.server.ask(device, contents, round=self.state["round"]))
        assert self.server.clients.reachable() == [0, 1, 2]
        assert self.server.clients.online() == [2]

    async def on_task_end(self, message: TaskEnd) -> None:
        self.state["open"].remove(message.task)
        self.state["sum"] = self.state["sum"] + message["answer"]
        if not self.state["open"]:
            figures = {"accuracy": 0.3 * (1 + self.state["round"])}
            if self.server.note_round(self.state["round"], figures, selected=2, valid=2):
                self.state["round"] += 1
                self._ask()

    def models(self) -> dict[str, Any]:
        return {}

    def tensors(self) -> dict[str, dict[str, Any]]:
        return {"global": {"sum": self.state["sum"]}}

    def on_end(self) -> None:
        ENDED.append("ended")


def sections(**strategy: Any) -> dict[str, Any]:
    device = {"down": "8 kbit/s", "up": "8 kbit/s"}
    return {
        "population": {"devices": 3, "speed": "20 samples/s"},
        "network": {"kind": "star", "device": device},
        "strategy": {"kind": f"{__name__}:Own"} | strategy,
        "stop": {"rounds": 100, "accuracy": 0.85},
    }


def test_times_bytes_figures_and_models_are_its_own(tmp_path: Path) -> None:
    ENDED.clear()
    summary = run(sections(), tmp_path / "run")
    folder = assert_sound(tmp_path / "run")
    # 1 s down, 40 samples at 20 a second, half a second up
    assert [row["time"] for row in folder.rounds] == pytest.approx([3.5, 7.0, 10.5], abs=1e-6)
    assert [row["accuracy"] for row in folder.rounds] == pytest.approx([0.3, 0.6, 0.9])
    assert summary["stopped"] == "accuracy 0.9000 reached"
    assert summary["bytes"]["by_purpose"] == {"values": 6000.0, "answer": 3000.0}
    work = [event for event in folder.events if event["kind"] == "step-end" and event["step"] == "compute"]
    assert [event["data"] for event in work] == [{"samples": 40.0, "what": "doubling"}] * 6
    (tensors,) = folder.models().values()
    assert tensors["sum"].dtype == np.float64
    assert tensors["sum"].tolist() == [125.0, 125.0]  # 5 ** 3
    assert ENDED == ["ended"]
    assert not any((tmp_path / "run" / "checkpoint").glob("*"))


@pytest.mark.parametrize(
    ("work", "population", "seconds"),
    [
        ({"seconds": 3.0, "samples": 20.0}, {}, 4.0),
        ({"flops": 6e6}, {"reference_flops": 1e5}, 3.0),
        ({"flops": 1e9}, {"speed": None, "device": "raspberry-pi-4"}, 1e9 / (PI.flops * PI.flops_share)),
    ],
)
def test_work_is_samples_flops_and_seconds(work: dict[str, float], population: dict[str, Any], seconds: float) -> None:
    told = sections(work=work)
    told["population"] |= population
    job = Job(fedsim.Scenario(**told), None, Threads(1))
    assert asyncio.run(job.execute()).rows[0]["time"] == pytest.approx(1.5 + seconds, abs=1e-6)
    with pytest.raises(SimulationError, match="counted in FLOPs, but nothing says"):
        run(sections(work={"flops": 1.0}))


def test_its_jitter_does_not_depend_on_the_bytes_nor_on_workers(tmp_path: Path) -> None:
    """A few bytes more shift everything by their own time, and change no draw."""
    took, summaries = [], []
    for place, (size, executor) in enumerate([(1000.0, None), (1000.0, Threads(2)), (1010.0, None)]):
        told = sections(bytes=size)
        told["population"]["jitter"] = 0.3
        summaries.append(run(told, tmp_path / str(place), executor))
        steps = [event for event in RunFolder(tmp_path / str(place)).events if event["step"] == "compute"]
        begins = {event["task"]: event["time"] for event in steps if event["kind"] == "step-start"}
        took.append([event["time"] - begins[event["task"]] for event in steps if event["kind"] == "step-end"])
    assert took[0] == pytest.approx(took[2], abs=1e-8)
    assert len(set(took[0])) == 6
    assert [summaries[0][name] for name in FIGURES] == [summaries[1][name] for name in FIGURES]


class OddError(Exception):
    """Cannot be made again from what it says."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("odd")


def broken(why: str) -> None:
    if why == "exit":
        os._exit(3)
    print("what it prints is no answer")
    raise OddError(1, 2)


def test_processes_tell_of_what_goes_wrong() -> None:
    pool = WorkerProcesses(1)
    try:
        assert pool.submit(doubled, np.ones(1)).result()[1] != os.getpid()
        with pytest.raises(SimulationError, match="OddError: odd"):
            pool.submit(broken, "raise").result()
        with pytest.raises(SimulationError, match=r"ended while it worked \(exit status 3\)"):
            pool.submit(broken, "exit").result()
        assert pool.submit(doubled, np.ones(1)).result()[0].tolist() == [2.0]
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"model": {"kind": "logistic"}}, "model is not used by strategy.kind"),
        ({"data": {"source": "digits"}}, "data is not used"),
        ({"checkpoint": {"rounds": 3}}, "can be resumed, but it keeps things in a thread"),
    ],
)
def test_sections_that_are_not_for_it_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        fedsim.Scenario(**sections() | section)
