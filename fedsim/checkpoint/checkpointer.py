"""When a run is saved: after so many rounds, after so much simulated time, and when it is interrupted."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim.checkpoint import snapshot, store
from fedsim.checkpoint.origins import Origins
from fedsim.checkpoint.spec import CheckpointSpec
from fedsim.simulation import Record

if TYPE_CHECKING:
    from fedsim.records.recorder import Recorder
    from fedsim.running.assembly import Run


class Checkpointer:
    """Watches a run's records and saves it when it is time, at the end of the instant.

    Args:
        spec: how often.
        folder: the run folder.
        run, recorder: what is saved.
        origins: what the run was built from.

    Attributes:
        tell: is called when the run was saved, with how many rounds there were and the simulated time (s): a power cut cannot
            take that back.
    """

    def __init__(self, spec: CheckpointSpec, folder: Path, run: "Run", recorder: "Recorder", origins: Origins) -> None:
        self._spec = spec
        self._folder = folder
        self._run = run
        self._recorder = recorder
        self._origins = origins
        self._due = False
        self.tell: Callable[[int, float], None] = lambda rounds, time: None
        self._period = self._periods(recorder.last_time)

    def watch(self, record: Record) -> None:
        """See whether it is time."""
        rounds, time = self._spec.rounds, self._spec.time
        if rounds is not None and record.kind == "round" and (record.fields["round"] + 1) % rounds == 0:
            self.request()
        elif time is not None and record.time >= (self._period + 1) * time:
            self._period = self._periods(record.time)
            self.request()

    def _periods(self, time: float) -> int:
        return 0 if self._spec.time is None else int(time // self._spec.time)

    def request(self) -> None:
        """Save the run when this instant is over."""
        if not self._due:
            self._due = True
            self._run.simulation.between_instants(self._take)

    def _take(self) -> None:
        self._due = False
        tree, arrays = snapshot.take(self._run, self._recorder, self._origins)
        store.write(self._folder, self._recorder.chain.count, tree, arrays)
        self.tell(len(self._recorder.rounds), self._run.simulation.now)


def resume(folder: Path, run: "Run", recorder: "Recorder", origins: Origins) -> None:
    """Bring a run that was just built to where the newest checkpoint of its folder left it.

    Raises:
        CheckpointError: there is none, or it is damaged, not of this run, or of one that was built from other data.
    """
    _, tree, arrays = store.read(store.latest(folder))
    snapshot.put_back(run, recorder, origins, tree, arrays)
