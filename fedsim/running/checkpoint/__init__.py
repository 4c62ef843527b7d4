"""Runs that can be stopped at any time and resumed, without any change of their results.

This module has ``CheckpointSpec``, the section ``[checkpoint]`` of a scenario.
"""

from pydantic import Field

from fedsim.common.spec import Spec
from fedsim.common.units import PositiveSeconds


class CheckpointSpec(Spec):
    """``[checkpoint]``: when a run is saved, so that it can be resumed.

    Saving does not change the run. An interrupted run (Ctrl-C, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2)
    is saved too.

    Attributes:
        rounds: number of rounds from one save to the next; None: no saves by rounds.
        time: simulated time from one save to the next; None: no saves by time.
        last: whether the finished run can be continued with a later end (``fedsim run --more``). If
            so, the run is also saved before the last planned round, and the folder keeps the files
            with parts of its tables, in addition to the whole tables.
    """

    rounds: int | None = Field(default=None, ge=1)
    time: PositiveSeconds | None = None
    last: bool = False
