"""What CATA-Fed takes."""

from typing import Any, Literal

from pydantic import Field, model_validator

from fedsim.errors import ScenarioError
from fedsim.language.spec import Epochs
from fedsim.language.units import PositiveSeconds, Seconds
from fedsim.strategies.synchronous import AggregatingParams


class CataFedParams(AggregatingParams):
    """``[strategy]`` of kind ``cata-fed``. Each part of the method can be switched off alone (clustering by P = 1).

    Attributes:
        deadline, relative_deadline: T, how long a client may train, from the end of its own download on. When neither is
            given, T = 1: the mean time of five epochs.
        adaptive: a client trains as many epochs as fit (adaptive local update, ALU). If not, exactly ``local_epochs``, and who
            cannot finish them all is a slow straggler.
        local_epochs: K_local, where ``adaptive`` is off.
        most_epochs: the most that an adaptive client trains in a round; only to bound the work of one that is very fast.
        margin: part of T that a client keeps back for its upload (eps_i of the paper, s).
        reserve_upload: it also keeps back the time that it expects its upload to take on its own link.
        mitigation: slow stragglers split their data (straggler mitigation, SMS).
        smallest_part: pi, samples; no part becomes smaller (but for rounding).
        straggler_upload: what a slow straggler sends besides its flag: the unchanged ``model``, as the paper says, or nothing
            (``flag``).
        clusters: P.
        whisker: delta; sizes further than this times the interquartile range from the quartiles are outliers.
        selection: ``proportional-fair``; ``round-robin`` over the clusters; ``random`` out of all connected clients.
        rejoin: a disconnected client may connect again, as a new one. If not, it is gone for good.
        rejoin_delay: how long it is away at least (s).
    """

    kind: Literal["cata-fed"] = "cata-fed"
    adaptive: bool = True
    local_epochs: Epochs = 5
    most_epochs: Epochs = 1000
    margin: Seconds = 0.0
    reserve_upload: bool = False
    mitigation: bool = True
    smallest_part: int = Field(default=100, ge=1)
    straggler_upload: Literal["model", "flag"] = "model"
    clusters: int = Field(default=4, ge=1)
    whisker: float = Field(default=1.5, ge=0.0)
    selection: Literal["proportional-fair", "round-robin", "random"] = "proportional-fair"  # type: ignore[assignment]
    rejoin: bool = False
    rejoin_delay: PositiveSeconds = 60.0

    @model_validator(mode="before")
    @classmethod
    def _usual_deadline(cls, data: Any) -> Any:
        if isinstance(data, dict) and "deadline" not in data and "relative_deadline" not in data:
            return data | {"relative_deadline": 1.0}
        return data

    @property
    def bounds_training(self) -> bool:
        """The deadline always counts from the end of a client's own download."""
        return True

    def check(self, devices: int) -> None:
        """Clusters need devices, and groups are of exactly K."""
        super().check(devices)
        if self.over_selection != 1:
            raise ScenarioError(
                f"strategy.over_selection is {self.over_selection:g}; cata-fed selects exact groups and allows only 1"
            )
        if self.deadline_from == "round":
            raise ScenarioError("strategy.deadline_from is 'round'; with cata-fed allowed is 'download' only")
        if self.clusters > devices:
            raise ScenarioError(
                f"strategy.clusters is {self.clusters}, more than the population's {devices} devices; "
                f"allowed are 1 to {devices}"
            )

    def check_samples(self, most: int) -> None:
        """With a smallest part above every data set nothing could ever be split."""
        if self.mitigation and self.smallest_part > most:
            raise ScenarioError(
                f"strategy.smallest_part is {self.smallest_part}, but the largest device holds {most} training samples, so no "
                f"straggler could ever split its data; allowed are 1 to {most}, or strategy.mitigation = false"
            )
