"""How a device's data change over time: one file a rule."""

from typing import Annotated

from fedsim.data.shifts.alone import Incremental, LabelPermutation, Rotation
from fedsim.data.shifts.base import Shift
from fedsim.data.shifts.swaps import SwapAll, SwapPart
from fedsim.language.registry import Registry

_BASE = "fedsim.data.shifts.base:Shift"
SHIFTS = Registry.of("shift", SwapAll, SwapPart, Incremental, LabelPermutation, Rotation, base=_BASE)
ShiftSpec = Annotated[Shift, SHIFTS]
