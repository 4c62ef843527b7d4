"""A whole run as one tree of values, and a run put back to where it was.

What follows from the scenario is not in it: the run is built from that, and then each part takes up what it had to
remember. Alarms are set again in the order in which they were to ring, so that those of one instant ring as they would have.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedsim.checkpoint.codec import Arrays, Encoder, decode
from fedsim.checkpoint.origins import Origins
from fedsim.errors import CheckpointError
from fedsim.federation.client import Instruction, PreviousResult
from fedsim.federation.client_side import TaskContext
from fedsim.federation.contents import Header, Lazy, Opaque, Partial
from fedsim.federation.messages import TaskEnd
from fedsim.learning.evaluation import Evaluation
from fedsim.learning.refs import Applied, Best, Initial, Loss, Mixed, Ref, Trained
from fedsim.training import Contrast, Limit, Part, Training
from fedsim.world.batteries import Load
from fedsim.world.messages import NOT_SAVED as NOT_SAVED_OF_MESSAGES
from fedsim.world.messages import Message
from fedsim.world.network.endpoints import Flow
from fedsim.world.network.star import Place, Tier
from fedsim.world.task import NOT_SAVED, Code, Download, Evaluate, Pause, Payload, Queue, Task, Train, Upload, Work

if TYPE_CHECKING:
    from fedsim.records.recorder import Recorder
    from fedsim.running.assembly import Run

_CLASSES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        *(Applied, Best, Initial, Loss, Mixed, Ref, Trained, Evaluation),
        *(TaskContext, PreviousResult, Instruction, Header, Lazy, Partial, Opaque, TaskEnd),
        *(Task, Code, Download, Evaluate, Pause, Payload, Queue, Train, Upload, Work, Training, Contrast, Limit, Part),
        *(Flow, Message, Load, Place, Tier),
    )
}

_LEFT_OUT = ("Flow.done", *NOT_SAVED, *NOT_SAVED_OF_MESSAGES)
"""Attributes that cannot be written and are made again: callbacks of flows, processes, slots and alarms."""


def take(run: "Run", recorder: "Recorder", origins: Origins) -> tuple[dict[str, Any], Arrays]:
    """All that a run must remember between two instants, as JSON-able tables and arrays.

    Raises:
        SimulationError: something waits that has no name.
        CheckpointError: the strategy's state holds something that cannot be written.
    """
    encoder = Encoder(_CLASSES, _LEFT_OUT)
    tree = encoder.encode(
        {
            "origins": origins.fingerprints,
            "now": run.simulation.now,
            "stopped": run.simulation.stopped,
            "alarms": run.simulation.alarms(),
            "recorder": recorder.snapshot(),
            "data": None if run.drift is None else (run.population.samples, run.population.version),
            "network": run.network.snapshot(),
            "tasks": run.tasks.snapshot(),
            "edges": run.messages.snapshot(),
            "lifetimes": run.lifetimes.snapshot(),
            "processes": run.processes.snapshot(),
            "drift": None if run.drift is None else run.drift.snapshot(),
            "learner": run.learner.snapshot(),
            "server": run.dispatch.snapshot(),
            "strategy": run.strategy.state,
            "last": run.evaluator.last,
            "ever": run.evaluator.ever,
        }
    )
    return tree, encoder.arrays


def put_back(run: "Run", recorder: "Recorder", origins: Origins, tree: Any, arrays: Arrays) -> None:
    """Bring a run that was just built to where it was when the snapshot was taken.

    Raises:
        CheckpointError: the snapshot is malformed, not of such a run, or of one that was built from other data.
    """
    state = decode(tree, arrays, _CLASSES, _LEFT_OUT)
    try:
        origins.refuse_others(state["origins"])
        _put_back(run, recorder, state)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, StopIteration) as error:
        raise CheckpointError(f"the state is not of this run: {type(error).__name__}: {error}") from None


def _put_back(run: "Run", recorder: "Recorder", state: dict[str, Any]) -> None:
    run.simulation.env.restart(state["now"])
    run.simulation.stopped = state["stopped"]
    recorder.restore(state["recorder"])
    if run.drift is not None:
        run.drift.restore(state["drift"])
        run.population.samples, run.population.version = state["data"]
    run.network.restore(state["network"])
    run.messages.restore(state["edges"])
    run.tasks.restore(state["tasks"])
    run.lifetimes.restore(state["lifetimes"])
    run.learner.restore(state["learner"])
    run.dispatch.restore(state["server"])
    run.strategy.state = state["strategy"]
    run.evaluator.last, run.evaluator.ever = state["last"], state["ever"]
    run.processes.restore(state["processes"], state["alarms"])
    owners = _owners(run)
    for kind, number, when in state["alarms"]:
        if kind not in owners:
            raise CheckpointError(f"the state has an alarm of the unknown kind {kind!r}")
        owners[kind](kind, number, when)


def _owners(run: "Run") -> dict[str, Callable[[str, int, float], object]]:
    """The method that sets an alarm of each kind again."""
    owners: dict[str, Callable[[str, int, float], object]] = {"stop": run.rearm}
    owners |= dict.fromkeys(("network", "latency"), run.network.rearm)
    owners |= dict.fromkeys(("step", "look-ahead", "vanish", "battery", "flat", "host"), run.tasks.rearm)
    owners |= dict.fromkeys(("arrival", "departure"), run.lifetimes.rearm)
    owners |= dict.fromkeys(("timer", "notice", "return", "shift", "newcomer"), run.dispatch.rearm)
    owners |= dict.fromkeys(("process", "compute"), run.processes.rearm)
    owners["cut"] = run.messages.rearm
    if run.drift is not None:
        owners["drift"] = run.drift.rearm
    return owners
