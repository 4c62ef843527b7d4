"""Live view of a run that goes on: a folder ``live`` in its own, with tables and a summary as a run leaves them.

It is replaced as a whole from time to time and removed when the run is over. Who reads a run folder without a summary reads
what is there. It holds no models and no fingerprints, and is not synced: after a power cut there may be none.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsim.durable import WRITING

LIVE = "live"
RUNNING = "running"  # the status of such a run


@contextmanager
def replacing(run: Path) -> Iterator[Path]:
    """The folder to write what is to become the ``live`` one of the run folder ``run``."""
    beside, old = run / (LIVE + WRITING), run / (LIVE + ".old" + WRITING)
    for left in (beside, old):
        shutil.rmtree(left, ignore_errors=True)
    beside.mkdir()
    yield beside
    if (run / LIVE).exists():
        (run / LIVE).rename(old)
    beside.rename(run / LIVE)
    shutil.rmtree(old, ignore_errors=True)


def remove(run: Path) -> None:
    """Remove what there was; nothing happens where there was none."""
    for left in (LIVE, LIVE + WRITING, LIVE + ".old" + WRITING):
        shutil.rmtree(run / left, ignore_errors=True)
