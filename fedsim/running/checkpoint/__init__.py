"""Runs that can be stopped at any instant and continued to the bit; here is ``[checkpoint]``,
how often a run is saved.
"""

from pydantic import Field

from fedsim.common.spec import Spec
from fedsim.common.units import PositiveSeconds


class CheckpointSpec(Spec):
    """``[checkpoint]``: when a run is saved, besides at interruptions (Ctrl-C, SIGTERM, SIGHUP);
    no influence on the run.
    """

    rounds: int | None = Field(default=None, ge=1)
    """after every so many rounds; None: not by rounds."""
    time: PositiveSeconds | None = None
    """after every so much simulated time; None: not by time."""
