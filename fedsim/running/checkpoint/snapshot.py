"""Saving the state of a whole run as one tree of values, and restoring it.

The tree leaves out everything that follows from the scenario. To resume, a run is built from the
scenario, and then each part restores its state. Alarms are set again in the order in which they
were due, because this order decides the order of events within an instant.

A resumed run gives exactly the results of an uninterrupted run, for four reasons. Random numbers
are drawn by names (device, round, purpose), so that no draw depends on earlier draws. Models that
are not computed yet are saved as recipes. Numbers are saved exactly, and objects that several parts
share stay shared. A snapshot is taken between two instants, and alarms (calls that the clock makes
later) are set again in order.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from fedsim.clock.simulation import Record
from fedsim.common.errors import CheckpointError
from fedsim.federation.stop_rules import Progress
from fedsim.learning.evaluation import Evaluation
from fedsim.learning.refs import Ref
from fedsim.running.checkpoint import CheckpointSpec, store
from fedsim.running.checkpoint.apart import LinkedTensor, LinkedTensors
from fedsim.running.checkpoint.codec import Decoder, Encoder
from fedsim.running.checkpoint.origins import Origins

if TYPE_CHECKING:
    from fedsim.common.arrays import Ints
    from fedsim.federation.dispatch import DispatchState
    from fedsim.records.recorder import Recorder, RecorderState
    from fedsim.running.assembly import Run
    from fedsim.running.drift import DriftState
    from fedsim.world.lifetimes import LifetimesState
    from fedsim.world.messages import MessagesState
    from fedsim.world.processes.processes import ProcessesState
    from fedsim.world.task_runner import RunnerState


class Saving(ABC):
    """Base of a class that saves a run at the rounds or times given by ``[checkpoint]``.

    It learns from the run's records that a round has ended or that time has passed.

    Args:
        spec: ``[checkpoint]`` of the scenario.
        run: the run.
        time: simulated time at which the run begins or is resumed (s).
    """

    def __init__(self, spec: CheckpointSpec, run: "Run", time: float = 0.0) -> None:
        self._spec = spec
        self._run = run
        self._is_requested = False
        self._period = self._period_of(time)
        # number of the last planned round, from 1, before which the run is saved
        self._last_round = run.scenario.stop.rounds if spec.last else None
        run.simulation.env.require_rearm()
        if self._last_round == 1:  # no round comes before the last one: save at the start
            self.request()

    def watch(self, record: Record) -> None:
        """Request a save if a record shows that the next save is due.

        Args:
            record: the record that was just emitted.
        """
        every_rounds = self._spec.rounds  # None to save only by time
        every_s = self._spec.time
        if record.kind == "round":
            finished = record.fields["round"] + 1
            # ``_last_round`` is set if the run is to be saved before its last round
            is_last_but_one = self._last_round is not None and finished == self._last_round - 1
            is_due = every_rounds is not None and finished % every_rounds == 0
            if is_last_but_one or is_due:
                self.request()
                return
        # ``_period`` counts the periods of ``every_s`` seconds that have passed
        if every_s is not None and record.time >= (self._period + 1) * every_s:
            self._period = self._period_of(record.time)
            self.request()

    def _period_of(self, time: float) -> int:
        """Return the index of the period between two saves in which a time (s) is."""
        return 0 if self._spec.time is None else int(time // self._spec.time)

    def request(self) -> None:
        """Request a save of the run after all events of the present time."""
        if not self._is_requested:
            self._is_requested = True
            self._run.simulation.between_instants(self._save_requested)

    def _save_requested(self) -> None:
        self._is_requested = False
        self._save()

    @abstractmethod
    def _save(self) -> None:
        """Save the run; called after all events of the time at which a save was requested."""


class Checkpointer(Saving):
    """Writer of a run's checkpoints to its folder.

    Args:
        spec: ``[checkpoint]`` of the scenario.
        folder: the run folder.
        run: the run.
        recorder: the run's recorder.
        origins: fingerprints of the data and input files from which the run was built.

    Attributes:
        on_saved: function that is called after each save, when the checkpoint is safely on the
            disk, with the count of finished rounds and the simulated time (s).
    """

    def __init__(
        self, spec: CheckpointSpec, folder: Path, run: "Run", recorder: "Recorder", origins: Origins
    ) -> None:
        self._folder = folder
        self._recorder = recorder
        self._origins = origins
        self._linked = LinkedTensors()
        self.on_saved: Callable[[int, float], None] = lambda rounds, time: None
        super().__init__(spec, run, recorder.last_time)

    def _save(self) -> None:
        self._run.learner.free_derived()
        encoder, checkpoint = _snapshot(self._run, self._recorder, self._origins)
        for value in encoder.objects:
            if isinstance(value, LinkedTensor):
                self._linked.add(value)
        store.write(self._folder, checkpoint, self._linked)
        self._linked.replace_written(encoder)
        self.on_saved(len(self._recorder.rounds), self._run.simulation.now)


def _snapshot(
    run: "Run", recorder: "Recorder", origins: Origins
) -> tuple[Encoder, store.Checkpoint]:
    """Return a run's state as a checkpoint, and the encoder that has made it.

    The caller ensures that all events of the present time are processed.
    """
    encoder = Encoder()
    data = None  # if data do not shift, building the run gives the same data again
    if run.drift is not None:
        data = run.population.samples, run.population.version
    state: SavedRun = {
        "origins": origins.fingerprints,
        "now": run.simulation.now,
        "stopped": run.simulation.stopped,
        "alarms": run.simulation.alarms(),
        "recorder": recorder.snapshot(),
        "data": data,
        "parts": _snapshot_parts(run),
        "processes": run.processes.snapshot(),
        "strategy": run.strategy.state,
        "last": run.evaluator.last,
        "served": run.evaluator.served,
        "unseen": run.evaluator.unseen_accuracy,
        "progress": run.ending.progress,
    }
    tree = encoder.encode(state)
    return encoder, store.Checkpoint(recorder.fingerprint().count, tree, encoder.arrays)


def encode_models(run: "Run") -> tuple[Encoder, dict[str, object]]:
    """Encode the parts of a run's state that contain models, as a checkpoint would store them now.

    Args:
        run: the run. It must have processed all events of the present simulated time.

    Returns:
        The encoder, whose ``objects`` contain the models, and the encoded tables.
    """
    encoder = Encoder()
    parts = _snapshot_parts(run)
    # all objects that refer to models: parts, the strategy's state, and the best test so far
    state = [*parts.values(), run.strategy.state, run.ending.progress]
    return encoder, encoder.encode(state)


class PartsState(TypedDict):
    """Saved states of the parts of a run, as ``SavedRun`` contains them.

    Attributes:
        drift: past shifts of data; None if data do not shift.
        network: flows and links.
        messages: messages outside of tasks.
        tasks: running tasks.
        lifetimes: arrivals and departures.
        learner: count of references to models so far.
        server: state of ``Dispatch``, the server's side of the run: notifications, timers, and
            residuals (values that codecs have left out of messages so far).
    """

    drift: "DriftState | None"
    network: dict[str, Any]
    messages: "MessagesState"
    tasks: "RunnerState"
    lifetimes: "LifetimesState"
    learner: int
    server: "DispatchState"


def _snapshot_parts(run: "Run") -> PartsState:
    drift = None
    if run.drift is not None:
        drift = run.drift.snapshot()
    return {
        "drift": drift,
        "network": run.network.snapshot(),
        "messages": run.messages.snapshot(),
        "tasks": run.tasks.snapshot(),
        "lifetimes": run.lifetimes.snapshot(),
        "learner": run.learner.snapshot(),
        "server": run.dispatch.snapshot(),
    }


def _restore_parts(run: "Run", state: PartsState) -> None:
    if run.drift is not None and state["drift"] is not None:
        run.drift.restore(state["drift"])
    run.network.restore(state["network"])
    run.messages.restore(state["messages"])
    run.tasks.restore(state["tasks"])
    run.lifetimes.restore(state["lifetimes"])
    run.learner.restore(state["learner"])
    run.dispatch.restore(state["server"])


class SavedRun(TypedDict):
    """Whole state of a run in a checkpoint: time, alarms, and the state of every part.

    Attributes:
        origins: fingerprints of the data and input files from which the run was built.
        now: simulated time (s).
        stopped: why the run ends, if its end was requested before the save; otherwise None.
        alarms: the alarms, calls that the clock makes later. Each is a triple of kind, number among
            the alarms of this kind, and time (s).
        recorder: state of the recorder.
        data: sample count and data version of each device; None if data do not shift.
        parts: states of network, tasks and so on.
        processes: states of the world's processes.
        strategy: the strategy's ``state``.
        last: the last evaluation; None before the first.
        served: name of a model -> devices to which the strategy has ever assigned the model; None
            for all devices. Empty unless ``evaluation.score`` is ``historical``.
        unseen: accuracy in the last test of each device that is tested and never trains; None
            without test samples.
        progress: the best test so far (``StopRules.progress``).
    """

    origins: dict[str, str]
    now: float
    stopped: str | None
    alarms: list[tuple[str, int, float]]
    recorder: "RecorderState"
    data: "tuple[Ints, Ints] | None"
    parts: PartsState
    processes: "ProcessesState"
    strategy: Any
    last: Evaluation | None
    served: dict[str, list[int] | None]
    unseen: dict[int, float | None]
    progress: Progress


def resume(folder: Path, run: "Run", recorder: "Recorder", origins: Origins) -> None:
    """Restore a checkpoint in a run that has just been built.

    Args:
        folder: the folder of the checkpoint (``store.latest``).
        run: the run.
        recorder: the recorder of the run.
        origins: fingerprints of the data and input files from which the run was built.

    Raises:
        CheckpointError: the checkpoint cannot be read or is not of this run, or the data or input
            files have changed since.
    """
    checkpoint = store.read(folder)
    decoder = Decoder(checkpoint.arrays)
    state = decoder.decode(checkpoint.tree)
    try:
        origins.refuse_changes(state["origins"])
        _restore(run, recorder, state)
        run.learner.hold_restored([ref for ref in decoder.objects if isinstance(ref, Ref)])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, StopIteration) as error:
        raise CheckpointError(
            f"the state is not of this run: {type(error).__name__}: {error}"
        ) from None


def _restore(run: "Run", recorder: "Recorder", state: SavedRun) -> None:
    """Restore a saved state in a run that has just been built, and set its alarms again."""
    run.simulation.env.restart(state["now"])  # sets the clock to the time of the checkpoint
    run.simulation.stopped = state["stopped"]
    recorder.restore(state["recorder"])
    if run.drift is not None and state["data"] is not None:
        run.population.samples, run.population.version = state["data"]
    _restore_parts(run, state["parts"])
    run.strategy.state = state["strategy"]
    run.evaluator.last = state["last"]
    run.evaluator.served = state["served"]
    run.evaluator.unseen_accuracy = state["unseen"]
    run.ending.progress = state["progress"]
    if recorder.rounds:  # a round had ended before the checkpoint
        run.ending.last_round = recorder.rounds[-1]["round"]
    run.processes.restore(state["processes"])
    # tasks and processes begin before the alarms, which then have the order of the snapshot
    run.simulation.begin_restored()
    run.processes.check_restored(state["alarms"])
    env = run.simulation.env
    # ``declare_alarm`` has stored the function that sets an alarm of each kind again
    for kind, number, when in _with_present_end(run, state["alarms"]):
        if not env.can_rearm(kind):
            raise CheckpointError(f"the state has an alarm of the unknown kind {kind!r}")
        env.rearm(kind, number, when)


def _with_present_end(
    run: "Run", alarms: Sequence[tuple[str, int, float]]
) -> list[tuple[str, int, float]]:
    """Return a checkpoint's alarms, of which the alarm of the run's end is moved to the new end.

    The end time is later than in the checkpoint if the run is continued with ``--more``. The alarm
    of the end comes before all other alarms of the same time, because a run sets it first.

    Args:
        run: the run that is restored, whose scenario has the time of the end.
        alarms: the saved alarms in order of time: name, number and time (s) of each.
    """
    other_alarms = [alarm for alarm in alarms if alarm[0] != "stop"]
    has_end_alarm = len(other_alarms) < len(alarms)
    end_s = run.scenario.stop.simulated_time
    if end_s is None or not has_end_alarm:
        return list(alarms)
    earlier_count = sum(when < end_s for _, _, when in other_alarms)
    end_alarm = ("stop", 0, end_s)
    return [*other_alarms[:earlier_count], end_alarm, *other_alarms[earlier_count:]]
