"""Small worlds, and the contract that every strategy must pass; published as ``fedsim.testing``."""

import asyncio
import copy
import json
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import fedsim
from fedsim.clock.executors import Executor, Inline, Threads
from fedsim.common.round_words import counted
from fedsim.lab.audited import audit_run
from fedsim.learning.data.federated import FederatedData
from fedsim.records.reading import RunFolder
from fedsim.running.runner import Job

__all__ = [  # noqa: RUF022 - the contract, its worlds, running them, comparing runs
    "StrategyContract", "quiet_world", "eventful_world", "run", "run_until", "go_on", "give_other_tests", "Delayed",
    "assert_sound", "assert_same_run", "ScenarioTables", "TABLES", "FIGURES",
]  # fmt: skip

T = TypeVar("T")
ScenarioTables = dict[str, Any]

TABLES = (
    "events.parquet",
    "transfers.parquet",
    "rounds.parquet",
    "devices.parquet",
    "availability.parquet",
    "scenario.toml",
)
"""Files of a run folder that are byte for byte the same for two equal runs."""

FIGURES = (
    "events_sha256",
    "models_sha256",
    "events",
    "simulated_s",
    "bytes",
    "accuracy",
    "rounds",
    "stopped",
    "status",
)
"""Entries of ``summary.json`` that are the same for two equal runs."""

_STAR = {
    "kind": "star",
    "server": {"down": "2 Mbit/s", "up": "1 Mbit/s"},
    "device": {"down": "1 Mbit/s", "up": "500 kbit/s", "latency": "40 ms"},
}


def quiet_world(
    strategy: Mapping[str, object], *, seed: int = 3, rounds: int = 5
) -> ScenarioTables:
    """Return a small scenario, for tests of strategies, in which no device disconnects.

    It has 24 devices of unequal speed that are always online. Their data are digits in four
    rotations.

    Args:
        strategy: the table ``[strategy]``.
        seed: seed of the run.
        rounds: count of rounds after which the run ends.

    Returns:
        The tables of the scenario. The caller may change them.

    Example:
        >>> from fedsim.testing import quiet_world, run
        >>> sections = quiet_world({"kind": "fedavg", "clients_per_round": 5}, rounds=2)
        >>> run(sections | {"learning": "off"})["stopped"]
        '2 rounds'
    """
    return {
        "seed": seed,
        "data": {"source": "digits", "partition": "rotations"},
        "training": {"lr": 0.05, "batch_size": 8},
        "population": {
            "devices": 24,
            "speed": {"kind": "lognormal", "median": "60 samples/s", "spread": 2.0},
            "jitter": 0.2,
        },
        "network": copy.deepcopy(_STAR),
        "strategy": copy.deepcopy(dict(strategy)),
        "stop": {"rounds": rounds, "simulated_time": "1 day"},
    }


def eventful_world(
    strategy: Mapping[str, object], *, seed: int = 3, rounds: int = 8
) -> ScenarioTables:
    """Return a small scenario, for tests of strategies, with every kind of event.

    It is ``quiet_world`` with devices that disconnect, arrive and leave, with data that drift, and
    with checkpoints.

    Args:
        strategy: the table ``[strategy]``.
        seed: seed of the run.
        rounds: count of rounds after which the run ends.

    Returns:
        The tables of the scenario. The caller may change them.

    Example:
        >>> from fedsim.testing import eventful_world, run
        >>> sections = eventful_world({"kind": "fedavg", "clients_per_round": 5}, rounds=3)
        >>> run(sections | {"learning": "off"})["rounds"]
        3
    """
    sections = quiet_world(strategy, seed=seed, rounds=rounds)
    sections["population"] |= {
        "availability": {"kind": "renewal", "mean_on": "60 s", "mean_off": "10 s"},
        "arrivals": {"kind": "poisson", "rate": "300 /h", "newcomers": 6},
        "departures": {"kind": "exponential", "mean_stay": "10 min", "share": 0.3},
    }
    return sections | {
        "drift": {"kind": "swap-all", "probability": 0.3},
        "checkpoint": {"time": "40 s"},
    }


