"""Strategies of users that declare traits and reasons by their former names work, with a warning."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from fedsim.common.returns import guard
from fedsim.plugin import AggregatingParams, FedAvgParams, Reasons, StrategyParams, Traits
from fedsim.strategies.parts.aggregation import Protection
from fedsim.strategies.round_state import SynchronousState
from fedsim.toolbox.strategies.tifl import TiFLParams

OF_CREDITS = "tiers are chosen by the accuracy on their clients"
ignoring = pytest.mark.filterwarnings("ignore:StrategyParams:DeprecationWarning")


def declare_mine() -> type[StrategyParams]:
    """A strategy with former names in each form that they can have."""

    class Mine(FedAvgParams):
        secret: bool = False
        needs_labels: ClassVar[bool] = True
        added_up = ("update",)
        beside: ClassVar[str | None] = "single updates are logged"
        trains_more: ClassVar[str] = "a client trains twice"

        @property
        def unaccounted(self) -> object:
            return "secrets are told" if self.secret else super().unaccounted

        @property
        def not_by_device(self) -> Mapping[str, str]:
            return {"lr": "all learn alike"}

    return Mine


def declare_tiers() -> type[StrategyParams]:
    """A strategy that replaces by a former name what its base declares by the present one."""

    class Tiers(TiFLParams):
        @property
        def unaccounted(self) -> object:
            return super().unaccounted or "tiers are known"

    return Tiers


def declare_open() -> type[StrategyParams]:
    """A strategy that protects nothing."""

    class Open(AggregatingParams):
        kind: str = "open"

        def unprotected(self, protection: Protection) -> str | None:
            return super().unprotected(protection) or f"nothing is {protection}"

    return Open


def test_each_former_name_is_named_with_the_present_one() -> None:
    with pytest.warns(DeprecationWarning, match="is called") as warned:
        declare_mine()
    assert {str(warning.message) for warning in warned} == {
        "StrategyParams.needs_labels is called traits.needs_labels now",
        "StrategyParams.added_up is called traits.accumulated_contents now",
        "StrategyParams.beside is called why_not.private_aggregation now",
        "StrategyParams.trains_more is called why_not.training_limit now",
        "StrategyParams.unaccounted is called why_not.privacy_account now",
        "StrategyParams.not_by_device is called why_not.by_device now",
    }
    with pytest.warns(DeprecationWarning, match="unprotected is called why_not.private_aggreg"):
        declare_open()


@ignoring
def test_traits_and_reasons_by_former_names_count() -> None:
    params: Any = declare_mine()
    guard(params, "strategy")
    mine = params(secret=True)
    assert mine.traits == Traits(
        kept_by="scenario",
        averages_updates=True,
        needs_labels=True,
        accumulated_contents=("update",),
    )
    assert mine.why_not == Reasons(
        private_aggregation="single updates are logged",
        training_limit="a client trains twice",
        privacy_account="secrets are told",
        by_device={"lr": "all learn alike"},
    )
    with pytest.raises(ValidationError, match="but a client trains twice; allowed is 'round'"):
        params(deadline={"kind": "fixed", "time": "9 s", "since": "download"})


@ignoring
def test_super_has_the_present_value_of_a_former_name() -> None:
    mine, tiers, openly = declare_mine(), declare_tiers(), declare_open()
    made: list[Any] = [params.model_validate({}) for params in (mine, tiers, openly)]
    assert made[0].why_not.privacy_account is None
    assert made[1].why_not.privacy_account == "tiers are known"
    assert tiers.model_validate({"mode": "credits"}).why_not.privacy_account == OF_CREDITS
    assert made[2].why_not.private_aggregation == "nothing is private"
    assert made[2].why_not.robust_aggregation == "nothing is robust"


def test_reading_a_former_name_warns() -> None:
    tiers = TiFLParams(mode="credits")
    with pytest.warns(DeprecationWarning, match="unaccounted is called why_not.privacy_account"):
        assert tiers.unaccounted == OF_CREDITS
    with pytest.warns(DeprecationWarning, match="mixes_states is called traits.averages_updates"):
        assert FedAvgParams().mixes_states


def test_only_a_class_that_says_so_itself_averages_updates() -> None:
    class Heir(FedAvgParams):
        pass

    assert FedAvgParams().averages_updates
    assert Heir().traits.averages_updates
    assert not Heir().averages_updates


def test_fields_of_the_state_of_rounds_can_be_read_by_their_former_names() -> None:
    state = SynchronousState(schedule_step=3, limit_s=2.0)
    for former, value in (("slot", 3), ("limit", 2.0), ("server", {})):
        with pytest.warns(DeprecationWarning, match=former):
            assert state[former] == value
        with pytest.warns(DeprecationWarning, match=former):
            assert getattr(state, former) == value
        assert former not in [*state]  # a checkpoint saves the fields alone
    with pytest.raises(KeyError):
        state["of nobody"]
