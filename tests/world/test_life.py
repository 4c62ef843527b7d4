"""Devices at work: what each step takes, how it can end early, and who wins a tie."""

import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsim
from fedsim.clock.simulation import Simulation, on_grid
from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.common.saved import saved_classes
from fedsim.common.training import (
    ALL_SAMPLES,
    Batching,
    LastBatch,
    Limit,
    LocalSteps,
    Part,
    Training,
)
from fedsim.records.recorder import Recorder
from fedsim.toolbox.worlds.availability import Traces
from fedsim.world import steps as kinds_of_steps
from fedsim.world.lifetimes import Lifetimes, bounded
from fedsim.world.meters.energy import POWERS
from fedsim.world.network import Star
from fedsim.world.population import Population
from fedsim.world.steps import (
    Download,
    Evaluate,
    Payload,
    Task,
    TaskStep,
    Train,
    TransferStep,
    Upload,
)
from fedsim.world.task_runner import TaskRunner
from tests.world.sites import WorkSite

MODEL = Download((Payload("model", 1000.0),))
BATCH = 30
UPDATE = Upload((Payload("update", 500.0), Payload("control", 100.0)))
DOWN, TRAINED = ("download", 10.0, "done", 1000.0), ("train", 40.0, "done", 3)


class Site(WorkSite):
    """Two devices: 100 B/s down, 50 B/s up, no latency; 10 s an epoch (device 0), 20 s (device
    1); unless said otherwise.

    Both vanish at ``off`` (s) for as long as the run lasts, and are there within their
    ``lifetime`` (s).
    """

    def __init__(
        self,
        off: float = math.inf,
        latency: float = 0.0,
        lifetime: tuple[float, float] = (0.0, math.inf),
        speed: float = 10.0,
        samples: tuple[int, int] = (100, 200),
        rates: tuple[float, float] = (100.0, 50.0),
    ) -> None:
        self.lives = np.full(2, lifetime[0]), np.full(2, lifetime[1])
        population = Population(np.full(2, speed), np.array(samples), 1.0, *self.lives)
        network = Star(
            Simulation(), *(np.full(2, value) for value in (*rates, latency)), math.inf, math.inf
        )
        availability = bounded(Traces([(math.inf, [0.0, off])], [0, 0]), *self.lives)
        super().__init__(network, population, availability, batch_size=BATCH)

    def carried_out(self, *steps: TaskStep, device: int = 0) -> list[tuple[Any, ...]]:
        """Carry out one task; see ``steps``."""
        self.tasks.start(device, steps, round=0, group=None)
        self.run()
        return self.steps(device)

    def end_at(self, time: float) -> None:
        """The server ends task 0 at a time; it acts only when the world stands still."""

        async def end() -> None:
            self.tasks.end(0, "late")

        self.simulation.wake(("end", 0), time, lambda: self.simulation.post(end))


def test_a_task_from_begin_to_end() -> None:
    site = Site()
    steps = site.carried_out(MODEL, Train(Training("model", 3)), UPDATE)
    assert steps == [DOWN, TRAINED, ("upload", 52.0, "done", 600.0)]
    (task,) = site.ended
    assert (task.outcome, task.epochs, site.tasks.running) == ("done", 3, {})
    assert site.tasks.is_idle(0)
    kinds = [record.kind for record in site.records]
    assert kinds == ["task-start", *["step-start", "step-end"] * 3, "task-end"]


@pytest.mark.parametrize("outcome", ["lost", "left"])
@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (4.0, [("download", 4.0, None, 400.0)]),
        # what is complete in that instant counts, and the next step ends at once
        (10.0, [DOWN, ("train", 10.0, None, 0)]),
        (25.0, [DOWN, ("train", 25.0, None, 1)]),
        (40.0, [DOWN, TRAINED, ("upload", 40.0, None, 0.0)]),
        (46.0, [DOWN, TRAINED, ("upload", 46.0, None, 300.0)]),
        (52.0, [DOWN, TRAINED, ("upload", 52.0, "done", 600.0)]),
    ],
)
def test_who_vanishes_or_leaves_loses_its_task_and_is_charged_for_what_moved(
    when: float, expected: list[Any], outcome: str
) -> None:
    site = Site(when) if outcome == "lost" else Site(lifetime=(0.0, when))
    steps = site.carried_out(MODEL, Train(Training("model", 3)), UPDATE)
    assert steps == [(name, end, how or outcome, amount) for name, end, how, amount in expected]
    assert (site.ended[0].outcome, site.simulation.now) == (steps[-1][2], when)
    assert not site.tasks.is_idle(0)
    assert not site.tasks.anyone_ever()


