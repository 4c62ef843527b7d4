"""What TiFL takes."""

import math
from typing import Literal

from pydantic import Field

from fedsim.errors import ScenarioError
from fedsim.language.units import PositiveSeconds
from fedsim.strategies.synchronous import AggregatingParams


class TiFLParams(AggregatingParams):
    """What TiFL takes.

    Attributes:
        tiers: P, equal-width bins of data size or of latency.
        tiers_from: ``size``, which each device reports once (as CATA-Fed's comparison has it), or ``latency``, which the server
            measures by giving each device the whole task of a round (the original).
        profiling_rounds: how often it does so for each device.
        profiling_limit: Tmax (s). A task that takes longer is ended and counts as Tmax; a device that never came in below it is
            dropped. None: whoever comes, however late, gets a tier.
        mode: ``uniform``: every tier is equally likely. ``credits``: the less accurate the model is on a tier's clients, the
            likelier it is, and none is chosen more often than it has credits.
        credits: of each tier; by default the planned rounds, divided by the tiers.
        interval: I, a test after every so many rounds, by default as many as there are tiers.
        require_no_improvement: probabilities change only if the accuracy on the last chosen tier has not risen since the test
            before (the paper's condition; common re-implementations lack it).
        accuracy_from: ``clients``: a test is a message to test clients of each tier, who report a number. ``measurement``:
            the server knows the accuracy on all of a tier's clients, at no cost: an evaluation from outside, no protocol.
        test_clients: how many clients of each tier are tested.
    """

    kind: Literal["tifl"] = "tifl"
    tiers: int = Field(default=5, ge=1)
    tiers_from: Literal["size", "latency"] = "size"
    profiling_rounds: int = Field(default=1, ge=1)
    profiling_limit: PositiveSeconds | None = None
    mode: Literal["uniform", "credits"] = "uniform"
    credits: int | None = Field(default=None, ge=1)
    interval: int | None = Field(default=None, ge=1)
    require_no_improvement: bool = True
    accuracy_from: Literal["clients", "measurement"] = "clients"
    test_clients: int = Field(default=5, ge=1)

    def check(self, devices: int) -> None:
        """Tiers need devices."""
        super().check(devices)
        if self.tiers > devices:
            raise ScenarioError(
                f"strategy.tiers is {self.tiers}, more than the population's {devices} devices; allowed are 1 to {devices}"
            )

    def credits_of_each(self, planned_rounds: int | None) -> int:
        """How many credits each tier begins with.

        Raises:
            ScenarioError: they are not given, and no number of rounds is planned.
        """
        if self.credits is None and planned_rounds is None:
            raise ScenarioError(
                "strategy.credits is missing: its default is the planned rounds divided by the tiers, but stop.rounds is not "
                "given either; give one of them"
            )
        return self.credits if self.credits is not None else math.ceil((planned_rounds or 0) / self.tiers)
