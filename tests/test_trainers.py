"""Whole runs with trainers of torch's and of one's own, and strategies whose learning is their
own.
"""

import asyncio
import copy
import os
import shutil
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from pydantic import Field

import fedsim
from fedsim.clock.executors import Threads, WorkerProcesses, make_executor
from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.common.streams import Streams
from fedsim.learning.models import Logistic
from fedsim.learning.solvers.reference import flat_weights, load_weights, module_of
from fedsim.plugin import (
    Client,
    Device,
    Instruction,
    LocalResult,
    Opaque,
    Real,
    Reasons,
    Strategy,
    StrategyParams,
    TaskEnd,
    Traits,
    Work,
)
from fedsim.records.reading import RunFolder
from fedsim.running.runner import Job
from fedsim.strategies import STRATEGIES
from fedsim.testing import (
    FIGURES,
    StrategyContract,
    assert_same_run,
    assert_sound,
    eventful_world,
    go_on,
    quiet_world,
    run,
)
from fedsim.world.device_kinds import find_kind
from tests import own_trainers
from tests.benchmarks.hashes import OF_WORLDS, WORLDS
from tests.benchmarks.hashes import STRATEGIES as SAID
from tests.test_own_parts import EXECUTORS

ADAMW: dict[str, Any] = {
    "kind": "torch",
    "optimizer": "AdamW",
    "lr": 0.01,
    "batch_size": 32,
    "clip_norm": 1.0,
}
ADAMW |= {"schedule": {"name": "CosineAnnealingLR"}, "state": "kept"}
OWN: dict[str, Any] = {
    "kind": "tests.own_trainers:Steady",
    "lr": 0.05,
    "batch_size": 32,
    "state": "kept",
}
EARLY = OWN | {"kind": "tests.own_trainers:Satisfied"}
SENT: dict[str, Any] = {
    "kind": "torch",
    "optimizer": "Adam",
    "lr": 0.01,
    "batch_size": 32,
    "state": "sent",
}
STEPS_OF_SGD = {"fednova", "scaffold"}
FEDDYN = {"kind": "feddyn", "clients_per_round": 6, "local_epochs": 3}


@pytest.mark.parametrize("kind", [kind for kind in STRATEGIES if kind != "flower"])
def test_every_strategy_trains_by_torch_or_says_why_not(kind: str) -> None:
    sections = (
        WORLDS["tree" if kind == "hierfavg" else "star"]
        | OF_WORLDS.get(kind, {})
        | {"training": ADAMW}
    )
    sections |= {"strategy": {"kind": kind} | SAID.get(kind, {}), "stop": {"rounds": 2}}
    if kind in STEPS_OF_SGD:
        with pytest.raises(
            ScenarioError,
            match=rf"training.kind is 'torch', .* not for the strategy '{kind}': .*; allowed",
        ):
            run(sections)
        sections["training"] = {"kind": "torch", "lr": 0.05}
    assert run(sections, executor=Threads(4))["status"] == "done"


@pytest.mark.parametrize(
    "strategy",
    [
        {"kind": "lcfl", "groups": 2, "measure": "grad-cos"},
        {"kind": "lcfl", "groups": 2, "measure": "last-batch-cos"},
        {"kind": "ifca", "groups": 2, "averaging": "gradients"},
        {"kind": "fedavg", "selection": {"kind": "flanp", "accuracy": 50.0}},
        {"kind": "scaffold"},
    ],
    ids=str,
)
def test_who_counts_steps_of_sgd_refuses_others(strategy: dict[str, Any]) -> None:
    with pytest.raises(
        ScenarioError, match=r"training\.kind is .* by which a step is not one along a gradient"
    ):
        fedsim.Scenario(**quiet_world(strategy) | {"training": OWN})


class Contract(StrategyContract):
    strategy = FEDDYN | {"deadline": "30 s"}


@pytest.mark.parametrize("training", [ADAMW, EARLY, SENT], ids=["torch", "own", "sent"])
def test_workers_and_a_stop_change_nothing(training: dict[str, Any], tmp_path: Path) -> None:
    contract = Contract()
    contract.sections = {"training": training}
    if training is SENT:
        contract.strategy = {
            "kind": "fedprox",
            "mu": 0.01,
            "clients_per_round": 6,
            "local_epochs": 3,
            "deadline": "30 s",
        }
    if training is EARLY:  # by torch's all strategies are run with one worker and with four above
        contract.test_workers_executors_and_real_delays_change_nothing()
    contract.test_it_goes_on_as_if_it_had_not_been_stopped(tmp_path)


