"""Every strategy passes the public contract, and one that breaks it is caught."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedsim.plugin import TaskEnd
from fedsim.strategies import REGISTRY
from fedsim.strategies.fedavg import FedAvg
from fedsim.testing import StrategyContract, quiet_world
from tests.test_runs import STRATEGIES


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy["kind"].split(":")[-1])
class TestEveryStrategy(StrategyContract):
    @pytest.fixture(autouse=True)
    def _given(self, strategy: dict[str, Any]) -> None:
        self.strategy = strategy


def test_worlds_share_nothing_that_a_user_could_change() -> None:
    strategy: dict[str, Any] = {"kind": "fedavg", "more": {}}
    world = quiet_world(strategy)
    world["network"]["server"]["down"] = "changed"
    world["strategy"]["more"]["key"] = "changed"
    assert "changed" not in str(quiet_world(strategy))


def test_no_registered_strategy_is_left_out() -> None:
    aliases = {"fedgroup", "fesem-mig", "ifca"}  # each is another with one parameter changed
    assert {strategy["kind"] for strategy in STRATEGIES} >= set(REGISTRY) - aliases


class Forgetful(FedAvg):
    """Keeps a truth outside of its state."""

    async def on_start(self) -> None:
        self.rounds = 0
        await super().on_start()

    async def aggregate(self) -> None:
        self.rounds += 1
        await super().aggregate()
        self.server.emit("count", rounds=self.rounds)


class Moody(FedAvg):
    """Depends on how fast the work was done."""

    async def on_task_end(self, message: TaskEnd) -> None:
        import time

        await super().on_task_end(message)
        self.server.emit("mood", now=time.perf_counter())


class TestBrokenStrategiesAreCaught:
    strategies: ClassVar[dict[str, Mapping[str, Any]]] = {
        name: {"kind": f"tests.test_contract:{name}", "clients_per_round": 4} for name in ("Forgetful", "Moody")
    }

    def contract(self, name: str) -> StrategyContract:
        contract = StrategyContract()
        contract.strategy = self.strategies[name]
        return contract

    def test_state_outside_of_state(self, tmp_path: Path) -> None:
        with pytest.raises((AssertionError, AttributeError)):
            self.contract("Forgetful").test_it_goes_on_as_if_it_had_not_been_stopped(tmp_path)

    def test_real_time(self) -> None:
        with pytest.raises(AssertionError):
            self.contract("Moody").test_workers_executors_and_real_delays_change_nothing()
