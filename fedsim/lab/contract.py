"""Small worlds and the contract that every strategy keeps: the inside of ``fedsim.testing``."""

import asyncio
import copy
import json
import random
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import fedsim
from fedsim.clock.executors import Executor, Inline, Threads
from fedsim.lab.audited import audit_run
from fedsim.learning.data.federated import FederatedData
from fedsim.records.reading import RunFolder
from fedsim.running.runner import Job

__all__ = [  # noqa: RUF022 - the contract, its worlds, running them, comparing runs
    "StrategyContract", "quiet_world", "eventful_world", "run", "run_until", "go_on", "give_other_tests", "Delayed",
    "assert_sound", "assert_same_run", "ScenarioTables", "TABLES", "FIGURES",
]  # fmt: skip

ScenarioTables = dict[str, Any]

TABLES = (
    "events.parquet",
    "transfers.parquet",
    "rounds.parquet",
    "devices.parquet",
    "availability.parquet",
    "scenario.toml",
)
"""Files of a run folder that two equal runs have alike, byte for byte."""

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
"""Entries of ``summary.json`` that two equal runs have alike."""

_STAR = {
    "kind": "star",
    "server": {"down": "2 Mbit/s", "up": "1 Mbit/s"},
    "device": {"down": "1 Mbit/s", "up": "500 kbit/s", "latency": "40 ms"},
}


def quiet_world(strategy: Mapping[str, Any], *, seed: int = 3, rounds: int = 5) -> ScenarioTables:
    """A scenario's sections: 24 devices of unequal speed that are always there, four rotations
    of digits.
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
    strategy: Mapping[str, Any], *, seed: int = 3, rounds: int = 8
) -> ScenarioTables:
    """The same with all that can happen: lost devices, newcomers, leavers, shifts of data,
    jitter, checkpoints.
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
    """Threads with random real delays.

    The randomness is real on purpose: a run must not depend on it.
    """

    def submit(self, function: Any, *args: Any) -> "Future[Any]":
        """Carry out ``function(*args)`` some time."""

        def late() -> Any:
            time.sleep(random.SystemRandom().random() * 0.003)
            return function(*args)

        return super().submit(late)


def run(
    sections: ScenarioTables, folder: Path | None = None, executor: Executor | None = None
) -> dict[str, Any]:
    """Run a scenario to its end; its summary."""
    job = Job(fedsim.Scenario(**sections), folder, Inline() if executor is None else executor)
    return asyncio.run(job.execute()).summary


def run_until(sections: ScenarioTables, folder: Path, records: int, *, resume: bool = False) -> str:
    """Run or resume a scenario, and interrupt it after ``records`` records; its status."""
    job = Job(fedsim.Scenario(**sections), folder, Inline(), resume=resume)
    seen = count(1)
    job.simulation.listen(lambda record: job.interrupt() if next(seen) == records else None)
    return str(asyncio.run(job.execute()).summary["status"])


def go_on(sections: ScenarioTables, folder: Path) -> dict[str, Any]:
    """Resume a run and let it come to its end; its summary."""
    return asyncio.run(
        Job(fedsim.Scenario(**sections), folder, Inline(), resume=True).execute()
    ).summary


def give_other_tests(data: FederatedData) -> None:
    """Device d is tested on 1 + d test samples at most, all of class d mod C."""
    tests = np.unique(np.concatenate([shard.test for shard in data.shards]))
    for device, shard in enumerate(data.shards):
        of_one_class = tests[data.pool.y[tests] == device % data.pool.classes]
        data.shards[device] = replace(shard, test=of_one_class[: 1 + device])


_ADVICE = {
    "every valid update was aggregated once": (
        "pass each update that went into a model to 'Server.finish_round(number, models, "
        'updates=[Measured(message["update"], weight)])\', or name its task in a record '
        "'aggregate' of your own "
        "('Synchronous.record_aggregate', 'Server.emit'); ask a device without 'round' for "
        "anything that is no update "
        "of the round, and name a task in one aggregation only"
    ),
    "rounds agree with their tasks": (
        "the counts of 'Server.finish_round' are of the tasks asked with its 'round': "
        "'selected' all of them, 'valid' "
        "those that are done with a finished epoch, 'slow' those that are late or done without "
        "one, 'disconnected' those "
        "that are lost; leave all four out, or ask probes without 'round'; finish a round when "
        "all its tasks have ended"
    ),
    "deadlines held": (
        "end open tasks by 'Server.end(task)' at the 'deadline' that your record 'round-start' "
        "names, or do not name one"
    ),
    "no device does two things at once": "ask only devices for which 'Server.clients.idle(device)' is true",
    "meters agree with the records": (
        "a meter counts from its arguments alone: no time of the clock, no random numbers, "
        "nothing kept outside of 'self'"
    ),
}
"""Check of the audit -> advice to the author of a strategy or a part whose run fails it."""


