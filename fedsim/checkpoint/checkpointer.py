"""When a run is saved: after so many rounds, after so much simulated time, and when it is interrupted."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim.checkpoint import snapshot, store
from fedsim.checkpoint.origins import Origins
from fedsim.checkpoint.spec import CheckpointSpec
from fedsim.simulation import Record

if TYPE_CHECKING:
    from fedsim.records.recorder import Recorder
    from fedsim.running.assembly import Run


@dataclass(eq=False)
class Checkpointer:
    """Watches a run's records and saves it when it is time, at the end of the instant.

    Attributes:
        spec: how often.
        folder: the run folder.
        run, recorder: what is saved.
        origins: what the run was built from.
        tell: is called when the run was saved, with how many rounds there were and the simulated time (s): a power cut cannot
            take that back.
    """

    spec: CheckpointSpec
    folder: Path
    run: "Run"
    recorder: "Recorder"
    origins: Origins
    tell: Callable[[int, float], None] = lambda rounds, time: None

    def __post_init__(self) -> None:
        self._due = False
        self._period = self._periods(self.recorder.last_time)

    def watch(self, record: Record) -> None:
        """See whether it is time."""
        rounds, time = self.spec.rounds, self.spec.time
        if rounds is not None and record.kind == "round" and (record.fields["round"] + 1) % rounds == 0:
            self.request()
        elif time is not None and record.time >= (self._period + 1) * time:
            self._period = self._periods(record.time)
            self.request()

    def _periods(self, time: float) -> int:
        return 0 if self.spec.time is None else int(time // self.spec.time)

    def request(self) -> None:
        """Save the run when this instant is over."""
        if not self._due:
            self._due = True
            self.run.simulation.between_instants(self._take)

    def _take(self) -> None:
        self._due = False
        tree, arrays = snapshot.take(self.run, self.recorder, self.origins)
        store.write(self.folder, self.recorder.chain.count, tree, arrays)
        self.tell(len(self.recorder.rounds), self.run.simulation.now)


def resume(folder: Path, run: "Run", recorder: "Recorder", origins: Origins) -> None:
    """Bring a run that was just built to where the newest checkpoint of its folder left it.

    Raises:
        CheckpointError: there is none, or it is damaged, not of this run, or of one that was built from other data.
    """
    _, tree, arrays = store.read(store.latest(folder))
    snapshot.put_back(run, recorder, origins, tree, arrays)
