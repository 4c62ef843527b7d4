"""Saving the state of a whole run as one tree of values, and restoring it.

The tree leaves out all that follows from the scenario: a resumed run is built from that, and then
each part restores its state. Alarms are set again in the order in which they were to ring, which
decides the order within an instant.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsim.clock.simulation import Record
from fedsim.common.errors import CheckpointError
from fedsim.common.files import read_bytes, sought
from fedsim.common.spec import Spec
from fedsim.common.training import Contrast, Limit, Part, Training
from fedsim.federation.client import Instruction, PreviousResult
from fedsim.federation.client_side import TaskContext
from fedsim.federation.contents import Header, Lazy, Opaque, Partial, TaskEnd
from fedsim.learning.evaluation import Evaluation
from fedsim.learning.refs import Applied, Best, Initial, Loss, Mixed, Ref, Trained
from fedsim.running.checkpoint import CheckpointSpec, store
from fedsim.running.checkpoint.codec import Arrays, Encoder, decode
from fedsim.strategies.state import state_classes
from fedsim.world.energy.batteries import Load
from fedsim.world.messages import NOT_SAVED as NOT_SAVED_OF_MESSAGES
from fedsim.world.messages import Message
from fedsim.world.network.flows import Flow
from fedsim.world.network.star import Place, Tier
from fedsim.world.task import (
    NOT_SAVED,
    Code,
    Download,
    Evaluate,
    Pause,
    Payload,
    Queue,
    Task,
    Train,
    Upload,
    Work,
)

if TYPE_CHECKING:
    from fedsim.learning.data.federated import FederatedData
    from fedsim.records.recorder import Recorder
    from fedsim.running.assembly import Run

_CLASSES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        *(Applied, Best, Initial, Loss, Mixed, Ref, Trained, Evaluation),
        *(TaskContext, PreviousResult, Instruction, Header, Lazy, Partial, Opaque, TaskEnd),
        *(
            Task,
            Code,
            Download,
            Evaluate,
            Pause,
            Payload,
            Queue,
            Train,
            Upload,
            Work,
            Training,
            Contrast,
            Limit,
            Part,
        ),
        *(Flow, Message, Load, Place, Tier),
    )
}

_LEFT_OUT = ("Flow.done", *NOT_SAVED, *NOT_SAVED_OF_MESSAGES)
"""Attributes that cannot be written and are made again: callbacks of flows, processes, slots and
alarms.
"""


class Origins:
    """Fingerprints of the data and traces that a run was built from: a resumed run reads their
    files again.
    """

    def __init__(self, run: "Run") -> None:
        self._run = run
        scenario = run.scenario
        sections: dict[str, Spec] = {"population": scenario.population, "network": scenario.network}
        if scenario.learning == "on":
            sections["model"] = scenario.model
        root = scenario.data.own_folder()
        files = {
            key: sought(file, root)
            for section, spec in sections.items()
            for key, file in _files(section, spec)
        }
        self._of_files = {
            key: hashlib.sha256(read_bytes(path)).hexdigest() for key, path in files.items()
        }

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Of each section of the scenario that names files, and of the devices' first data: one
        that others do not have.
        """
        learner = self._run.learner
        data = self._run.data
        # no samples, but their shape and classes
        shape = f"{learner.parameters} parameters, {learner.flops_per_sample} FLOPs"
        return {"data": shape if data is None else _data(data)} | self._of_files

    def refuse_others(self, then: Mapping[str, str]) -> None:
        """See whether all is as it was when a checkpoint was taken; ``CheckpointError`` names
        what is not.
        """
        now = self.fingerprints
        changed = [
            section
            for section in sorted(now.keys() | then.keys())
            if now.get(section) != then.get(section)
        ]
        if changed:
            raise CheckpointError(
                f"what the files of [{'] and ['.join(changed)}] hold has changed since the "
                "checkpoint was taken: the run would "
                "go on as another one; put the old files back to resume it, or run the "
                "scenario again, with another --out"
            )


