"""Moments at which devices are assigned to groups, as kinds of the key ``moment``."""

from typing import Annotated, Literal

from pydantic import Field

from fedsim.common.registry import Registry
from fedsim.common.spec import Epochs, Iterations, OnlyWith, Spec
from fedsim.common.units import PositiveSeconds


class Once(Spec):
    """Base of the moments (``strategy.moment``) at which devices are grouped once in a run.

    The groups are formed from models that the devices have trained and sent during a warm-up.

    Attributes:
        deadline: longest time (s) of the warm-up, and of the task in which devices then send losses
            or gradients, if any. At its end the strategy goes on with the devices that have
            answered. None: the server waits for all devices.
    """

    deadline: PositiveSeconds | None = None


class AfterRounds(Once):
    """Devices are divided into groups once, after a few rounds of FedAvg.

    Attributes:
        rounds: number of FedAvg rounds before the grouping; they count as rounds of the run.
        participation: share of all devices that each of these rounds asks, 0 to 1.
    """

    kind: Literal["rounds"] = "rounds"
    rounds: int = Field(default=5, ge=1)
    participation: float = Field(default=1.0, gt=0.0, le=1.0)


class AfterLocalTraining(Once):
    """Devices are grouped once, after each device has trained alone (LCFL, Algorithm 1).

    Attributes:
        epochs: passes of a device over its data.
        steps: SGD steps of a device's training, in place of ``epochs`` (the T of Algorithm 1).
        start: model at which the training begins: one that the server sends to all devices
            (``common``), or a random one that each device draws (``own``).
    """

    kind: Literal["local"] = "local"
    epochs: Epochs = 10
    steps: Iterations | None = None
    start: Literal["common", "own"] = "common"


ShiftTest = Literal["never", "aligned_l1", "sorted_counts", "oracle"]


class WhenShifted(Spec):
    """Base of the moments (``strategy.moment``) at which devices with shifted data are regrouped.

    A shift is a change of a device's data during the run, by default found from its label counts.

    Attributes:
        shift: test for a shift. ``aligned_l1``: the distance 1/C sum |c_k - r_k| is above 0.2 n / C
            (FlexCFL, Eq. 9), with C classes, the device's label counts c, its label counts r when
            it found its group, and the count n of its training samples at the beginning of the run.
            ``sorted_counts``: the same test with sorted counts, as in the published code of
            FlexCFL; it does not notice labels that change places. ``oracle``: any change of data is
            a shift; ``never``: none is. By default ``aligned_l1`` in ``flexcfl`` and ``ifca-mig``,
            ``never`` elsewhere.
    """

    shift: ShiftTest | None = None


class EachRound(WhenShifted):
    """The clients of each round choose their groups anew before they train."""

    kind: Literal["each-round"] = "each-round"


class PreTraining(WhenShifted):
    """Devices are grouped before the first round, by pre-trainings of the initial model.

    Some devices train the initial model for this purpose, and are grouped by the resulting updates.

    Attributes:
        devices: alpha (FlexCFL): the pre-training asks this many devices for each of the strategy's
            ``groups``, at most all devices.
        steps: SGD steps of a pre-training, in place of ``epochs``. If neither is given: 50 steps
            with ``follows = "published-code"``, ``local_epochs`` with ``"paper"``.
        epochs: passes of a device over its data in a pre-training.
        newcomers: when a device without a group does a pre-training: on its arrival (``arrival``),
            or at its first selection (``selection``). It then joins the group whose direction (mean
            update of its first members) is most similar to the device's update. With ``random`` it
            does none, and joins a random group at its first selection (the ablation RAC).
    """

    kind: Literal["pre-training"] = "pre-training"
    devices: int = Field(default=20, ge=1)
    steps: Annotated[Iterations | None, OnlyWith("epochs", values=(None,))] = None
    epochs: Epochs | None = None
    newcomers: Literal["arrival", "selection", "random"] = "arrival"


MOMENTS = Registry.of("moment", AfterRounds, AfterLocalTraining, PreTraining, EachRound)
