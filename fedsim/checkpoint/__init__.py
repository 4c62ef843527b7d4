"""Runs that can be stopped at any instant and continued to the bit; here is ``[checkpoint]``, how often a run is saved."""

from pydantic import Field

from fedsim.language.spec import Spec
from fedsim.language.units import PositiveSeconds


class CheckpointSpec(Spec):
    """``[checkpoint]``: after how much of a run it is saved. It has no influence on the run.

    Besides, a run is saved when it is interrupted (Ctrl-C, SIGTERM, SIGHUP).
    """

    rounds: int | None = Field(default=None, ge=1)
    """after every so many rounds; None: not by rounds."""
    time: PositiveSeconds | None = None
    """after every so much simulated time; None: not by time."""