def test_a_trainer_that_stops_early_takes_the_time_of_its_batches_and_reports(
    tmp_path: Path,
) -> None:
    sections = quiet_world({"kind": "fedavg", "clients_per_round": 6, "local_epochs": 3}, rounds=2)
    sections |= {
        "training": EARLY | {"batch_size": 1},
        "population": {"devices": 24, "speed": "50 samples/s"},
    }
    sections["stop"] |= {"metrics": {"mean_loss": 0.0}}
    summary, folder = run(sections, tmp_path / "run"), assert_sound(tmp_path / "run")
    trained = [event for event in folder.events if event["step"] == "train"]
    begun = {event["task"]: event["time"] for event in trained if event["kind"] == "step-start"}
    seconds = [
        event["time"] - begun[event["task"]] for event in trained if event["kind"] == "step-end"
    ]
    told = [
        (event["device"], event["data"]["numbers"])
        for event in folder.events
        if event["kind"] == "reported"
    ]
    assert sorted(seconds) == pytest.approx(sorted(numbers["batches"] / 50 for _, numbers in told))
    assert len({numbers["batches"] for _, numbers in told}) > 5
    samples = {row["device"]: row["samples"] for row in folder.devices}
    for row in folder.rounds:
        assert row["valid"] == 6
        own = [
            (numbers["mean_loss"], samples[device])
            for device, numbers in told
            if numbers["round"] == row["round"]
        ]
        assert row["mean_loss"] == pytest.approx(
            sum(loss * n for loss, n in own) / sum(n for _, n in own)
        )
    assert summary["metrics"]["mean_loss"]["best_is"] == "least"
    with pytest.raises(
        ScenarioError, match="may stop early, and the strategy trains from what a device finds"
    ):
        run(sections | {"strategy": {"kind": "ifca", "groups": 2}})


