"""Scenario section ``[stop]``, the conditions at which a run ends."""

import math

from pydantic import Field, model_validator

from fedsim.common.spec import Spec
from fedsim.common.units import EXACT_S, Seconds, show_seconds

MORE_IS_BETTER = {"perplexity": False, "mse": False, "rmse": False, "f1": True, "auc": True}
"""Built-in test metrics besides accuracy: name -> whether higher values are better."""


class StopSpec(Spec):
    """``[stop]``: when a run ends; the first condition that is met counts.

    Attributes:
        rounds: count of aggregations after which the run ends.
        simulated_time: simulated time at which the run ends.
        accuracy: goal for the test accuracy (0 to 1). The run ends at the first evaluation that
            reaches it.
        metrics: name of a metric (or ``loss``) -> goal. The run ends at the first evaluation at
            which one of the metrics reaches its goal or a better value.
        patience: count of rounds without progress after which the run ends, at the next evaluation.
            None: the run does not end for this reason. An evaluation is progress if the value of
            ``monitor`` is better than at the last progress by more than ``min_delta``.
        monitor: the measure that is compared by ``patience`` and ``evaluation.keep_best``:
            ``accuracy``, ``loss`` or a metric. None: the accuracy, or the loss if the objective has
            no accuracy.
        min_delta: the greatest improvement of ``monitor`` that does not count as progress.
    """

    rounds: int | None = Field(default=None, ge=1)
    simulated_time: Seconds | None = None
    accuracy: float | None = Field(default=None, gt=0.0, le=1.0)
    metrics: dict[str, float] = Field(default_factory=dict)
    patience: int | None = Field(default=None, ge=1)
    monitor: str | None = None
    min_delta: float = Field(default=0.0, ge=0.0)

    @model_validator(mode="after")
    def _require_end(self) -> "StopSpec":
        if self.rounds is None and self.simulated_time is None:
            raise ValueError("a run needs an end: give 'rounds' or 'simulated_time'")
        if self.simulated_time is not None and self.simulated_time <= 0:
            raise ValueError("'simulated_time' must be above 0 s")
        return self

    @property
    def notes(self) -> list[str]:
        """A note for the user if the run is so long that its times are rounded; otherwise empty."""
        if self.simulated_time is None or self.simulated_time <= EXACT_S:
            return []
        apart_ns = math.ulp(self.simulated_time) * 1e9
        return [
            f"stop.simulated_time is after {show_seconds(EXACT_S)}, up to which times are exact "
            f"multiples of 0.93 ns; at its end times are {apart_ns:.0f} ns apart"
        ]