def test_nothing_has_moved_in_latency_and_an_evaluation_can_be_left() -> None:
    """An evaluation takes a forward pass, a third of a training's step, for each model."""
    assert Site(3.0, latency=5.0).carried_out(MODEL) == [("download", 3.0, "lost", 0.0)]
    assert Site(lifetime=(0.0, 7.0)).carried_out(Evaluate(("a", "b", "c")))[0][:3] == (
        "evaluate",
        7.0,
        "left",
    )
    assert Site().carried_out(Evaluate(("a", "b", "c")), device=1)[0][:3] == (
        "evaluate",
        pytest.approx(20.0),
        "done",
    )


@pytest.mark.parametrize(
    ("off", "departure", "outcome"), [(4.0, 5.0, "lost"), (5.0, 5.0, "left"), (6.0, 5.0, "left")]
)
def test_who_vanishes_before_it_leaves_loses_its_task(
    off: float, departure: float, outcome: str
) -> None:
    site = Site(off, lifetime=(0.0, departure))
    assert site.carried_out(MODEL) == [
        ("download", min(off, departure), outcome, 100.0 * min(off, departure))
    ]


def test_a_newcomer_is_nobody_before_its_arrival_and_gets_a_task_then() -> None:
    site = Site(lifetime=(30.0, 60.0))
    tasks = site.tasks
    told: list[tuple[float, bool]] = []

    async def ask(device: int) -> None:
        told.append((site.simulation.now, tasks.is_idle(device)))
        if device == 0:
            tasks.start(device, (MODEL, UPDATE), 0, None)

    Lifetimes(
        site.simulation,
        *site.lives,
        site.availability,
        lambda device: site.simulation.post(partial(ask, device)),
    )
    assert not tasks.is_idle(0)
    assert tasks.anyone_ever()
    assert tasks.next_on(0, 0.0) == 30.0
    site.run()
    assert told == [(30.0, True), (30.0, True)]
    (task,) = site.ended
    assert (task.device, task.outcome) == (0, "done")
    kinds = [(record.time, record.kind) for record in site.records if "step" not in record.kind]
    assert kinds == [
        (30.0, "arrival"),
        (30.0, "arrival"),
        (30.0, "task-start"),
        (52.0, "task-end"),
        *[(60.0, "departure")] * 2,
    ]
    assert not tasks.is_idle(0)


def test_a_device_that_left_is_recorded_before_its_task_ends() -> None:
    site = Site(lifetime=(0.0, 25.0))
    Lifetimes(site.simulation, *site.lives, site.availability, lambda device: None)
    site.carried_out(MODEL, Train(Training("model", 3)), UPDATE)
    last = [(record.time, record.kind) for record in site.records[-4:]]
    assert last == [
        (25.0, "departure"),
        (25.0, "departure"),
        (25.0, "step-end"),
        (25.0, "task-end"),
    ]


@pytest.mark.parametrize(
    ("step", "time", "end", "noted"),
    [
        (Train(Training("m", 3)), 5.0, 55.0, (150, 1)),
        (Train(Training("m", 3)), 25.0, 40.0, (100, 0)),
        (Evaluate(("a",)), 5.0, 15.0, (150, 1)),
        # a part is what is trained on
        (Train(Training("m", 1, part=Part(2, 4, 98))), 11.0, 12.4, (24, 0)),
        (MODEL, 25.0, 20.0, (100, 0)),  # without computing, all that is held
    ],
)
def test_a_task_knows_what_it_computed_on(
    step: TaskStep, time: float, end: float, noted: tuple[int, int]
) -> None:
    """A shift while a device works counts from its next computation."""
    site = Site()
    site.simulation.wake(("shift", 0), time, lambda: site.population.shift(0, 1, 150))
    assert site.carried_out(MODEL, step)[-1][:3] == (step.name, pytest.approx(end), "done")
    assert (site.ended[0].samples, site.ended[0].version) == noted