def test_a_round_begins_with_the_mean_of_the_states_that_were_sent(tmp_path: Path) -> None:
    """Of two clients with full batches, against plain torch; and the bytes of moments and step
    counts, by hand.
    """
    sections: dict[str, Any] = {
        "data": {"source": "digits"},
        "population": {"devices": 2, "speed": "50 samples/s"},
    }
    sections |= {"training": SENT | {"batch_size": 10_000}, "stop": {"rounds": 3}}
    sections["strategy"] = {"kind": "fedavg", "clients_per_round": 2, "local_epochs": 2}
    summary, folder = run(sections, tmp_path / "run"), assert_sound(tmp_path / "run")
    scenario = fedsim.Scenario(**sections)
    streams = Streams(scenario.seed)
    data, architecture = scenario.data.build(2, streams), Logistic().architecture((64,), 10)
    weights = architecture.initial(streams.generator("strategy/init", 0))
    state: dict[int, dict[str, torch.Tensor]] = {}
    for _ in range(3):
        mean, moments, total = np.zeros(len(weights)), [], sum(data.train_sizes())
        for device in range(2):
            module = module_of(architecture)
            load_weights(list(module.parameters()), weights)
            optimiser = torch.optim.Adam(module.parameters(), 0.01)
            optimiser.load_state_dict(optimiser.state_dict() | {"state": copy.deepcopy(state)})
            x, y = (torch.from_numpy(part) for part in data.train_samples(data.shard(device, 0)))
            for _ in range(2):
                optimiser.zero_grad()
                torch.autograd.backward(torch.nn.functional.cross_entropy(module(x.flatten(1)), y))
                optimiser.step()
            mean += len(y) / total * flat_weights(list(module.parameters()))
            moments.append((len(y) / total, optimiser.state_dict()["state"]))
        weights = mean.astype(np.float32)
        state = {
            at: {
                name: sum(share * of[at][name] for share, of in moments)
                for name in moments[0][1][at]
            }
            for at in (0, 1)
        }
    found = folder.models()["global"]
    values = np.concatenate([found[name].ravel() for name in ("1.weight", "1.bias")])
    assert np.abs(values - weights).max() < 1e-6
    moved = {"model": 6 * 4 * 650, "update": 6 * 4 * 650, "optimiser": (4 + 6) * 4 * (2 * 650 + 2)}
    assert summary["bytes"]["by_purpose"] == moved
    assert run(sections | {"learning": "off"})["bytes"]["by_purpose"] == moved
    together = run(sections, executor=Threads(4))
    assert [together[name] for name in FIGURES] == [summary[name] for name in FIGURES]


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"training": SENT | {"optimizer": "SGD"}},
            "the trainer is 'SGD', of whose state no size is known",
        ),
        ({"training": OWN | {"state": "sent"}}, "the trainer is 'tests.own_trainers:Steady'"),
        ({"strategy": FEDDYN}, r"strategy\.kind is 'feddyn'"),
        ({"strategy": {"kind": "fedbuff"}}, r"strategy\.kind is 'fedbuff'"),
        ({"strategy": {"server": {"kind": "adam"}}}, r"strategy\.server is given"),
        ({"strategy": {"aggregation": {"kind": "median"}}}, r"strategy\.aggregation is 'median'"),
        (
            {"strategy": {"aggregation": {"kind": "private", "clip": 1.0, "noise": 1.0}}},
            r"strategy\.aggregation is 'private'",
        ),
        ({"strategy": {"secure_aggregation": {}}}, r"strategy\.secure_aggregation is given"),
        ({"messages": {"up": {"kind": "qsgd", "levels": 4}}}, r"messages\.up is 'qsgd'"),
        ({"messages": {"down": {"kind": "qsgd", "levels": 4}}}, r"messages\.down is 'qsgd'"),
        ({"malicious": {"share": 0.1, "attack": {"kind": "label-flip"}}}, "malicious is given"),
        (
            {"model": {"kind": "logistic", "keep": ["*.bias"]}},
            r"model\.keep or model\.send is given",
        ),
    ],
)
def test_a_state_is_sent_only_where_it_has_a_mean(sections: dict[str, Any], said: str) -> None:
    told = {"training": SENT} | sections
    told["strategy"] = {"kind": "fedavg"} | sections.get("strategy", {})
    with pytest.raises(
        ScenarioError, match=rf"training\.state is 'sent' and {said}.*; allowed are moments"
    ):
        fedsim.Scenario(**told)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_in_a_file_outside_of_any_package_it_is_the_same_run(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(own_trainers.__file__, tmp_path / "ours.py")
    monkeypatch.chdir(tmp_path)
    sections = eventful_world(FEDDYN, rounds=3) | {
        "training": OWN | {"kind": "./ours.py:Steady", "noise": 0.02}
    }
    inline, other = run(sections), run(sections, executor=make_executor(executor, workers=2))
    assert [inline[name] for name in FIGURES] == [other[name] for name in FIGURES]


@pytest.mark.parametrize(
    "strategy", [FEDDYN, {"kind": "fedprox", "mu": 0.1}], ids=lambda told: told["kind"]
)
def test_sgd_by_torch_and_by_closed_forms_is_the_same_run(
    strategy: dict[str, Any], tmp_path: Path
) -> None:
    for kind in ("sgd", "torch"):
        run(
            quiet_world(strategy, rounds=3)
            | {"training": {"kind": kind, "lr": 0.05, "batch_size": 8}},
            tmp_path / kind,
        )
    one, other = RunFolder(tmp_path / "sgd"), RunFolder(tmp_path / "torch")
    assert [event["time"] for event in one.events] == [event["time"] for event in other.events]
    # one sample of 360
    for name, error in (("train_loss", {"rel": 1e-5}), ("accuracy", {"abs": 0.003})):
        assert [row[name] for row in one.rounds] == pytest.approx(
            [row[name] for row in other.rounds], **error
        )
    for tensors, twins in zip(one.models().values(), other.models().values(), strict=True):
        assert all(np.allclose(tensors[name], twins[name], atol=1e-5) for name in tensors)


ENDED: list[str] = []
PI = find_kind("raspberry-pi-4", {}, "device")


class OwnParams(StrategyParams):
    kind: Literal["own"] = "own"
    bytes: float = 1000.0
    work: dict[str, float] = Field(default={"samples": 40.0})
    traits: ClassVar[Traits] = Traits(brings_learning=True)
    why_not: ClassVar[Reasons] = Reasons(resuming="it keeps things in a thread")


def doubled(values: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], int]:
    return values * 2, os.getpid()


