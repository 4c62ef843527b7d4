"""What a signal does to a process that computes: it is heard within a second or two, however long an instant takes."""

import os
import sys
import threading

from fedsim.harmless import say
from fedsim.simulation import Simulation

INTERRUPTED = 130
_PATIENCE_S = 1.5


def end_unless_over(simulation: Simulation) -> None:
    """Let the running instant come to its end, but not for long: then the whole process ends, as if it had been killed.

    Nothing is half-written by that: files get their names when they are whole. What remains is the last checkpoint.
    """

    def end() -> None:
        if not simulation.over:
            say("fedsim: this instant takes too long; ended within it, the last checkpoint is what remains", err=True)
            end_at_once()

    timer = threading.Timer(_PATIENCE_S, end)
    timer.daemon = True
    simulation.between_instants(timer.cancel)
    timer.start()


def end_at_once(*_: object) -> None:
    """End this process, whatever its threads do."""
    sys.stderr.flush()
    os._exit(INTERRUPTED)