class TestIterations:
    @given(
        st.integers(0, 40),
        st.integers(1, 50),
        st.integers(1, 200),
        st.sampled_from(get_args(LastBatch)),
    )
    def test_samples_processed_are_those_of_the_batches_one_by_one(
        self, samples: int, batch_size: int, iterations: int, last: LastBatch
    ) -> None:
        sizes = [min(batch_size, samples - at) for at in range(0, samples, batch_size)] or [0]
        if len(sizes) > 1 and sizes[-1] < batch_size and last != "keep":
            left_over = sizes.pop()
            sizes[-1] += left_over if last == "merge" else 0
        batching = Batching(batch_size, last)
        processed = sum(sizes[step % len(sizes)] for step in range(iterations))
        assert (
            Training("m", LocalSteps(iterations)).samples_an_epoch(samples, batching) == processed
        )
        assert Training("m", 3).samples_an_epoch(samples, batching) == sum(sizes)
        assert Training("m", 3).sgd_steps(samples, batching) == (3 * len(sizes) if samples else 0)

    @pytest.mark.parametrize(
        ("train", "end"),
        [
            # 30 + 30 + 30 + 10 + 30 + 30 + 30 samples, 10 a second
            (Train(Training("m", LocalSteps(7))), 19.0),
            (Train(Training("m", LocalSteps(4))), 10.0),
            (Train(Training("m", LocalSteps(9))), 23.0),  # twice all, and a batch
            (Train(Training("m", LocalSteps(3), batch_size=ALL_SAMPLES)), 30.0),
            (Train(Training("m", 2, batch_size=ALL_SAMPLES)), 20.0),
            # 25 samples, less than a batch: 5 times all
            (Train(Training("m", LocalSteps(5), part=Part(2, 1, 100))), 12.5),
            (Train(Training("m", 2, part=Part(2, 1, 100))), 5.0),
        ],
    )
    def test_they_take_the_time_of_what_they_process_and_count_as_one_epoch(
        self, train: Train, end: float
    ) -> None:
        """Cut off they are late, and none counts."""
        assert Site().carried_out(train) == [("train", end, "done", train.training.epochs)]
        cut = Train(train.training, Limit(budget=end / train.training.epochs - 1.0))
        assert Site().carried_out(cut) == [("train", end / train.training.epochs - 1.0, "late", 0)]

    def test_steps_out_of_bounds_are_refused(self) -> None:
        with pytest.raises(SimulationError, match="steps=0"):
            LocalSteps(0)
        with pytest.raises(SimulationError, match="only_batch=-1"):
            LocalSteps(2, only_batch=-1)


def test_what_continues_is_no_selection_of_its_own() -> None:
    site = Site()
    site.carried_out(MODEL)
    site.tasks.start(0, (MODEL,), 0, None, continues=True)
    site.run()
    assert (site.tasks.times_asked[0], site.tasks.times_selected[0]) == (2, 1)
    starts = [record.fields for record in site.records if record.kind == "task-start"]
    assert ["continues" in fields for fields in starts] == [False, True]


@pytest.mark.parametrize(
    ("time", "end"),
    [
        (4.0, ("download", 4.0, "late", 400.0)),
        (35.0, ("train", 35.0, "late", 2)),
        (41.0, ("upload", 41.0, "late", 50.0)),
        (52.0, ("upload", 52.0, "done", 600.0)),  # in the instant of the deadline: in time
    ],
)
def test_the_server_can_end_any_step(time: float, end: tuple[Any, ...]) -> None:
    site = Site()
    site.end_at(time)
    assert site.carried_out(MODEL, Train(Training("model", 3)), UPDATE)[-1] == end
    assert site.ended[0].outcome == end[2]