class OwnClient(Client[OwnParams]):
    def real(self, device: Device, instruction: Instruction) -> Real:
        return Real(doubled, (instruction["values"],))

    def work(self, device: Device, instruction: Instruction) -> list[Work]:
        return [Work(**self.params.work, what="doubling")]

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> dict[str, Any]:
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
        assert self.server.clients.idle_devices() == [2]

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
    work = [
        event
        for event in folder.events
        if event["kind"] == "step-end" and event["step"] == "compute"
    ]
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
        (
            {"flops": 1e9},
            {"speed": None, "device": "raspberry-pi-4"},
            1e9 / (PI.flops * PI.flops_share),
        ),
    ],
)
def test_work_is_samples_flops_and_seconds(
    work: dict[str, float], population: dict[str, Any], seconds: float
) -> None:
    told = sections(work=work)
    told["population"] |= population
    job = Job(fedsim.Scenario(**told), None, Threads(1))
    assert asyncio.run(job.execute()).rows[0]["time"] == pytest.approx(1.5 + seconds, abs=1e-6)
    with pytest.raises(SimulationError, match=r"work in FLOPs needs population\.device"):
        run(sections(work={"flops": 1.0}))


class StoredParams(OwnParams):
    why_not: ClassVar[Reasons] = Reasons()


class Stored(Own):
    Params = StoredParams


def test_a_run_is_stopped_while_a_thread_runs_its_function_and_goes_on(tmp_path: Path) -> None:
    """In the first second both devices download, and their functions have begun on threads."""
    scenario = sections(kind=f"{__name__}:Stored")
    run(scenario, tmp_path / "whole")
    job = Job(fedsim.Scenario(**scenario), tmp_path / "cut", Threads(2))
    env = job.simulation.env
    env.declare_alarm(
        "interruption", lambda _, when: env.at(("interruption", 0), when, job.interrupt)
    )
    env.at(("interruption", 0), 0.5, job.interrupt)
    assert asyncio.run(job.execute()).summary["status"] == "interrupted"
    go_on(scenario, tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_its_jitter_does_not_depend_on_the_bytes_nor_on_workers(tmp_path: Path) -> None:
    """A few bytes more shift everything by their own time, and change no draw."""
    took, summaries = [], []
    for place, (size, executor) in enumerate(
        [(1000.0, None), (1000.0, Threads(2)), (1010.0, None)]
    ):
        told = sections(bytes=size)
        told["population"]["jitter"] = 0.3
        summaries.append(run(told, tmp_path / str(place), executor))
        steps = [
            event for event in RunFolder(tmp_path / str(place)).events if event["step"] == "compute"
        ]
        begins = {event["task"]: event["time"] for event in steps if event["kind"] == "step-start"}
        took.append(
            [
                event["time"] - begins[event["task"]]
                for event in steps
                if event["kind"] == "step-end"
            ]
        )
    assert took[0] == pytest.approx(took[2], abs=1e-8)
    assert len(set(took[0])) == 6
    assert [summaries[0][name] for name in FIGURES] == [summaries[1][name] for name in FIGURES]


class OddError(Exception):
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
        with pytest.raises(SimulationError, match=r"ended in .* \(exit status 3\)"):
            pool.submit(broken, "exit").result()
        assert pool.submit(doubled, np.ones(1)).result()[0].tolist() == [2.0]
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"model": {"kind": "logistic"}}, "model is not used by strategy.kind"),
        (
            {"population": {"devices": 4, "device": "laptop", "short_of_memory": "fewer-layers"}},
            "population.short_of_memory is 'fewer-layers', and .* does not say how much memory",
        ),
        ({"data": {"source": "digits"}}, "data is not used"),
        ({"checkpoint": {"rounds": 3}}, "can be resumed, but it keeps things in a thread"),
    ],
)
def test_sections_that_are_not_for_it_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        fedsim.Scenario(**sections() | section)
