"""A signal in a run: it is saved at the end of its instant, and the process ends in any case."""

import asyncio
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from fedsim.output.harmless import say
from fedsim.signals import end_at_once

if TYPE_CHECKING:
    from fedsim.running.runner import Job

_PATIENCE_S = 1.5  # with what this thread computes itself, in the world or in a handler
_TRAINING_S = 10.0  # with an instant that waits for training, after SIGTERM; after Ctrl-C that is for the user to say
_LOOK_S = 0.1


def end_soon(job: "Job", number: int) -> None:
    """End and save a run after its current instant; if that instant does not end, end the process. For signal handlers.

    Nothing is half-written, since files get their names when they are complete; the last checkpoint remains.
    """
    job.interrupt()
    with suppress(RuntimeError):  # none runs: nothing is to be waited for
        loop = asyncio.get_running_loop()
        threading.Thread(target=_watch, args=(job, loop, number), daemon=True).start()


def _watch(job: "Job", loop: asyncio.AbstractEventLoop, number: int) -> None:
    """End the process when the event loop does not get its turn for long, or, unless it was Ctrl-C, training takes too long."""
    turn = threading.Event()
    turn.set()
    begun = alive = time.monotonic()
    simulation = job.simulation
    while not job.over:
        now = time.monotonic()
        if turn.is_set() or simulation.working:
            alive = now
            turn.clear()
            with suppress(RuntimeError):  # it was closed in this moment
                loop.call_soon_threadsafe(turn.set)
        stuck = now - alive > _PATIENCE_S
        is_late = number != signal.SIGINT and now - begun > _TRAINING_S
        # To be saved and to write what there is may take its time; to train for that, when the run is over, may not.
        writes = simulation.settled and (stuck or simulation.stopped is None)
        if (stuck or is_late) and not writes:
            say("fedsim: this instant takes too long; ended within it, the last checkpoint is what remains", err=True)
            end_at_once()
        time.sleep(_LOOK_S)
