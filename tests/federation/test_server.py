"""The server's face as strategies of an outsider use it: records that the base makes, and hooks
of parts with a default.
"""

from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import pytest

import fedsim
from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.federation.events import COUNTED_AS, VISIBLE, RoundCount, VisibleOutcome
from fedsim.federation.messages_spec import MessagesSpec
from fedsim.plugin import (
    Availability,
    Codec,
    Coded,
    FedAvg,
    Measured,
    Selection,
    Span,
    Strategy,
    StrategyParams,
)
from fedsim.records.reading import RunFolder
from fedsim.strategies.round_state import SynchronousState
from fedsim.testing import assert_sound, go_on, run, run_until
from fedsim.world.steps import Cause
from tests.outside_parts import Trickle

WORLD: dict[str, Any] = {
    "learning": "off",
    "model": {"kind": "size", "bytes": "1 kB"},
    "population": {"devices": 8, "speed": "10 samples/s", "samples": {"low": 10, "high": 40}},
    "stop": {"rounds": 6},
}


class Scored(Trickle):
    """Records what it aggregates itself."""

    async def on_start(self) -> None:
        self.state["tasks"] = []
        await super().on_start()

    async def on_task_end(self, message: Any) -> None:
        tasks, version = [message.task], self.state["version"]
        if message.outcome == "done":
            self.server.emit(
                "aggregate",
                round=version,
                tasks=tasks,
                weights=[0.1],
                staleness=[version - message.round],
            )
        await super().on_task_end(message)


def aggregates(kind: str, folder: Path) -> list[dict[str, Any]]:
    run(WORLD | {"strategy": {"kind": kind, "clients": 3}}, folder)
    return [event for event in assert_sound(folder).events if event["kind"] == "aggregate"]


def test_the_base_records_what_became_a_model_unless_the_strategy_has(tmp_path: Path) -> None:
    made = aggregates("tests.outside_parts:Trickle", tmp_path / "made")
    recorded = aggregates("tests.federation.test_server:Scored", tmp_path / "recorded")
    assert len(made) == len(recorded) == 6
    assert [event["data"]["tasks"] for event in made] == [
        event["data"]["tasks"] for event in recorded
    ]
    assert {event["data"]["weights"][0] for event in made} == {1.0}
    assert {event["data"]["weights"][0] for event in recorded} == {0.1}
    stale = [event["data"].get("staleness", [0]) for event in made]
    assert stale == [event["data"]["staleness"] for event in recorded]
    assert max(stale) > [0]


class Doubled(Trickle):
    """Names each of its updates twice, with weights 3 and 1."""

    async def on_start(self) -> None:
        finish = self.server.finish_round

        async def twice(number: int, models: Any, updates: Any = (), **counts: float) -> bool:
            (update,) = updates
            return await finish(
                number,
                models,
                [update._replace(weight=3.0), Measured(update.update, 1.0)],
                **counts,
            )

        self.server.finish_round = twice  # type: ignore[method-assign, assignment]
        await super().on_start()


def test_an_update_is_recorded_once_with_its_share_of_the_weights(tmp_path: Path) -> None:
    made = aggregates("tests.federation.test_server:Doubled", tmp_path / "made")
    assert [event["data"]["weights"] for event in made] == [[1.0]] * 6
    assert len({event["data"]["tasks"][0] for event in made}) == 6


class Stuttering(Strategy):  # type: ignore[type-arg]
    """Finishes a round every second: 0, 1, 2, and then ``then``."""

    class Params(StrategyParams):
        then: int = 0

    async def on_start(self) -> None:
        self.state |= {"model": self.server.models.initial(), "numbers": [0, 1, 2]}
        self.state["numbers"].append(self.params.then)
        self.server.timer("end", 1.0)

    async def on_timer(self, name: str) -> None:
        if await self.server.finish_round(self.state["numbers"].pop(0), self.models()):
            self.server.timer("end", self.server.now + 1.0)

    def models(self) -> Any:
        return {"global": (self.state["model"], None)}


@pytest.mark.parametrize("finished", [1, 2, 3])
@pytest.mark.parametrize("then", [2, 1, 0])
def test_a_round_is_finished_once_across_a_checkpoint_too(
    finished: int, then: int, tmp_path: Path
) -> None:
    strategy = {"kind": "tests.federation.test_server:Stuttering", "then": then}
    sections = WORLD | {"strategy": strategy}
    message = rf"round {then} is finished after round 2; allowed is each round once, ascending"
    with pytest.raises(SimulationError, match=message):
        run(sections, tmp_path / "whole")
    assert run_until(sections, tmp_path / "cut", finished) == "interrupted"
    assert len(RunFolder(tmp_path / "cut").rounds) == finished
    with pytest.raises(SimulationError, match=message):
        go_on(sections, tmp_path / "cut")