class Delayed(Threads):
    """Executor of threads with a random real delay of up to 3 ms before each function, for tests.

    It tests that results do not depend on when a function ends, so no seed determines the delay.

    Args:
        workers: count of threads.
    """

    def submit(self, function: Callable[..., T], *args: object) -> "Future[T]":
        """Call ``function(*args)`` in a thread after a delay.

        Args:
            function: the function.
            args: arguments of the function.

        Returns:
            The future of the result.
        """

        def call_late() -> T:
            time.sleep(random.SystemRandom().random() * 0.003)
            return function(*args)

        return super().submit(call_late)


def run(
    sections: ScenarioTables, folder: Path | None = None, executor: Executor | None = None
) -> dict[str, Any]:
    """Run a scenario to its end and return its summary.

    Args:
        sections: the tables of the scenario.
        folder: the run folder to write; None to write no folder.
        executor: executor of the learning; by default ``Inline()``.

    Returns:
        The summary of the run.

    Raises:
        ScenarioError: the scenario is invalid.
    """
    if executor is None:
        executor = Inline()
    job = Job(fedsim.Scenario(**sections), folder, executor)
    return asyncio.run(job.execute()).summary


def run_until(sections: ScenarioTables, folder: Path, records: int, *, resume: bool = False) -> str:
    """Start or resume the run of a scenario, and interrupt it after a number of records.

    Args:
        sections: the tables of the scenario.
        folder: the run folder.
        records: count of records (rows of ``events.parquet``), from the start of this call, after
            which the run is interrupted.
        resume: whether to resume the run in ``folder``.

    Returns:
        The status of the run: ``"interrupted"``, or ``"done"`` if it ended before.
    """
    job = Job(fedsim.Scenario(**sections), folder, Inline(), resume=resume)
    record_numbers = count(1)

    def interrupt_at_last(_: object) -> None:
        if next(record_numbers) == records:
            job.interrupt()

    job.simulation.listen(interrupt_at_last)
    return str(asyncio.run(job.execute()).summary["status"])


def go_on(sections: ScenarioTables, folder: Path) -> dict[str, Any]:
    """Resume an interrupted run, run it to its end, and return its summary.

    Args:
        sections: the tables of the scenario.
        folder: folder of the interrupted run.

    Returns:
        The summary of the whole run.
    """
    job = Job(fedsim.Scenario(**sections), folder, Inline(), resume=True)
    return asyncio.run(job.execute()).summary


def give_other_tests(data: FederatedData) -> None:
    """Replace every device's test samples, to prove that a run does not depend on them.

    Device d is tested with at most 1 + d test samples, all of class d mod C, for C classes.

    Args:
        data: data of all devices, changed in place.
    """
    test_samples = np.unique(np.concatenate([shard.test for shard in data.shards]))
    classes = data.pool.y[test_samples]
    for device, shard in enumerate(data.shards):
        of_one_class = test_samples[classes == device % data.pool.classes]
        data.shards[device] = replace(shard, test=of_one_class[: 1 + device])


_ADVICE = {
    "every valid update was aggregated once": (
        "pass each update that went into a model to 'Server.finish_round(number, models, "
        'updates=[Measured(message["update"], weight)])\', or name its task in a record '
        "'aggregate' of your own ('Synchronous.record_aggregate', 'Server.emit'); ask a device "
        "without 'round' for anything that is no update of the round, and name a task in one "
        "aggregation only"
    ),
    "rounds agree with their tasks": (
        "the counts of 'Server.finish_round' are of the tasks asked with its 'round': 'selected' "
        "all of them, 'valid' those that are done with a finished epoch, 'slow' those that are "
        "late or done without one, 'disconnected' those that are lost; leave all four out, or ask "
        "probes without 'round'; finish a round when all its tasks have ended"
    ),
    "deadlines held": (
        "end open tasks by 'Server.end(task)' at the 'deadline' that your record 'round-start' "
        "names, or do not name one"
    ),
    "no device does two things at once": (
        "ask only devices for which 'Server.clients.idle(device)' is true"
    ),
    "meters agree with the records": (
        "a meter counts from its arguments alone: no time of the clock, no random numbers, "
        "nothing kept outside of 'self'"
    ),
}
"""Advice to the author of a strategy whose run fails a check of the audit, by title of check."""