def assert_sound(folder: Path) -> RunFolder:
    """A run folder that passes its audit; the error has the problems of each check, and what to
    do.
    """
    problems = {name: found for name, found in audit_run(folder).findings.items() if found}
    lines = [
        line
        for name, found in problems.items()
        for line in (f"{name}? {len(found)} problems:", *found[:5], *_advice(name))
    ]
    assert not problems, "the run folder fails its audit\n" + "\n".join(lines)
    return RunFolder(folder)


def _advice(check: str) -> list[str]:
    return [f"What to do: {_ADVICE[check]}."] if check in _ADVICE else []


def _sound_run(sections: ScenarioTables, folder: Path) -> RunFolder:
    run(sections, folder)
    return assert_sound(folder)


_LASTS = (
    "whatever lasts is in 'Strategy.state', 'Device.state' or a part's 'state', as JSON values and "
    "refs"
)


def assert_same_run(one: Path, other: Path) -> None:
    """Two run folders hold the same run, to the bit."""
    first, second = (json.loads((folder / "summary.json").read_text()) for folder in (one, other))
    for name in FIGURES:
        assert first[name] == second[name], f"{name}: {first[name]} and {second[name]}; {_LASTS}"
    for name in TABLES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), f"{name} differs; {_LASTS}"


class StrategyContract:
    """The checks, as a class for pytest.

    A subclass says which ``strategy``: the table ``[strategy]`` of a scenario.
    """

    strategy: Mapping[str, Any]
    # replaces others of the scenario: a codec in ``messages``, a network, a source of data
    sections: Mapping[str, Any] = {}
    goes_by_tests: bool = False  # depends on ``ServerModels.test`` by design, as TiFL's credits do

    def quiet(self, **how: Any) -> ScenarioTables:
        """``quiet_world`` with this strategy and these sections."""
        return quiet_world(self.strategy, **how) | copy.deepcopy(dict(self.sections))

    def eventful(self, **how: Any) -> ScenarioTables:
        """``eventful_world`` with this strategy and these sections."""
        return eventful_world(self.strategy, **how) | copy.deepcopy(dict(self.sections))

    def test_workers_executors_and_real_delays_change_nothing(self) -> None:
        """The events and the models are the same to the bit, however the learning is computed."""
        sections = self.quiet()
        reference = run(sections)
        assert reference["status"] == "done", (
            f"the run is {reference['status']}: {reference['stopped']}"
        )
        for executor in (Threads(1), Delayed(4)):
            summary = run(sections, executor=executor)
            differing = [name for name in FIGURES if summary[name] != reference[name]]
            assert not differing, (
                f"{', '.join(differing)} depend on when real work is done; draw from "
                "'Server.rng', keep what lasts in "
                "'state', and read no clock but 'Server.now'"
            )

    def test_it_goes_on_as_if_it_had_not_been_stopped(self, tmp_path: Path) -> None:
        """Stopped at any two instants and continued, a run is the run that was never stopped."""
        sections = self.eventful(seed=5)
        events = run(sections, tmp_path / "whole")["events"]
        assert_sound(tmp_path / "whole")
        draw = random.Random(str(sorted(self.strategy.items())))
        for resume in (False, True):
            if (
                run_until(sections, tmp_path / "cut", draw.randrange(1, events), resume=resume)
                == "done"
            ):
                break
        else:
            go_on(sections, tmp_path / "cut")
        assert_same_run(tmp_path / "whole", tmp_path / "cut")

    def test_no_test_sample_steers_it(self, tmp_path: Path) -> None:
        """Other and fewer test samples change no message, no time and no model."""
        seen = []
        for name in ("as-they-are", "others"):
            job = Job(fedsim.Scenario(**self.eventful(seed=9, rounds=5)), tmp_path / name, Inline())
            if name == "others":
                assert job.run.data is not None
                give_other_tests(job.run.data)
            if self.goes_by_tests:
                job.run.evaluator.test = _the_same_for_all  # type: ignore[method-assign]
            models = asyncio.run(job.execute()).summary["models_sha256"]
            seen.append((models, RunFolder(tmp_path / name)))
        (models, one), (other_models, other) = seen
        assert [row["accuracy"] for row in one.rounds] != [row["accuracy"] for row in other.rounds]
        told = (
            "the strategy goes by test samples (if it is meant to, by 'server.models.test', say "
            "'goes_by_tests = True')"
        )
        assert one.transfers == other.transfers, told
        assert models == other_models, told

    def test_newcomers_and_leavers(self, tmp_path: Path) -> None:
        """Early newcomers take part; a device that has left fails one task at most."""
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
        asked = {event["device"] for event in folder.events if event["kind"] == "task-start"}
        assert asked & {3, 8, 13, 18}, (
            "no newcomer was ever asked for anything; choose anew among 'Server.clients' in "
            "each round, or act in "
            "'Strategy.on_arrival'"
        )
        assert any(event["kind"] == "departure" for event in folder.events), (
            "nobody left while it ran"
        )
        left = [
            event["device"]
            for event in folder.events
            if event["kind"] == "task-end" and event["outcome"] == "left"
        ]
        assert len(left) == len(set(left)), (
            f"devices {left} were asked again although an answer had failed: they had left; "
            "ask those for which "
            "'Server.clients.idle(device)' is true"
        )

    def test_devices_vanish_at_any_instant(self, tmp_path: Path) -> None:
        """With phases shorter than a task no run falls asleep, and no book is left out of
        balance.
        """
        for seed, (on, off, most) in enumerate([("1 s", "5 s", "10 min"), ("10 s", "30 s", "2 h")]):
            sections = self.eventful(seed=seed, rounds=6) | {
                "stop": {"rounds": 6, "simulated_time": most}
            }
            sections["population"]["availability"] = {
                "kind": "renewal",
                "mean_on": on,
                "mean_off": off,
            }
            summary = _sound_run(sections, tmp_path / str(seed)).summary
        assert summary["stopped"] != "simulated time", (
            "where devices stay for 10 s at a time, it made no 6 rounds in 2 h; "
            "'Strategy.on_task_end' comes with the outcome "
            "'lost' too, and 'Server.look_again' sets a timer while nobody is there"
        )

    def test_an_hour_with_nobody(self, tmp_path: Path) -> None:
        """A population that is empty for its first hour: the run waits, and then goes on."""
        sections = self.quiet(rounds=2)
        late = [f"{3600 + device} s" for device in range(24)]
        sections["population"]["arrivals"] = {
            "kind": "schedule",
            "times": late,
            "devices": list(range(24)),
        }
        summary = _sound_run(sections, tmp_path / "run").summary
        assert summary["rounds"] == 2, (
            f"it ended after {summary['rounds']} of 2 rounds: {summary['stopped']}; with "
            "nobody to ask, call "
            "'Server.look_again'"
        )
        assert summary["simulated_s"] > 3600, (
            "it was over before anybody had come; with nobody to ask, call 'Server.look_again'"
        )

    def test_everybody_leaves(self, tmp_path: Path) -> None:
        """A run without any device left ends before its time, and the summary says so."""
        sections = self.quiet(rounds=100_000)
        sections["population"]["departures"] = {"kind": "exponential", "mean_stay": "5 s"}
        summary = _sound_run(sections, tmp_path / "run").summary
        assert summary["stopped"] != "simulated time", (
            "the strategy waited a day for devices that had left; 'Server.look_again' ends a "
            "run for which nobody will come"
        )

    def test_time_and_bytes_without_learning(self, tmp_path: Path) -> None:
        """``learning = "off"`` works, moves bytes if devices share a model, and measures
        nothing.
        """
        job = Job(
            fedsim.Scenario(**self.eventful() | {"learning": "off"}), tmp_path / "run", Inline()
        )
        summary = asyncio.run(job.execute()).summary
        assert_sound(tmp_path / "run")
        shared = [
            name
            for name, (_, served) in job.run.strategy.models().items()
            if served is None or len(served) > 1
        ]
        moved = max(
            min(summary["bytes"]["down"], summary["bytes"]["up"]), summary["bytes"].get("peer", 0.0)
        )
        assert moved > 0 or not shared, (
            f"devices share the model {shared[0]!r}, but nothing was sent for it: a 'Header' "
            "costs no bytes; send models as "
            "contents themselves"
        )
        assert summary["accuracy"] == {"final": None, "best": None}

    def test_training_that_diverges(self, tmp_path: Path) -> None:
        """Updates that are not finite are never averaged in: the run goes on, or ends with an
        error that names the cause.
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
                    "updates out, 'apply' with "
                    "'leave_out' or 'otherwise' too"
                )


# in place of ``Evaluator.test``
async def _the_same_for_all(model: object, devices: object) -> float:
    return 0.5
