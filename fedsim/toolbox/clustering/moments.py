"""Moments at which devices are assigned to groups, as kinds of the key ``moment``."""

from typing import Annotated, Literal

from pydantic import Field

from fedsim.common.registry import Registry
from fedsim.common.spec import Epochs, Iterations, OnlyWith, Spec
from fedsim.common.units import PositiveSeconds


class Once(Spec):
    """Base of the moments (``strategy.moment``) at which devices are grouped once in a run.

    The groups are formed from models that the devices have trained and sent before. The warm-up is
    the task outside rounds in which devices train such a model.

    Attributes:
        deadline: longest time (s) of the warm-up. It is also the longest time of a second task, in
            which devices send losses or gradients, if the strategy has such a task. At the end of
            this time the strategy goes on with the devices that have answered. None: the server
            waits for all devices.
    """

    deadline: PositiveSeconds | None = None


class AfterRounds(Once):
    """Devices are divided into groups once, after a few rounds of FedAvg.

    Attributes:
        rounds: number of FedAvg rounds before the grouping; they count as rounds of the run.
        participation: share of all devices that are clients in each of these rounds, 0 to 1.
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

    A shift is a change of a device's data during the run. A device looks for it by a test after
    each change of its data; if the test finds a shift, the device chooses its group anew.

    Attributes:
        shift: test for a shift. ``aligned_l1``: the distance 1/C sum |c_k - r_k| is above 0.2 n / C
            (FlexCFL, Eq. 9). C is the count of classes, c_k the device's count of samples of class
            k, r_k this count when the device found its group, and n the count of its training
            samples at the beginning of the run. ``sorted_counts``: the same test with sorted
            counts, as in the published code of FlexCFL; it does not notice labels that change
            places. ``oracle``: any change of data is a shift. ``never``: no change is a shift. By
            default ``aligned_l1`` in ``flexcfl`` and ``ifca-mig``, ``never`` elsewhere.
    """

    shift: ShiftTest | None = None


class EachRound(WhenShifted):
    """Each client chooses its group anew, in each round in which it is asked, before it trains."""

    kind: Literal["each-round"] = "each-round"


class PreTraining(WhenShifted):
    """Devices are grouped before the first round, by pre-trainings of the initial model.

    Some devices train the initial model (a pre-training), and their updates are clustered into the
    first groups. Any other device does its own pre-training later, and joins one of these groups.

    Attributes:
        devices: alpha (FlexCFL): count of the devices that pre-train before the first round, for
            each of the strategy's ``groups``; together at most all devices.
        steps: SGD steps of a pre-training, in place of ``epochs``. If neither is given: 50 steps
            with ``follows = "published-code"``, ``local_epochs`` with ``"paper"``.
        epochs: passes of a device over its data in a pre-training.
        newcomers: when a device without a group pre-trains: on its arrival (``arrival``), or at its
            first selection (``selection``). The device then joins the group whose direction (mean
            update of the group's first members) is most similar to the device's update. With
            ``random`` the device does not pre-train, and joins a random group at its first
            selection (the ablation RAC).
    """

    kind: Literal["pre-training"] = "pre-training"
    devices: int = Field(default=20, ge=1)
    steps: Annotated[Iterations | None, OnlyWith("epochs", values=(None,))] = None
    epochs: Epochs | None = None
    newcomers: Literal["arrival", "selection", "random"] = "arrival"


MOMENTS = Registry.of("moment", AfterRounds, AfterLocalTraining, PreTraining, EachRound)
