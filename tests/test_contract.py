"""Every strategy passes the public contract, and one that breaks it is caught."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim.strategies
from fedsim.plugin import (
    Client,
    Contents,
    Device,
    Header,
    Instruction,
    LocalResult,
    Server,
    SynchronousClient,
    TaskEnd,
    pure,
)
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.round_params import AggregatingParams
from fedsim.testing import StrategyContract, assert_sound, eventful_world, quiet_world, run
from tests.outside_parts import Trickle
from tests.test_runs import STRATEGIES


@pytest.mark.parametrize(
    "strategy", STRATEGIES, ids=lambda strategy: strategy["kind"].split(":")[-1]
)
class TestEveryStrategy(StrategyContract):
    @pytest.fixture(autouse=True)
    def _given(self, strategy: dict[str, Any]) -> None:
        self.strategy = strategy
        self.goes_by_tests = strategy.get("mode") == "credits"  # TiFL's


TOP = {"kind": "top-k", "share": 0.3, "error_feedback": False}
PARTS = [
    (
        {
            "kind": "fedavg",
            "clients_per_round": 5,
            "local_epochs": 2,
            "selection": "least-asked",
            "aggregation": "multi-krum",
        }
        | {"every": "25 s", "server": {"kind": "yogi", "lr": 0.03}}
        | {"deadline": {"kind": "quantile", "over": 5, "most": "40 s"}},
        {
            "messages": {
                "up": {"kind": "qsgd", "levels": 7, "error_feedback": True},
                "down": "float16",
            }
        },
    ),
    (
        {
            "kind": "flexcfl",
            "groups": 2,
            "clients_per_round": 8,
            "moment": {"devices": 4},
            "server": "adagrad",
        }
        | {"aggregation": {"kind": "trimmed-mean", "share": 0.3}},
        {"messages": {"up": {"kind": "random-k", "share": 0.6}, "down": "int8"}},
    ),
    (
        {
            "kind": "ifca",
            "groups": 2,
            "clients_per_round": 10,
            "local_epochs": 1,
            "aggregation": "krum",
        }
        | {"server": {"kind": "sgd", "momentum": 0.5, "nesterov": True}},
        {
            "messages": {"up": "sign", "down": "bfloat16"},
            "malicious": {"attack": "scaled", "share": 0.1},
        },
    ),
    (
        {"kind": "scaffold", "clients_per_round": 4, "deadline": "30 s"},
        {"messages": {"up": {"kind": "top-k", "share": 0.1}}},
    ),
    (
        {"kind": "ifca-mig", "groups": 2, "clients_per_round": 4, "deadline": "30 s"}
        | {"selection": {"kind": "power-of-choice", "candidates": 8, "patience": "20 s"}},
        {"messages": {"down": {"dtype": "float16"}}},
    ),
    (
        {"kind": "fedper", "clients_per_round": 5, "deadline": "30 s", "server": "adam"}
        | {"selection": {"kind": "power-of-choice", "samples": 7, "patience": "20 s"}},
        {
            "model": {"kind": "mlp", "hidden": [7]},
            "messages": {"up": {"kind": "top-k", "share": 0.1}, "down": "int8"},
        }
        | {"malicious": {"attack": "gaussian", "share": 0.1}},
    ),
    (
        {
            "kind": "fpfc",
            "clients_per_round": 5,
            "lam": 0.3,
            "over_selection": 1.4,
            "layers": "last",
            "deadline": "30 s",
        }
        | {
            "selection": {
                "kind": "favor",
                "target": 0.9,
                "components": 3,
                "hidden": 8,
                "patience": "20 s",
            }
        },
        {
            "model": {"kind": "mlp", "hidden": [7]},
            "messages": {"up": {"kind": "top-k", "share": 0.1}, "down": "int8"},
        }
        | {"malicious": {"attack": "gaussian", "share": 0.1}},
    ),
    (
        {"kind": "scaffold", "option": "I", "clients_per_round": 9, "deadline": "30 s"}
        | {"selection": {"kind": "flanp", "accuracy": 50.0, "patience": "5 s"}},
        {},
    ),
    (
        {
            "kind": "moon",
            "clients_per_round": 3,
            "selection": {"kind": "oort", "pacer_step": "5 s", "window": 1},
        },
        {"model": {"kind": "mlp", "hidden": [5]}, "training": {"lr": 0.1, "batch_size": 64}},
    ),
    (
        {
            "kind": "heterofl",
            "clients_per_round": 5,
            "deadline": "30 s",
            "server": "adam",
            "redraw": True,
        },
        {"model": {"kind": "mlp", "hidden": [9]}, "messages": {"up": TOP, "down": "int8"}}
        | {"malicious": {"attack": "sign-flip", "share": 0.1}},
    ),
    (
        {"kind": "flora", "clients_per_round": 5, "deadline": "60 s"},
        {
            "model": {"kind": "mlp", "hidden": [9], "lora": {"rank": 4}, "train": "*"},
            "messages": {"up": "int8"},
        },
    ),
    (
        {"kind": "fedavg", "clients_per_round": 5, "deadline": "60 s", "aggregation": "median"},
        {
            "model": {
                "kind": "mlp",
                "hidden": [9],
                "lora": {"rank": 4},
                "train": ["*.lora_?", "3.bias"],
                "keep": "3.*",
            }
        },
    ),
    (
        {"kind": "fedavg", "clients_per_round": 6, "deadline": "30 s"}
        | {
            "aggregation": {
                "kind": "private",
                "account": False,
                "noise": 0.5,
                "adaptive": {"count_noise": 0.6},
            }
        },
        {"malicious": {"attack": "label-flip", "share": 0.3}}
        | {
            "messages": {
                "up": {"kind": "float16", "encode_rate": "2 kB/s"},
                "down": {"encode_rate": "1 kB/s"},
            }
        },
    ),
    (
        {"kind": "scaffold", "clients_per_round": 7, "deadline": "20 s"}
        | {"secure_aggregation": {"neighbors": 4, "patience": "5 s", "mask_rate": "100 kB/s"}}
        | {"selection": {"kind": "power-of-choice", "candidates": 8, "patience": "20 s"}},
        {},
    ),
    (
        {
            "kind": "fednova",
            "clients_per_round": 5,
            "deadline": "20 s",
            "selection": {"kind": "fedcs", "time": "15 s"},
        },
        {},
    ),
    (
        {
            "kind": "feddyn",
            "clients_per_round": 5,
            "over_selection": 1.4,
            "selection": "least-available",
        },
        {},
    ),
    (
        {
            "kind": "fedbuff",
            "concurrency": 5,
            "buffer": 3,
            "server": {"kind": "sgd", "momentum": 0.5},
        },
        {},
    ),
    ({"kind": "ifca", "groups": 2, "clients_per_round": 5, "averaging": "gradients"}, {}),
    (
        {
            "kind": "lcfl",
            "groups": 2,
            "local_epochs": 2,
            "measure": "grad-cos",
            "moment": {"rounds": 2},
            "every": "25 s",
        },
        {},
    ),
]


@pytest.mark.parametrize(("strategy", "sections"), PARTS, ids=lambda value: value.get("kind", ""))
class TestPartsInAnyCombination(StrategyContract):
    @pytest.fixture(autouse=True)
    def _given(self, strategy: dict[str, Any], sections: dict[str, Any]) -> None:
        self.strategy, self.sections = strategy, sections
        self.goes_by_tests = "favor" in str(strategy)


def test_no_registered_strategy_is_left_out() -> None:
    # each is another with something changed
    aliases = {"fedgroup", "fesem-mig", "ifca", "fedbn", "fedper", "hetlora"}
    elsewhere = {
        "flower",
        "hierfavg",
    }  # tests/flower; in a network with edge servers: tests/strategies/test_hierfavg.py
    elsewhere |= {
        "diloco",
        "local-sgd",
    }  # where nobody comes or goes: tests/strategies/peers/test_peers.py
    elsewhere |= {strategy["kind"] for strategy, _ in PARTS}
    assert {strategy["kind"] for strategy in STRATEGIES} >= set(
        fedsim.strategies.STRATEGIES
    ) - aliases - elsewhere


class Forgetful(FedAvg[AggregatingParams]):  # keeps a truth outside of its state
    async def on_start(self) -> None:
        self.rounds = 0
        await super().on_start()

    async def aggregate(self) -> None:
        self.rounds += 1
        await super().aggregate()
        self.server.emit("count", rounds=self.rounds)


class Moody(FedAvg[AggregatingParams]):  # depends on how fast the work was done
    async def on_task_end(self, message: TaskEnd) -> None:
        import time

        await super().on_task_end(message)
        self.server.emit("mood", now=time.perf_counter())


class SilentClient(SynchronousClient[AggregatingParams]):
    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        return {"update": Header(result.update), "samples": Header(result.samples)}


class Silent(FedAvg[AggregatingParams]):  # its devices share a model that is never sent
    Client = SilentClient

    def contents(self, device: int) -> Contents:
        return {name: Header(value) for name, value in super().contents(device).items()}


class Restless(FedAvg[AggregatingParams]):  # looks for clients for ever
    def _wait(self) -> None:
        self.server.timer("retry", self.server.now + 600.0)


class Impatient(FedAvg[AggregatingParams]):  # ends the run when there is nobody to ask
    def _wait(self) -> None:
        self.server.stop("nobody is there")


class Hollow(FedAvg[AggregatingParams]):  # makes its rounds without anybody
    async def on_start(self) -> None:
        self.state["model"] = self.server.models.initial()
        for number in range(2):
            await self.server.finish_round(
                number, self.models(), selected=0, valid=0, slow=0, disconnected=0
            )


class Trusting(FedAvg[AggregatingParams]):  # believes that whoever is asked will answer
    async def on_task_end(self, message: TaskEnd) -> None:
        if message.outcome == "done":
            await super().on_task_end(message)


class Closed(FedAvg[AggregatingParams]):  # asks those who are there from the start
    def select(self) -> list[int]:
        first = self.state.setdefault(
            "first",
            [device for device in range(self.server.devices) if self.server.clients.joined(device)],
        )
        return self.server.clients.sample(
            self.params.clients_per_round, "select", self.state["round"], among=first
        )


class Pushy(FedAvg[AggregatingParams]):  # asks without looking who is there
    def select(self) -> list[int]:
        return [
            device for device in range(self.server.devices) if self.server.clients.joined(device)
        ]


@pure
def mean(models: list[Any]) -> Any:
    return np.mean(models, axis=0, dtype=np.float32)


class Gullible(FedAvg[AggregatingParams]):  # takes in whatever it is sent
    async def aggregate(self) -> None:
        updates, tasks = zip(
            *((entry["update"], entry["task"]) for entry in self.state["received"]), strict=True
        )
        self.state["model"] = self.server.models.apply(mean, updates)
        self.server.emit(
            "aggregate",
            round=self.state["round"],
            tasks=tasks,
            weights=[1 / len(tasks)] * len(tasks),
        )


# weighs updates by how well they do on their clients' test samples
class Marking(FedAvg[AggregatingParams]):
    async def aggregate(self) -> None:
        for entry in self.state["received"]:
            entry["samples"] = await self.server.models.test(entry["update"], [entry["device"]])
        await super().aggregate()


class Careless(Trickle):  # does not say which updates became a model
    async def on_start(self) -> None:
        server, finish = self.server, self.server.finish_round
        server.finish_round = lambda number, models, updates=(), **counts: finish(
            number, models, **counts
        )  # type: ignore[method-assign, misc, assignment]
        await super().on_start()


class Hasty(FedAvg[AggregatingParams]):  # goes on with a task that there was not
    def _start(
        self, device: int, contents: Contents, job: str = "train", *, continues: bool = False
    ) -> int:
        return super()._start(device, contents, job, continues=True)


class Nosy(FedAvg[AggregatingParams]):  # its server half looks for what only devices know
    async def on_start(self) -> None:
        for name in (
            "facts",
            "state",
            "label_counts",
            "samples",
            "population",
            "client",
            "devices",
        ):
            assert isinstance(getattr(self.server, name, 0), int), (
                f"the server half can see {name!r}"
            )
        await super().on_start()


def test_no_half_has_a_name_for_the_others_things() -> None:
    assert (
        run(quiet_world({"kind": "tests.test_contract:Nosy", "clients_per_round": 4}, rounds=1))[
            "status"
        ]
        == "done"
    )
    parameters = inspect.signature(Client.__init__).parameters
    # what a client half is made from holds no way to the server
    assert list(parameters) == ["self", "params", "setting"]
    public = {name for name in dir(Device) if not name.startswith("_")}
    assert (
        not {"server", "strategy", "dispatch", "simulation", "now", "population", "test"} & public
    )
    assert not {"client", "devices_of", "population", "tasks", "learner"} & set(dir(Server))


def contract(name: str) -> StrategyContract:
    found = StrategyContract()
    clients = "clients" if name == "Careless" else "clients_per_round"
    found.strategy = {"kind": f"tests.test_contract:{name}", clients: 4}
    return found


@pytest.mark.parametrize(
    ("name", "check", "says"),
    [
        (
            "Forgetful",
            "it_goes_on_as_if_it_had_not_been_stopped",
            "no attribute 'rounds'|events_sha256",
        ),
        ("Marking", "no_test_sample_steers_it", "goes by test samples"),
        ("Closed", "newcomers_and_leavers", "no newcomer was ever asked"),
        ("Pushy", "newcomers_and_leavers", "asked again although"),
        ("Trusting", "devices_vanish_at_any_instant", "made no 6 rounds"),
        ("Impatient", "an_hour_with_nobody", "nobody is there"),
        ("Hollow", "an_hour_with_nobody", "before anybody had come"),
        ("Restless", "everybody_leaves", "waited a day"),
        (
            "Silent",
            "time_and_bytes_without_learning",
            "share the model 'global', but nothing was sent",
        ),
        (
            "Careless",
            "devices_vanish_at_any_instant",
            "What to do: pass each update that went into a model to .*Measured",
        ),
        (
            "Hasty",
            "an_hour_with_nobody",
            "asked in round 0 with continues=True, but has done nothing; .* leave 'continues' out",
        ),
        ("Gullible", "training_that_diverges", "not finite"),
    ],
)
def test_a_broken_strategy_is_refused(name: str, check: str, says: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, AttributeError, fedsim.SimulationError), match=says):
        getattr(contract(name), f"test_{check}")(tmp_path)


def test_a_strategy_that_depends_on_real_time_is_refused() -> None:
    with pytest.raises(AssertionError):
        contract("Moody").test_workers_executors_and_real_delays_change_nothing()


def test_in_an_eventful_world_all_happens_that_it_promises(tmp_path: Path) -> None:
    sections = eventful_world({"kind": "fedavg", "clients_per_round": 6}, seed=5)
    run(sections, tmp_path / "run")
    events = assert_sound(tmp_path / "run").events
    assert {"arrival", "departure", "shift"} <= {event["kind"] for event in events}
    assert {"done", "lost"} <= {event["outcome"] for event in events}
    assert (tmp_path / "run" / "checkpoint").is_dir()
