"""How a device's data change over time: one file a rule."""

from typing import Annotated

from pydantic import BeforeValidator, Field, SerializeAsAny

from fedsim.data.shifts.base import Change, Shift
from fedsim.data.shifts.incremental import Incremental
from fedsim.data.shifts.label_permutation import LabelPermutation
from fedsim.data.shifts.rotation import Rotation
from fedsim.data.shifts.swap_all import SwapAll
from fedsim.data.shifts.swap_part import SwapPart
from fedsim.data.sources import by_name
from fedsim.language.families import or_own

ShiftSpec = Annotated[
    SerializeAsAny[Annotated[SwapAll | SwapPart | Incremental | LabelPermutation | Rotation, Field(discriminator="kind")]],
    or_own("fedsim.data.shifts.base:Shift"),
    BeforeValidator(by_name),
]

__all__ = ["Change", "Incremental", "LabelPermutation", "Rotation", "Shift", "ShiftSpec", "SwapAll", "SwapPart"]
