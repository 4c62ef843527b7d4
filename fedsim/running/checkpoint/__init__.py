"""Runs that can be stopped at any instant and continued to the bit.

This module has ``[checkpoint]``, which sets how often a run is saved.
"""

from pydantic import Field

from fedsim.common.spec import Spec
from fedsim.common.units import PositiveSeconds


class CheckpointSpec(Spec):
    """``[checkpoint]``: when a run is saved, so that it can be resumed.

    Saving does not change the run.

    A run is also saved when it is interrupted (Ctrl-C, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2).

    Attributes:
        rounds: number of rounds from one save to the next; None: not by rounds.
        time: simulated time from one save to the next; None: not by time.
        last: whether the finished run can go on (``fedsim run --resume DIR --more 20``): it is also
            saved after the last planned round but one, and the folder keeps the parts of its
            tables, which take as much space as the tables.
    """

    rounds: int | None = Field(default=None, ge=1)
    time: PositiveSeconds | None = None
    last: bool = False