def assert_sound(folder: Path) -> RunFolder:
    """Assert that a run folder passes the audit, which checks that its records are consistent.

    Args:
        folder: folder of a finished run.

    Returns:
        The run folder, for reading.

    Raises:
        AssertionError: a check fails. The message has its first problems, and advice.

    Example:
        >>> from pathlib import Path
        >>> from fedsim.testing import assert_sound, quiet_world, run
        >>> sections = quiet_world({"kind": "fedavg", "clients_per_round": 5}, rounds=2)
        >>> summary = run(sections | {"learning": "off"}, Path("run"))
        >>> assert_sound(Path("run")).size("rounds.parquet")
        2
    """
    lines = []
    for name, problems in audit_run(folder).findings.items():
        if problems:
            lines += [f"{name}? {counted(len(problems), 'problem')}:", *problems[:5]]
            if name in _ADVICE:
                lines.append(f"What to do: {_ADVICE[name]}.")
    assert not lines, "the run folder fails its audit\n" + "\n".join(lines)
    return RunFolder(folder)


def _sound_run(sections: ScenarioTables, folder: Path) -> RunFolder:
    run(sections, folder)
    return assert_sound(folder)


_STATE_ADVICE = (
    "whatever lasts is in 'Strategy.state', 'Device.state' or a part's 'state', as JSON values and "
    "refs"
)


def assert_same_run(one: Path, other: Path) -> None:
    """Assert that two run folders hold the same run, bit for bit.

    Args:
        one: folder of a run.
        other: folder of the run to compare with it.

    Raises:
        AssertionError: an entry of the summary (``FIGURES``) or a file of the run folder
            (``TABLES``) differs; the message names the first.

    Example:
        >>> from pathlib import Path
        >>> from fedsim.testing import assert_same_run, go_on, quiet_world, run, run_until
        >>> sections = quiet_world({"kind": "fedavg", "clients_per_round": 5}, rounds=2)
        >>> sections |= {"learning": "off", "checkpoint": {"rounds": 1}}
        >>> summary = run(sections, Path("whole"))
        >>> run_until(sections, Path("parts"), records=60)
        'interrupted'
        >>> go_on(sections, Path("parts"))["rounds"]
        2
        >>> assert_same_run(Path("whole"), Path("parts"))
    """
    first_summary = json.loads((one / "summary.json").read_text())
    second_summary = json.loads((other / "summary.json").read_text())
    for name in FIGURES:
        figure = first_summary[name]
        repeated = second_summary[name]
        assert figure == repeated, f"{name}: {figure} and {repeated}; {_STATE_ADVICE}"
    for name in TABLES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), (
            f"{name} differs; {_STATE_ADVICE}"
        )