def _data(data: "FederatedData") -> str:
    """Fingerprint of all samples, and of the shards before any shift."""
    digest = hashlib.sha256()

    def add(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None") -> None:
        if array is None:
            digest.update(b"none\n")
        else:
            digest.update(f"{array.dtype.str} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    for part in (
        data.pool.x,
        data.pool.y,
        *([] if data.pool.targets is None else [data.pool.targets]),
    ):
        add(part)
    for shard in data.shards:
        for held in (shard.train, shard.test, shard.label_map):
            add(held)
        digest.update(f"{shard.quarter_turns} {shard.augment_seed}\n".encode())
    return digest.hexdigest()


def _files(key: str, spec: Spec) -> Iterator[tuple[str, str]]:
    for name, value in spec:
        if isinstance(value, Spec):
            yield from _files(f"{key}.{name}", value)
        elif name == "file" and value is not None:
            yield key, value


class Checkpointer:
    """Watches a run's records and saves it when it is time, at the end of the instant.

    ``tell`` is called when the run was saved, with its rounds and the simulated time (s): a
    power cut cannot take that back.
    """

    def __init__(
        self, spec: CheckpointSpec, folder: Path, run: "Run", recorder: "Recorder", origins: Origins
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._run = run
        self._recorder = recorder
        self._origins = origins
        self.tell: Callable[[int, float], None] = lambda rounds, time: None
        self._due = False
        self._period = self._periods(recorder.last_time)

    def watch(self, record: Record) -> None:
        rounds = self._spec.rounds
        time = self._spec.time
        if (
            rounds is not None
            and record.kind == "round"
            and (record.fields["round"] + 1) % rounds == 0
        ):
            self.request()
        elif time is not None and record.time >= (self._period + 1) * time:
            self._period = self._periods(record.time)
            self.request()

    def _periods(self, time: float) -> int:
        return 0 if self._spec.time is None else int(time // self._spec.time)

    def request(self) -> None:
        if not self._due:
            self._due = True
            self._run.simulation.between_instants(self._take)

    def _take(self) -> None:
        self._due = False
        store.write(
            self._folder,
            self._recorder.chain.count,
            *_taken(self._run, self._recorder, self._origins),
        )
        self.tell(len(self._recorder.rounds), self._run.simulation.now)


def _taken(run: "Run", recorder: "Recorder", origins: Origins) -> tuple[dict[str, Any], Arrays]:
    """The state of a run between two instants, as JSON-able tables and arrays."""
    encoder = Encoder({**_CLASSES, **state_classes()}, _LEFT_OUT)
    tree = encoder.encode(
        {
            "origins": origins.fingerprints,
            "now": run.simulation.now,
            "stopped": run.simulation.stopped,
            "alarms": run.simulation.alarms(),
            "recorder": recorder.snapshot(),
            "data": None if run.drift is None else (run.population.samples, run.population.version),
            **{name: part.snapshot() for name, part in _parts(run).items()},
            "processes": run.processes.snapshot(),
            "strategy": run.strategy.state,
            "last": run.evaluator.last,
            "ever": run.evaluator.ever,
        }
    )
    return tree, encoder.arrays


def _parts(run: "Run") -> dict[str, Any]:
    parts = {
        "network": run.network,
        "edges": run.messages,
        "tasks": run.tasks,
        "lifetimes": run.lifetimes,
    }
    drift = {} if run.drift is None else {"drift": run.drift}
    return drift | parts | {"learner": run.learner, "server": run.dispatch}


def resume(folder: Path, run: "Run", recorder: "Recorder", origins: Origins) -> None:
    """Bring a run just built to where the newest checkpoint of its folder left it;
    ``CheckpointError``: it cannot be.
    """
    _, tree, arrays = store.read(store.latest(folder))
    state = decode(tree, arrays, {**_CLASSES, **state_classes()}, _LEFT_OUT)
    try:
        origins.refuse_others(state["origins"])
        _put_back(run, recorder, state)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, StopIteration) as error:
        raise CheckpointError(
            f"the state is not of this run: {type(error).__name__}: {error}"
        ) from None


def _put_back(run: "Run", recorder: "Recorder", state: dict[str, Any]) -> None:
    run.simulation.env.restart(state["now"])
    run.simulation.stopped = state["stopped"]
    recorder.restore(state["recorder"])
    if run.drift is not None:
        run.population.samples, run.population.version = state["data"]
    for name, part in _parts(run).items():
        part.restore(state[name])
    run.strategy.state = state["strategy"]
    run.evaluator.last = state["last"]
    run.evaluator.ever = state["ever"]
    run.processes.restore(state["processes"], state["alarms"])
    owners = _owners(run)
    for kind, number, when in state["alarms"]:
        if kind not in owners:
            raise CheckpointError(f"the state has an alarm of the unknown kind {kind!r}")
        owners[kind](kind, number, when)


def _owners(run: "Run") -> dict[str, Callable[[str, int, float], object]]:
    owners: dict[str, Callable[[str, int, float], object]] = {"stop": run.rearm}
    owners |= dict.fromkeys(("network", "latency"), run.network.rearm)
    owners |= dict.fromkeys(
        ("step", "look-ahead", "vanish", "battery", "flat", "host"), run.tasks.rearm
    )
    owners |= dict.fromkeys(("arrival", "departure"), run.lifetimes.rearm)
    owners |= dict.fromkeys(("timer", "notice", "return", "shift", "newcomer"), run.dispatch.rearm)
    owners |= dict.fromkeys(("process", "compute"), run.processes.rearm)
    owners["cut"] = run.messages.rearm
    if run.drift is not None:
        owners["drift"] = run.drift.rearm
    return owners