class TestBudgets:
    @pytest.mark.parametrize(
        ("epochs", "limit", "expected"),
        [
            (3, Limit(budget=30.0), (30.0, "done", 3)),  # all fit exactly: an epoch takes 10 s
            # a nanosecond short the last does not count
            (3, Limit(budget=30.0 - 1e-9), (30.0, "done", 2)),
            (3, Limit(budget=30.0 - 1e-9, at_least=3), (30.0, "late", 2)),
            (9, Limit(stop_at=25.0), (25.0, "done", 2)),  # absolute
            (9, Limit(stop_at=25.0, budget=12.0), (12.0, "done", 1)),  # the earlier limit counts
            (9, Limit(budget=9.0), (9.0, "late", 0)),
            (9, Limit(budget=9.0, at_least=0), (9.0, "done", 0)),
            # stops when another epoch would not fit
            (1000, Limit(budget=35.0, adaptive=True), (30.0, "done", 3)),
            (1000, Limit(budget=40.0, adaptive=True), (40.0, "done", 4)),
            (1000, Limit(budget=9.0, adaptive=True, at_least=0), (9.0, "done", 0)),
        ],
    )
    def test_epochs_within_a_limit(
        self, epochs: int, limit: Limit, expected: tuple[float, str, int]
    ) -> None:
        ((_, end, outcome, done),) = Site().carried_out(Train(Training("m", epochs), limit))
        assert (end, outcome, done) == (pytest.approx(expected[0], abs=2e-9), *expected[1:])

    @pytest.mark.parametrize(("at_least", "sent"), [(1, 600.0), (3, 600.0), (4, 100.0)])
    def test_who_goes_on_with_too_few_epochs_sends_what_it_has_instead(
        self, at_least: int, sent: float
    ) -> None:
        site = Site()
        site.following = lambda task: (
            UPDATE if task.epochs else Upload((Payload("control", 100.0),)),
        )
        steps = site.carried_out(
            Train(Training("m", 4), Limit(budget=39.0, at_least=at_least, go_on=True))
        )
        assert [step[2] for step in steps] == ["done", "done"]
        assert steps[1][3] == sent
        assert site.ended[0].epochs == (3 if sent == 600.0 else 0)

    def test_time_for_the_upload_is_kept_back(self) -> None:
        steps = Site().carried_out(
            Train(Training("m", 9), Limit(stop_at=42.0, reserve_upload=600.0)), UPDATE
        )
        assert steps == [("train", 30.0, "done", 3), ("upload", 42.0, "done", 600.0)]


@given(
    rate=st.floats(1.0, 1e7),
    size=st.integers(1, 10**6),
    latency=st.sampled_from([0.0, 0.05, 1 / 3]),
    stop=st.floats(1e3, 1e6),
)
def test_an_upload_for_which_time_was_kept_back_arrives_in_time(
    rate: float, size: int, latency: float, stop: float
) -> None:
    """Alone on its link, whatever the rate: a device that stops for its upload is never late by
    the last tick.
    """
    if latency + size / rate > stop - 100:
        return
    stop_at = on_grid(stop)
    train = Train(Training("m", 10**6), Limit(stop_at=stop_at, reserve_upload=float(size)))
    task, _ = alone(
        1.0,
        100,
        (1e9, rate),
        latency,
        (train, Upload((Payload("update", size),))),
        deadline=stop_at,
    )
    assert task.outcome == "done"


def alone(
    speed: float,
    samples: int,
    rates: tuple[float, float],
    latency: float,
    steps: tuple[TaskStep, ...],
    more: tuple[TaskStep, ...] = (),
    begin: float = 0.0,
    deadline: float | None = None,
) -> tuple[Task, float]:
    """A task of a single device, which the server ends at a deadline (s); and when the run was
    over (s).
    """
    site = Site(latency=latency, speed=speed, samples=(samples, samples), rates=rates)
    site.following = lambda task: more
    site.start(*steps, at=begin)
    if deadline is not None:
        site.end_at(deadline)
    site.run()
    return site.ended[0], site.simulation.now