class StrategyContract:
    """Test class for pytest with the tests that every strategy has to pass.

    A subclass sets ``strategy`` to the strategy that it tests.

    Attributes:
        strategy: the table ``[strategy]`` of a scenario.
        sections: tables that replace tables of the tests' scenarios (``quiet_world`` and
            ``eventful_world``), such as ``messages`` with a codec, a network or a source of data.
        goes_by_tests: whether test results (``ServerModels.test``) influence the strategy by
            design, as in TiFL, which may draw groups of devices by their test accuracy.

    Example:
        ::

            class TestMine(StrategyContract):
                strategy = {"kind": "mypackage.mine:Mine", "clients_per_round": 5}
    """

    strategy: Mapping[str, object]
    sections: Mapping[str, object] = {}
    goes_by_tests: bool = False

    def quiet(self, **options: Any) -> ScenarioTables:
        """Return the tables of ``quiet_world`` with this strategy, overridden by ``sections``.

        Args:
            options: ``seed`` and ``rounds`` of ``quiet_world``.
        """
        return quiet_world(self.strategy, **options) | copy.deepcopy(dict(self.sections))

    def eventful(self, **options: Any) -> ScenarioTables:
        """Return the tables of ``eventful_world`` with this strategy, overridden by ``sections``.

        Args:
            options: ``seed`` and ``rounds`` of ``eventful_world``.
        """
        return eventful_world(self.strategy, **options) | copy.deepcopy(dict(self.sections))

    def test_workers_executors_and_real_delays_change_nothing(self) -> None:
        """Check that executor, workers and real delays change no bit of events and models."""
        sections = self.quiet()
        reference = run(sections)
        assert reference["status"] == "done", (
            f"the run is {reference['status']}: {reference['stopped']}"
        )
        # the reference run computes in no other thread; ``Delayed`` delays each function at random
        for executor in (Threads(1), Delayed(4)):
            summary = run(sections, executor=executor)
            differing = [name for name in FIGURES if summary[name] != reference[name]]
            assert not differing, (
                f"{', '.join(differing)} depend on when real work is done; draw from "
                "'Server.rng', keep what lasts in 'state', and read no clock but 'Server.now'"
            )

    def test_it_goes_on_as_if_it_had_not_been_stopped(self, tmp_path: Path) -> None:
        """Check that a run that is interrupted twice and resumed equals an uninterrupted run."""
        sections = self.eventful(seed=5)
        events = run(sections, tmp_path / "whole")["events"]
        assert_sound(tmp_path / "whole")
        # seeded by the strategy, so that a failed test can be repeated
        generator = random.Random(str(sorted(self.strategy.items())))
        status = ""
        for resume in (False, True):
            if status != "done":
                records = generator.randrange(1, events)
                status = run_until(sections, tmp_path / "cut", records, resume=resume)
        if status != "done":
            go_on(sections, tmp_path / "cut")
        assert_same_run(tmp_path / "whole", tmp_path / "cut")

    def test_no_test_sample_steers_it(self, tmp_path: Path) -> None:
        """Check that other test samples of devices change no message, no time and no model."""
        outcomes = []
        for name in ("as-they-are", "others"):
            job = Job(fedsim.Scenario(**self.eventful(seed=9, rounds=5)), tmp_path / name, Inline())
            if name == "others":
                assert job.run.data is not None
                give_other_tests(job.run.data)
            # a strategy that is meant to use results of tests gets equal results in both runs
            if self.goes_by_tests:
                job.run.evaluator.test = _test_equally  # type: ignore[method-assign]
            models = asyncio.run(job.execute()).summary["models_sha256"]
            outcomes.append((models, RunFolder(tmp_path / name)))
        (models, folder), (other_models, other_folder) = outcomes
        # otherwise the test samples would not differ, and the test would show nothing
        accuracies = [row["accuracy"] for row in folder.rounds]
        assert accuracies != [row["accuracy"] for row in other_folder.rounds]
        advice = (
            "the strategy goes by test samples (if it is meant to, by 'server.models.test', say "
            "'goes_by_tests = True')"
        )
        assert folder.transfers == other_folder.transfers, advice
        assert models == other_models, advice

    def test_newcomers_and_leavers(self, tmp_path: Path) -> None:
        """Check that arriving devices get tasks, and that departed devices get no new tasks.

        At least one of four devices that arrive early has to get a task. At most one task of a
        device may end because the device has departed.
        """
        sections = self.eventful(seed=7, rounds=15)
        sections["population"] |= {
            "availability": {"kind": "always"},
            "departures": {"kind": "exponential", "mean_stay": "20 s", "share": 0.3},
            "arrivals": {
                "kind": "schedule",
                "times": ["1 s", "2 s", "3 s", "4 s"],
                "devices": [3, 8, 13, 18],
            },
        }
        folder = _sound_run(sections, tmp_path / "run")
        participants = set()
        for event in folder.events:
            if event["kind"] == "task-start":
                participants.add(event["device"])
        assert participants & {3, 8, 13, 18}, (
            "no newcomer was ever asked for anything; choose anew among 'Server.clients' in "
            "each round, or act in 'Strategy.on_arrival'"
        )
        departures = [event for event in folder.events if event["kind"] == "departure"]
        assert departures, "nobody left while it ran"
        departed = []
        for event in folder.events:
            if event["kind"] == "task-end" and event["outcome"] == "left":
                departed.append(event["device"])
        assert len(departed) == len(set(departed)), (
            f"devices {departed} were asked again although an answer had failed: they had left; "
            "ask those for which 'Server.clients.idle(device)' is true"
        )

    def test_devices_vanish_at_any_instant(self, tmp_path: Path) -> None:
        """Check two worlds in which devices are online for about 1 s or 10 s at a time.

        Both runs have to pass the audit. In the second world, six rounds have to end within 2 h.
        """
        phases = [("1 s", "5 s", "10 min"), ("10 s", "30 s", "2 h")]
        for seed, (mean_on, mean_off, time_limit) in enumerate(phases):
            sections = self.eventful(seed=seed, rounds=6)
            sections["stop"] = {"rounds": 6, "simulated_time": time_limit}
            sections["population"]["availability"] = {
                "kind": "renewal",
                "mean_on": mean_on,
                "mean_off": mean_off,
            }
            summary = _sound_run(sections, tmp_path / str(seed)).summary
        # the first world may end without six rounds: its devices are online for less than a task
        assert summary["stopped"] != "simulated time", (
            "where devices stay for 10 s at a time, it made no 6 rounds in 2 h; "
            "'Strategy.on_task_end' comes with the outcome 'lost' too, and 'Server.look_again' "
            "sets a timer while nobody is there"
        )

    def test_an_hour_with_nobody(self, tmp_path: Path) -> None:
        """Check that a run waits for an hour if its first device arrives only then."""
        sections = self.quiet(rounds=2)
        sections["population"]["arrivals"] = {
            "kind": "schedule",
            "times": [f"{3600 + device} s" for device in range(24)],
            "devices": list(range(24)),
        }
        summary = _sound_run(sections, tmp_path / "run").summary
        assert summary["rounds"] == 2, (
            f"it ended after {summary['rounds']} of 2 rounds: {summary['stopped']}; with "
            "nobody to ask, call 'Server.look_again'"
        )
        assert summary["simulated_s"] > 3600, (
            "it was over before anybody had come; with nobody to ask, call 'Server.look_again'"
        )

    def test_everybody_leaves(self, tmp_path: Path) -> None:
        """Check that a run ends before its time limit once all devices have departed."""
        sections = self.quiet(rounds=100_000)
        sections["population"]["departures"] = {"kind": "exponential", "mean_stay": "5 s"}
        summary = _sound_run(sections, tmp_path / "run").summary
        assert summary["stopped"] != "simulated time", (
            "the strategy waited a day for devices that had left; 'Server.look_again' ends a "
            "run for which nobody will come"
        )

    def test_time_and_bytes_without_learning(self, tmp_path: Path) -> None:
        """Check that a run without learning sends the models that devices share, if there are any.

        The run must have no accuracy.
        """
        scenario = fedsim.Scenario(**self.eventful() | {"learning": "off"})
        job = Job(scenario, tmp_path / "run", Inline())
        summary = asyncio.run(job.execute()).summary
        assert_sound(tmp_path / "run")
        shared = []
        for name, (_, devices) in job.run.strategy.models().items():
            if devices is None or len(devices) > 1:
                shared.append(name)
        traffic = summary["bytes"]
        # models go down and up, or between devices
        sent = max(min(traffic["down"], traffic["up"]), traffic.get("peer", 0.0))
        assert sent > 0 or not shared, (
            f"devices share the model {shared[0]!r}, but nothing was sent for it: a 'Header' "
            "costs no bytes; send models as contents themselves"
        )
        assert summary["accuracy"] == {"final": None, "best": None}

    def test_training_that_diverges(self, tmp_path: Path) -> None:
        """Check that updates that are not finite are never averaged into a model.

        The run has to continue without these updates, or to end with an error that names the cause.
        """
        sections = self.quiet(rounds=6)
        sections["training"] |= {"lr": 1e6, "weight_decay": 1e3}
        try:
            run(sections, tmp_path / "run")
        except fedsim.SimulationError as error:
            if "finite" not in str(error):
                raise
            return
        folder = assert_sound(tmp_path / "run")
        for tensors in folder.models().values():
            for name, values in tensors.items():
                assert np.isfinite(values).all(), (
                    f"{name} has values that are not finite; 'Server.models.mix' leaves such "
                    "updates out, 'apply' with 'leave_out' or 'otherwise' too"
                )


async def _test_equally(model: object, devices: object) -> float:
    """Replace ``Evaluator.test`` in a test: return 0.5, whatever the test samples are."""
    return 0.5
