"""What FlexCFL and FedGroup take."""

from typing import Literal

from pydantic import Field

from fedsim.errors import ScenarioError
from fedsim.language.spec import Epochs, Iterations
from fedsim.strategies.migrating import MigratingParams


class FlexCFLParams(MigratingParams):
    """What FlexCFL takes, besides ``MigratingParams``. The defaults are those of its published experiments on MNIST.

    Attributes:
        alpha: the group cold start pre-trains alpha m devices, or all if there are fewer.
        pretrain_iterations: SGD steps of a pre-training (the published code's 50); None for ``pretrain_epochs``.
        pretrain_epochs: passes over its data of a pre-training, where it is not counted in steps.
        cold_start: how the first groups come about: by EDC (``edc``), by MADC and complete linkage (``madc``), or from m random
            devices, each of which becomes a group (``random-centers``, the ablation RCC).
        newcomers: a device without a group joins the one whose direction is most like its own (``cosine``), or one at random
            (``random``, the ablation RAC).
        on_arrival: a device that arrives while the run goes on finds its group at once; else when it is first selected.
        epochs_after_cold_start: local epochs in the round in which a device has just been pre-trained: all (``full``, as the
            published code does), or one less (``less``, as the paper says).
        eta_g: the learning rate between groups; 0 keeps them apart.
        inter_group: ``normalised``, divided by the sum of the coefficients (the published code), or ``literal`` (Eq. 20, whose
            models grow with every round).
    """

    kind: Literal["flexcfl"] = "flexcfl"
    clients_per_round: int = Field(default=20, ge=1)
    local_epochs: Epochs = 10
    sweep: bool = True
    alpha: int = Field(default=20, ge=1)
    pretrain_iterations: Iterations | None = 50
    pretrain_epochs: Epochs = 1
    cold_start: Literal["edc", "madc", "random-centers"] = "edc"
    newcomers: Literal["cosine", "random"] = "cosine"
    on_arrival: bool = True
    epochs_after_cold_start: Literal["full", "less"] = "full"
    eta_g: float = Field(default=0.0, ge=0.0, le=1e6)
    inter_group: Literal["normalised", "literal"] = "normalised"

    def pretrained(self, devices: int) -> int:
        """How many devices the group cold start pre-trains."""
        return self.groups if self.cold_start == "random-centers" else min(self.alpha * self.groups, devices)

    def check(self, devices: int) -> None:
        """There must be at least as many devices as groups, and a round cannot ask more than there are."""
        super().check(devices)
        if self.groups > devices:
            raise ScenarioError(
                f"strategy.groups is {self.groups}, more than the {devices} devices that can be pre-trained to make them; "
                f"allowed are 1 to {devices}"
            )


class FedGroupParams(FlexCFLParams):
    """What FedGroup takes: see ``FlexCFLParams``."""

    kind: Literal["fedgroup"] = "fedgroup"  # type: ignore[assignment]
    dynamic: bool = False
