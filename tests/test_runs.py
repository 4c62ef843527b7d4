"""Whole runs: how they end, what they leave, and what fedsim.run gives back, in a notebook too."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fedsim
from fedsim.clock.simulation import Simulation
from fedsim.lab import loading
from fedsim.lab.audit import audit
from fedsim.plugin import Server, Strategy, StrategyParams, TaskEnd
from fedsim.records.reading import RunFolder
from tests.calls import call


class EveryArrivalParams(StrategyParams):
    kind: str
    concurrency: int = 6


class EveryArrival(Strategy[EveryArrivalParams]):
    """A strategy of a user's own, without rounds: each update is mixed in and evaluated as it
    arrives.
    """

    Params = EveryArrivalParams

    async def on_start(self) -> None:
        self.state = {"model": self.server.models.initial(), "version": 0, "open": []}
        self.refill()

    def refill(self) -> None:
        free = self.params.concurrency - len(self.state["open"])
        for device in self.server.clients.sample(free, "select", self.state["version"]):
            self.state["open"].append(
                self.server.ask(device, {"model": self.state["model"]}, round=self.state["version"])
            )
        if not self.state["open"]:
            self.server.look_again("refill", 1.0)

    async def on_task_end(self, message: TaskEnd) -> None:
        if message.outcome == "done":
            self.state["model"] = self.server.models.mix(
                [(self.state["model"], 0.7), (message["update"], 0.3)]
            )
            self.server.emit("aggregate", tasks=[message.task], weights=[0.3])
            await self.server.finish_round(self.state["version"], self.models())
            self.state["version"] += 1
        self.state["open"].remove(message.task)
        self.refill()

    async def on_timer(self, name: str) -> None:
        self.refill()

    def models(self) -> Any:
        return {"global": (self.state["model"], None)}


STRATEGIES: list[dict[str, Any]] = [
    {"kind": "fedavg", "clients_per_round": 6, "local_epochs": 2, "deadline": "30 s"},
    {"kind": "fedprox", "clients_per_round": 5, "local_epochs": 3, "deadline": "20 s", "mu": 0.1},
    {"kind": "local", "clients_per_round": 7},
    {
        "kind": "cata-fed",
        "clients_per_round": 4,
        "deadline": "3 s",
        "clusters": 2,
        "smallest_part": 10,
        "rejoin": True,
    },
    {"kind": "cfl", "local_epochs": 2, "deadline": "30 s", "split_rounds": [1, 3]},
    {"kind": "fedasync", "concurrency": 6, "rho": 0.1},
    {"kind": "fedbuff", "concurrency": 7, "buffer": 3},
    {
        "kind": "tifl",
        "clients_per_round": 3,
        "tiers": 3,
        "mode": "credits",
        "interval": 2,
        "deadline": "30 s",
    },
    {
        "kind": "lcfl",
        "groups": 3,
        "local_epochs": 2,
        "participation": 0.5,
        "moment": {"rounds": 2, "participation": 0.3},
    },
    {
        "kind": "rfedavg",
        "clients_per_round": 6,
        "clustering": "kmeans",
        "kmeans_clusters": "ccs",
        "deadline": "30 s",
    },
    {"kind": "fesem", "groups": 3, "clients_per_round": 6, "local_epochs": 2, "deadline": "30 s"},
    {
        "kind": "flexcfl",
        "groups": 3,
        "clients_per_round": 6,
        "local_epochs": 2,
        "moment": {"devices": 3},
        "eta_g": 0.1,
        "deadline": "30 s",
    },
    {
        "kind": "ifca-mig",
        "groups": 3,
        "clients_per_round": 6,
        "local_epochs": 2,
        "deadline": "30 s",
    },
    {"kind": "scaffold", "clients_per_round": 5, "local_epochs": 2, "deadline": "30 s"},
    {"kind": "feddyn", "clients_per_round": 5, "local_epochs": 2, "alpha": 0.1, "deadline": "30 s"},
    {"kind": "fedat", "clients_per_round": 3, "tiers": 3},
    {
        "kind": "refl",
        "clients_per_round": 5,
        "over_selection": 1.6,
        "local_epochs": 2,
        "deadline": "12 s",
    },
    {"kind": "fednova", "clients_per_round": 5, "local_epochs": 3, "deadline": "20 s"},
    {"kind": "ditto", "clients_per_round": 5, "local_epochs": 2, "deadline": "30 s"},
    {"kind": "feddr", "clients_per_round": 5, "local_epochs": 2, "deadline": "30 s"},
    {"kind": "mifa", "clients_per_round": 5, "local_epochs": 2, "deadline": "30 s"},
    {"kind": "pacfl", "groups": 3, "clients_per_round": 6, "local_epochs": 2, "deadline": "30 s"},
    {"kind": "q-fedavg", "clients_per_round": 5, "local_epochs": 2, "q": 1.0, "deadline": "30 s"},
    {"kind": "ca2fl", "concurrency": 6, "buffer": 3},
    {"kind": "fedcompass", "concurrency": 6, "min_steps": 2, "max_steps": 12},
    {"kind": "fpfc", "clients_per_round": 5, "local_epochs": 2, "lam": 0.3, "deadline": "30 s"},
    {
        "kind": "fedrep",
        "clients_per_round": 5,
        "head": ["*.bias"],
        "head_epochs": 1,
        "deadline": "30 s",
    },
    {"kind": "pfedme", "clients_per_round": 5, "local_rounds": 3, "steps": 3, "deadline": "30 s"},
    {
        "kind": "fl-hc",
        "groups": 3,
        "local_epochs": 2,
        "participation": 0.5,
        "moment": {"rounds": 2, "participation": 0.3},
    },
    {"kind": "hypcluster", "groups": 3, "clients_per_round": 6, "deadline": "30 s"},
    {"kind": "d-psgd", "deadline": "30 s"},
    {
        "kind": "gossip",
        "deadline": "30 s",
        "topology": {"kind": "random-regular", "parameters": {"d": 4}, "every": 1},
    },
    {"kind": "epidemic", "deadline": "30 s", "sample_size": 2},
    {"kind": "tests.test_runs:EveryArrival"},
]


def test_evaluating_less_often_changes_no_model(small: dict[str, Any]) -> None:
    often, seldom = (
        fedsim.run(fedsim.Scenario(**small | {"evaluation": {"every": every}})).summary
        for every in (1, 8)
    )
    assert often["events_sha256"] != seldom["events_sha256"]
    assert often["models_sha256"] == seldom["models_sha256"]


def test_the_same_world_for_every_strategy_and_another_for_another_seed(
    small: dict[str, Any], tmp_path: Path
) -> None:
    columns = ("speed", "link_down", "link_up", "latency", "samples", "test_samples")
    small |= {"learning": "off", "stop": {"rounds": 1000, "simulated_time": "9 s"}}
    small["drift"] = {
        "kind": "swap-all",
        "probability": 0.3,
        "at": {"times": ["1 s", "3 s", "8 s"]},
    }
    worlds = []
    for number, change in enumerate(
        [*({"strategy": strategy} for strategy in STRATEGIES), {"seed": 4}]
    ):
        fedsim.run(fedsim.Scenario(**small | change), tmp_path / str(number), executor="inline")
        run = RunFolder(tmp_path / str(number))
        shifts = [
            (event["time"], event["device"], event["data"])
            for event in run.events
            if event["kind"] == "shift"
        ]
        worlds.append((shifts, [[row[name] for name in columns] for row in run.devices]))
    assert len(worlds[0][0]) > 6
    assert all(world == worlds[0] for world in worlds[:-1])
    assert all(one != other for one, other in zip(worlds[0], worlds[-1], strict=True))


def test_when_nobody_will_ever_come_the_run_ends_and_says_so(
    small: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "t.json").write_text('{"1": {"start": 0, "end": 100, "ready": [], "ok": true}}')
    small["data"] |= {"root": str(tmp_path)}
    small["population"]["availability"] = {"kind": "flash", "file": "t.json"}
    summary = fedsim.run(fedsim.Scenario(**small)).summary
    assert summary["rounds"] == 0
    assert summary["stopped"] == "no device will ever be there again"


def test_stop_at_a_simulated_time_or_an_accuracy(small: dict[str, Any], tmp_path: Path) -> None:
    small["stop"] = {"simulated_time": "100 s"}
    fedsim.run(fedsim.Scenario(**small), tmp_path / "run")
    assert RunFolder(tmp_path / "run").summary["simulated_s"] == 100.0
    assert not any(audit(tmp_path / "run").values())
    small["stop"] = {"rounds": 100, "accuracy": 0.3}
    result = fedsim.run(fedsim.Scenario(**small))
    assert result.rows[-1]["accuracy"] >= 0.3
    assert all(row["accuracy"] < 0.3 for row in result.rows[:-1])


def test_a_strategy_that_fails_leaves_readable_books(small: dict[str, Any], tmp_path: Path) -> None:
    small["strategy"] = {"kind": "tests.test_runs:Failing"}
    with pytest.raises(ZeroDivisionError):
        fedsim.run(fedsim.Scenario(**small), tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    assert run.summary["status"] == "failed"
    assert run.summary["stopped"] == "an error ended it"
    assert len(run.events) > 0
    audited = call("audit", str(run.path))
    assert audited.output.startswith("the run failed: its records end at the error")
    assert audited.exit_code == 0, audited.output


class Failing(EveryArrival):
    async def on_task_end(self, message: TaskEnd) -> None:
        await super().on_task_end(message)
        if self.state["version"] == 3:
            raise ZeroDivisionError("on purpose")


def test_a_server_asks_only_idle_devices(small: dict[str, Any]) -> None:
    simulation = Simulation(fedsim.Scenario(**small | {"learning": "off"}))
    server: Server = simulation.installed.server
    device = server.clients.idle_devices()[0]
    server.ask(device, {"model": server.models.initial()})
    with pytest.raises(fedsim.SimulationError, match=f"device {device} still works"):
        server.ask(device, {"model": server.models.initial()})
    assert device not in server.clients.idle_devices()
    assert device not in server.clients.sample(20, "x")


RESULT = {
    "learning": "off",
    "population": {"devices": 2, "samples": [20, 40], "speed": "10 samples/s"},
    "strategy": {"kind": "fedavg", "clients_per_round": 2},
    "stop": {"rounds": 1},
}


def test_a_result_is_a_loaded_run(tmp_path: Path) -> None:
    result = fedsim.run(fedsim.Scenario(**RESULT), tmp_path / "run", executor="inline")
    loaded = fedsim.load_run(tmp_path / "run")
    assert isinstance(result, fedsim.LoadedRun)
    assert result.folder == result.path == tmp_path / "run"
    pd.testing.assert_frame_equal(result.devices, loaded.devices)
    assert len(result.events) == len(loaded.events)
    assert result.scenario == loaded.scenario
    assert result.figure("timeline").axes
    result = fedsim.run(fedsim.Scenario(**RESULT), executor="inline")
    assert (result.folder, len(result.rounds), result.summary["rounds"]) == (None, 1, 1)
    with pytest.raises(fedsim.RunFolderError, match=r"kept in no folder: fedsim.run"):
        result.devices  # noqa: B018


def test_run_works_where_an_event_loop_runs(small: dict[str, Any], tmp_path: Path) -> None:
    scenario = fedsim.Scenario(**small)

    async def cell(executor: str) -> fedsim.Result:
        return fedsim.run(scenario, tmp_path / "cell", executor=executor)

    with pytest.raises(fedsim.ScenarioError, match="did you mean 'inline'"):
        asyncio.run(cell("inlin"))
    inside, outside = asyncio.run(cell("inline")), fedsim.run(scenario, executor="inline")
    for key in ("events_sha256", "models_sha256"):
        assert inside.summary[key] == outside.summary[key]


def test_rounds_and_what_an_accuracy_took(small: dict[str, Any], tmp_path: Path) -> None:
    result = fedsim.run(fedsim.Scenario(**small), tmp_path / "run", executor="inline")
    rounds = result.rounds
    middle = sorted(rounds["accuracy"])[4]
    place = int((rounds["accuracy"] >= middle).idxmax())
    took = result.costs_to(middle)
    assert (took["rounds"], took["time"]) == (place + 1, rounds["time"][place])
    assert took["bytes"] == rounds[["bytes_down", "bytes_up"]][: place + 1].to_numpy().sum()
    assert rounds["accuracy"].max() < 1
    assert all(value != value for value in result.costs_to(1.0).values())
    loaded = fedsim.load_run(tmp_path / "run")
    assert loaded.costs_to(middle)["bytes"] == took["bytes"]
    pd.testing.assert_frame_equal(rounds, loaded.rounds)
    assert rounds["round"].tolist() == [row["round"] for row in result.rows]
    assert fedsim.run(
        fedsim.Scenario(**small | {"stop": {"simulated_time": "1 ms"}}), executor="inline"
    ).rounds.empty


def test_an_interrupted_cell_ends_the_run(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when Jupyter's stop button raises in the thread of the cell, which waits for the run's."""

    class Impatient(loading.ThreadPoolExecutor):
        def submit(self, *work: Any) -> Any:
            future = super().submit(*work)

            def result() -> None:
                while not (tmp_path / "run" / "checkpoint").is_dir():
                    time.sleep(0.01)
                raise KeyboardInterrupt

            future.result = result
            return future

    async def cell() -> None:
        scenario = fedsim.Scenario(
            **small | {"stop": {"rounds": 100_000}, "checkpoint": {"rounds": 1}}
        )
        monkeypatch.setattr(loading, "ThreadPoolExecutor", Impatient)
        fedsim.run(scenario, tmp_path / "run", executor="inline")

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(cell())
    assert threading.active_count() == before


def test_all_show_themselves_in_short_and_without_escapes(
    small: dict[str, Any], tmp_path: Path
) -> None:
    scenario = fedsim.Scenario(**small | {"name": "<b>odd</b>"})
    result = fedsim.run(scenario, tmp_path / "run", executor="inline")
    for thing in (scenario, result, fedsim.load_run(tmp_path / "run")):
        assert len(repr(thing)) < 400
        assert "fedavg" in repr(thing)
        shown = thing._repr_html_()
        assert ("<table>" in shown, "fedavg" in shown, "<b>" in shown) == (True, True, False)

    folder = tmp_path / "a\x1b[31mb"
    result = fedsim.run(
        fedsim.Scenario(**small | {"learning": "off", "stop": {"rounds": 1}}), folder
    )
    told = (folder / "summary.json").read_text()
    (folder / "summary.json").write_text(
        told.replace('"name": "small"', '"name": "x\\u001b]0;owned\\u0007\\u202e"')
    )
    shown = repr(fedsim.load_run(folder))
    assert r"scenario x\u001b]0;owned\u0007\u202e" in shown
    assert all(text.isprintable() for text in (shown, repr(result)))