class Paths(Availability):
    """On all the time; nothing but ``span``."""

    def span(self, device: int, time: float) -> Span:
        return Span((device + int(time // 10)) % 2 == 0, time // 10 * 10, time // 10 * 10 + 10)


def test_paths_of_an_outsider_have_all_other_methods() -> None:
    on, until = Paths().spans(np.arange(3), np.array([0.0, 5.0, 25.0]))
    assert (on.tolist(), until.tolist()) == ([True, False, True], [10.0, 10.0, 30.0])
    assert Paths().next_on(1, 3.0) == 10.0
    assert Paths().on(np.arange(3), 12.0).tolist() == [False, True, False]


class Keeping(Codec):
    """Keeps what it leaves out, and has no key that says so."""

    kind: str = "keeping"
    stores_residual: ClassVar[bool] = True  # type: ignore[misc]

    def bytes(self, parameters: int) -> float:
        return parameters


def test_every_outcome_of_a_task_is_one_that_the_server_sees_and_counts() -> None:
    of_tasks = set(get_args(Cause)) | {"done"}
    assert VISIBLE.keys() == of_tasks
    assert set(VISIBLE.values()) == COUNTED_AS.keys() == set(get_args(VisibleOutcome))
    assert set(COUNTED_AS.values()) == set(get_args(RoundCount))


class Former(FedAvg):
    """Reads the server by former names before the first round."""

    async def on_start(self) -> None:
        clients = self.server.clients
        with pytest.warns(DeprecationWarning, match=r"Clients.online is called idle_devices now"):
            assert clients.online() == clients.idle_devices() == [0, 1, 2]
        with pytest.warns(DeprecationWarning, match=r"Clients.arrived is called joined now"):
            assert clients.arrived(0)
        peer = self.server.peer(0)
        with pytest.warns(DeprecationWarning, match=r"Peer.online is called reachable now"):
            assert peer.online
        model = self.server.models.initial()
        with pytest.warns(DeprecationWarning, match=r"Peer.written is called encode now"):
            assert peer.written(model) == peer.encode(model) == (model, 2600.0)
        models = self.server.models
        with pytest.warns(DeprecationWarning, match=r"agreement is called consensus now"):
            assert await models.agreement(0, [model]) == await models.consensus(0, [model]) == {}
        with pytest.warns(DeprecationWarning, match=r"Coded.kept is called residual now"):
            assert Coded(model, model).kept is model
        await super().on_start()
        self.server.stop("all read")


def test_former_names_work_and_warn(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "learning": "off",
        "population": {"devices": 3},
        "strategy": {"kind": "tests.federation.test_server:Former", "clients_per_round": 1},
    }
    result = fedsim.run(fedsim.Scenario(**sections), tmp_path / "former")
    assert result.summary["stopped"] == "all read"


class Exact(Codec):
    """Sends three bytes a parameter, loses nothing, and so has no ``code``."""

    kind: str = "exact"
    is_lossless: ClassVar[bool] = True  # type: ignore[misc]

    def bytes(self, parameters: int) -> float:
        return 3 * parameters


def test_nothing_is_computed_for_a_lossless_codec(tmp_path: Path) -> None:
    strategy = {"kind": "fedavg", "clients_per_round": 2}
    sections = {
        "strategy": strategy,
        "stop": {"rounds": 1},
        "messages": {"up": f"{__name__}:Exact"},
    }
    sent = fedsim.run(fedsim.Scenario(**WORLD | sections), tmp_path / "exact").summary["bytes"]
    assert (sent["down"], sent["up"]) == (2000.0, 1500.0)


class Waiting(Selection):
    """Waits 7 s for answers, and has no key that says so."""

    kind: str = "waiting"
    patience_s: ClassVar[float] = 7.0  # type: ignore[misc]


def test_hooks_of_parts_need_no_key_of_a_certain_name() -> None:
    with pytest.raises((ScenarioError, ValueError), match="only devices remember"):
        MessagesSpec(down=Keeping())
    assert MessagesSpec(up=Keeping()).up.stores_residual
    assert Waiting().patience_s == 7.0


def test_former_fields_of_the_rounds_work_and_warn() -> None:
    state = SynchronousState(schedule_step=3, limit_s=9.0, optimiser={0: "momentum"})
    with pytest.warns(DeprecationWarning, match="SynchronousState.slot is called schedule_step"):
        assert state.slot == 3
    with pytest.warns(DeprecationWarning, match="SynchronousState.server is called optimiser"):
        assert state.server == {0: "momentum"}
    with pytest.warns(DeprecationWarning, match="SynchronousState.limit is called limit_s"):
        assert state.limit == 9.0