def test_a_busy_device_and_an_empty_task_are_refused() -> None:
    site = Site()
    site.tasks.start(0, (MODEL,), None, None)
    with pytest.raises(SimulationError, match="device 0 still works on task 0"):
        site.tasks.start(0, (MODEL,), None, None)
    site.tasks.start(1, (), None, None)
    with pytest.raises(SimulationError, match="no steps"):
        site.run()


class TestDeadlineInDecimals:
    """A task of 0.8 + 10 + 0.8 s is in time for a deadline of 11.6 s, although no tick of the
    clock lies on any of these.
    """

    def outcome(
        self,
        begin: float,
        parts: tuple[int, int, int],
        deadline: int,
        *more: TaskStep,
        latency: float = 0.0,
    ) -> Task:
        """Of a task whose parts take so many tenths of a second, as has the deadline."""
        down, train, up = parts
        steps = (
            Download((Payload("model", 10 * (down - 10 * latency)),)),
            Train(Training("m", 1)),
            Upload((Payload("update", 10 * (up - 10 * latency)),)),
        )
        due = on_grid(on_grid(begin) + deadline / 10)
        task, now = alone(
            1000 / (train / 10), 1000, (100.0, 100.0), latency, steps, more, on_grid(begin), due
        )
        assert now <= due
        return task

    TENTHS = st.tuples(st.integers(2, 200), st.integers(1, 500), st.integers(2, 200))

    @given(begin=st.floats(0.0, 1e6), parts=TENTHS, latency=st.sampled_from([0.0, 0.1]))
    def test_what_takes_exactly_so_long_is_done(
        self, begin: float, parts: tuple[int, int, int], latency: float
    ) -> None:
        task = self.outcome(begin, parts, sum(parts), latency=latency)
        assert (task.outcome, task.epochs) == ("done", 1)

    @given(begin=st.floats(0.0, 1e6), parts=TENTHS)
    def test_what_takes_a_tenth_more_is_late(
        self, begin: float, parts: tuple[int, int, int]
    ) -> None:
        assert self.outcome(begin, parts, sum(parts) - 1).outcome == "late"

    def test_what_has_more_to_do_is_late(self) -> None:
        task = self.outcome(0.3, (8, 100, 8), 116, Upload((Payload("control", 1.0),)))
        assert (task.outcome, task.position) == ("late", 3)

    @given(begin=st.floats(0.0, 1e6), tenths=st.integers(1, 300), epochs=st.integers(1, 7))
    def test_epochs_that_end_with_the_time_for_training_count(
        self, begin: float, tenths: int, epochs: int
    ) -> None:
        """Of a device that keeps time back for its upload."""
        stop_at = on_grid(on_grid(begin) + (tenths * epochs + 8) / 10)
        train = Train(Training("m", 9), Limit(stop_at=stop_at, reserve_upload=80.0))
        steps = (train, Upload((Payload("update", 80.0),)))
        task, now = alone(
            1000 / (tenths / 10), 1000, (100.0, 100.0), 0.0, steps, begin=on_grid(begin)
        )
        assert task.epochs == epochs
        assert now <= stop_at


@pytest.mark.parametrize("before", [True, False], ids=["before the look", "after it"])
@pytest.mark.parametrize("at", [4.0, 8.0, 9.0])
def test_a_device_switched_off_while_the_workforce_looks_ahead(at: float, before: bool) -> None:
    """Looks at 4, 8 and 16 s at a training of 30 s: whoever comes first at such a tick, the
    training is lost at it.
    """
    site = Site()
    site.tasks.compute.reach_s = 4.0

    def off() -> None:
        site.tasks.switch_off(0)

    if before:
        site.simulation.wake(("off", 0), at, off)
    else:  # an alarm that is set when the look's is there already comes after it
        site.simulation.wake(
            ("set", 0), at - 0.5, lambda: site.simulation.wake(("off", 0), at, off) and None
        )
    assert site.carried_out(Train(Training("model", 3))) == [("train", at, "lost", 0)]
    assert site.simulation.now == at


