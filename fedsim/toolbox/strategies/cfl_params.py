"""Scenario keys of the strategy CFL."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedsim.common import former_keys
from fedsim.common.errors import ScenarioError
from fedsim.common.former_keys import Former
from fedsim.common.spec import Epochs, OnlyWith
from fedsim.strategies.refusals import Reasons
from fedsim.toolbox.strategies.grouped import GroupedParams


class CFLParams(GroupedParams):
    """Keys of ``[strategy]`` for CFL, in addition to the keys of groups and rounds.

    CFL divides the clients into clusters, each with a model, by splitting clusters in two.
    Algorithms, equations and figures are numbered as in Sattler, Mueller and Samek (2018).

    Attributes:
        clients_per_round: the number of clients that a round asks; None for all available ones, as
            in the paper.
        groups: always 1. All devices begin in one cluster, and splits make the other clusters.
        aggregation: ``weighted`` by samples, as in the paper; ``mean``, as in the published code.
        eps1: a cluster has converged when its aggregated update is shorter than this (Algorithm 1,
            line 8); by default 0.2 times the mean length of the first round's updates.
        eps2: a cluster's clients are congruent when all of their updates are shorter than this (Eq.
            5); by default 2.5 ``eps1``. A cluster that has converged without being congruent is
            split.
        split_rounds: the indices of the rounds, from 0, in which the cluster with the longest
            update is split (Fig. 3). A split that is impossible in such a round is done in a later
            one.
        split: linkage of the hierarchical clustering that finds the two parts of a cluster:
            ``single``, which solves Eq. 6 exactly; ``complete``, as in the published code.
        follows: order of split and aggregation in the round of a split. ``published-code``: the
            cluster is split first, and then the model of each part moves by the part's updates.
            ``paper``: the cluster's model moves by all updates first, and both parts begin with
            this model.
        order: whether all clusters train ``together``, as in the published code, or one after the
            other, each until it has converged (``recursive``, Algorithm 2).
    """

    instead: ClassVar[Former] = {**GroupedParams.instead, **former_keys.CFL}
    why_not: ClassVar[Reasons] = Reasons(
        privacy_account="clusters are made of updates that are not clipped"
    )
    kind: Literal["cfl"] = "cfl"
    clients_per_round: int | None = Field(default=None, ge=1)  # type: ignore[assignment]
    local_epochs: Epochs = 3
    groups: Literal[1] = 1
    eps1: Annotated[float | None, OnlyWith("split_rounds", values=(None,))] = Field(
        default=None, ge=0.0
    )
    eps2: Annotated[float | None, OnlyWith("split_rounds", values=(None,))] = Field(
        default=None, ge=0.0
    )
    split_rounds: list[int] | None = None
    split: Literal["single", "complete"] = "single"
    order: Literal["together", "recursive"] = "together"

    @property
    def unforeseen(self) -> str:
        if self.split_rounds is not None:
            return super().unforeseen
        return (
            "no cluster is split; each split adds a model at the end, and models of all updates of "
            "the clients of the cluster"
        )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        """Check that ``split_rounds`` are ascending, and not given with ``order = "recursive"``."""
        rounds = self.split_rounds
        if self.order == "recursive" and rounds is not None:
            raise ValueError(
                "'order' is 'recursive', which goes by the criteria alone, without 'split_rounds'"
            )
        if rounds is not None and (rounds != sorted(set(rounds)) or min(rounds, default=0) < 0):
            raise ValueError(
                f"'split_rounds' is {rounds}; allowed are different rounds from 0 on, in "
                "ascending order"
            )
        return self

    def check(self, devices: int) -> None:
        super().check(devices)
        asks_all = self.clients_per_round is None
        if asks_all and not (self.over_selection == 1 and self.selection.uniform):
            raise ScenarioError(
                f"strategy.over_selection is {self.over_selection:g}, and selection "
                f"{self.selection.kind!r}, but a round asks all clients; allowed are 1 and "
                "'random', or give 'clients_per_round'"
            )
