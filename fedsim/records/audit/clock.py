"""How exact the times of a run are."""

import numpy as np

from fedsim.language.units import TICK_S
from fedsim.records.audit.columns import Floats


def grain_s(times: Floats) -> Floats:
    """How far apart two times are at least around each of some (s): a tick, or beyond 97 days the spacing of float64."""
    return np.maximum(TICK_S, np.spacing(times))