@dataclass(frozen=True, slots=True)
class ReadSamples(TaskStep):
    """A kind of step of this test: the device reads its samples, at ``rate`` (samples/s)."""

    rate: float
    name = "read"
    power = "compute"

    def begin(self, task: Task, services: TaskRunner) -> None:
        services.note_data(task)
        seconds = task.samples / self.rate
        services.end_step_at(task, on_grid(services.simulation.now + seconds))


@pytest.mark.parametrize(
    ("off", "late", "step"),
    [
        (math.inf, math.inf, ("read", 12.0, "done")),
        (11.0, math.inf, ("read", 11.0, "lost")),
        (math.inf, 11.5, ("read", 11.5, "late")),
        (math.inf, 12.0, ("read", 12.0, "done")),
    ],
)
def test_a_kind_of_step_is_one_class(off: float, late: float, step: tuple[Any, ...]) -> None:
    site = Site(off=off)
    if late < math.inf:
        site.end_at(late)
    steps = site.carried_out(MODEL, ReadSamples(50.0), Train(Training("model", 3)))
    assert steps[1][:3] == step
    assert saved_classes()[f"{__name__}:ReadSamples"] is ReadSamples
    assert POWERS["read"] == "compute"


def test_powers_for_audits_are_those_of_the_steps() -> None:
    powers = {}
    for step in saved_classes().values():
        if not issubclass(step, TaskStep) or not step.__module__.startswith("fedsim."):
            continue
        for name in step.names or (step.__dict__.get("name"),):
            if step.power is not None and isinstance(name, str):
                powers[name] = step.power
    script = (
        "import json, sys; from fedsim.world.meters.energy import POWERS; "
        "assert 'fedsim.world.steps' not in sys.modules; print(json.dumps(POWERS))"
    )
    listed = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert json.loads(listed.stdout) == powers


@pytest.mark.parametrize("base", [TaskStep, TransferStep, Download])
def test_a_message_step_whose_bytes_would_not_be_counted_is_refused(base: type[TaskStep]) -> None:
    with pytest.raises(ScenarioError, match=r"own:Probe .*'probe'.*a class that inherits Upload"):
        type("Probe", (base,), {"__module__": "own", "name": "probe", "direction": "up"})
    assert "own:Probe" not in saved_classes()


@pytest.mark.parametrize(("base", "direction"), [(Download, "up"), (Upload, "down")])
def test_a_message_step_does_not_turn_the_direction_of_its_base(
    base: type[TaskStep], direction: str
) -> None:
    with pytest.raises(ScenarioError, match=f"own:Back .*direction = '{direction}'"):
        type("Back", (base,), {"__module__": "own", "direction": direction})


def test_a_message_step_without_a_name_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"own:Nameless .*the name None"):
        type("Nameless", (TransferStep,), {"__module__": "own", "direction": "up"})


def test_a_message_step_of_a_user_is_counted() -> None:
    class Probe(Upload):
        pass

    site = Site()
    recorder = Recorder(None)
    site.tasks.simulation.listen(recorder.take)
    steps = site.carried_out(Probe((Payload("probe", 10.0),)))
    assert [name for name, *_ in steps] == ["upload"]
    assert recorder.ledger.up == 10.0
    assert recorder.ledger.by_purpose == {"probe": 10.0}


def test_the_places_of_a_kind_of_step_exist() -> None:
    """The docstring of the steps names files, and names in them; a file stands after its names."""
    package = Path(fedsim.__file__).parent
    places = re.findall(r"``([^`]+)``(?: of ``([^`]+[.]py)``)?", str(kinds_of_steps.__doc__))
    files = {file or name for name, file in places if (file or name).endswith(".py")}
    assert len(files) > 6
    assert all((package / file).is_file() for file in files)
    found = [(name, file) for name, file in places if file]
    assert len(found) > 6
    for name, file in found:
        assert re.search(rf"\b{name}\b", (package / file).read_text()), (name, file)


def test_a_step_of_a_user_may_have_the_name_of_another_class() -> None:
    own = type("Train", (TaskStep,), {"__module__": "own_steps"})
    assert saved_classes()["own_steps:Train"] is own
    assert saved_classes()["Train"] is Train
