"""Predicted memory and disk of a run's models, against those of the whole run."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.clock.executors import Inline
from fedsim.lab.forecast import Beginning
from fedsim.lab.model_memory import Need, count_models, model_needs, need_lines, saved_needs
from fedsim.running.checkpoint import apart
from fedsim.running.runner import Job
from tests.benchmarks.check_memory import WatchedLinks, models_of, of_strategy
from tests.many_models import many_models

ROUNDS = 3
DEVICES = 6
ROOM = "500 kB"


def _sections(**changes: Any) -> dict[str, Any]:
    """A run with models of which six have room in memory."""
    fedavg = {"kind": "fedavg", "clients_per_round": DEVICES}
    usual = {"strategy": fedavg, "stop": {"rounds": ROUNDS}, "checkpoint": {"rounds": 1}}
    return many_models(DEVICES, ROOM, **(usual | changes))


SCENARIOS = {
    "fedavg": _sections(),
    "fedavg saved once": _sections(checkpoint={"last": True}),
    "fedavg saved never": _sections(checkpoint={}),
    "scaffold": _sections(strategy={"kind": "scaffold", "clients_per_round": DEVICES}),
    "ditto": _sections(strategy={"kind": "ditto", "clients_per_round": DEVICES}),
    "ditto of some": _sections(strategy={"kind": "ditto", "clients_per_round": 2}),
    "local": _sections(strategy={"kind": "local"}),
    "fedper": _sections(strategy={"kind": "fedper", "clients_per_round": DEVICES}),
    "fedrep": _sections(strategy={"kind": "fedrep", "clients_per_round": DEVICES}),
    "feddyn": _sections(strategy={"kind": "feddyn", "clients_per_round": 3}),
    "best": _sections(evaluation={"keep_best": True}),
}


def _by_part(needs: list[Need]) -> dict[str, Need]:
    return {need.part: need for need in needs}


@pytest.mark.parametrize("name", SCENARIOS)
def test_models_on_disk_are_those_that_were_predicted(name: str, tmp_path: Path) -> None:
    scenario = fedsim.Scenario(**SCENARIOS[name])
    trial = Beginning(scenario, Inline())
    trial.go(60.0)
    assert trial.share == 1.0
    counts = count_models(trial)
    predicted = _by_part(saved_needs(trial.run, counts, trial.rounds))
    models = _by_part(model_needs(trial.run, counts, trial.tally.largest_call, 1))
    job = Job(scenario, tmp_path / "run", Inline())
    assert job.checkpointer is not None
    watch = WatchedLinks(tmp_path / "run")
    job.checkpointer._linked = watch
    job.checkpointer.on_saved = watch.look
    asyncio.run(job.execute())
    learner = job.simulation.installed.learner
    tables = 90_000  # what a checkpoint has besides models
    forecast = predicted["checkpoints"].disk_bytes
    assert forecast == pytest.approx(watch.peak_bytes, rel=0.05, abs=tables)
    for part, folder in (("final models", "models"), ("best models", "best")):
        written = sum(path.stat().st_size for path in (tmp_path / "run" / folder).glob("*"))
        assert predicted[part].disk_bytes == pytest.approx(written, rel=0.05)
    scratch = sum(need.scratch_bytes for need in models.values())
    peak = learner._computing.scratch.peak_bytes
    assert scratch == pytest.approx(peak, rel=0.05)


@pytest.mark.parametrize("kind", ["cfl", "feddr", "flexcfl", "lcfl", "refl", "rfedavg"])
def test_models_are_planned_as_they_are_computed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample of ``check_memory --strategies``, with small models."""
    monkeypatch.setattr(apart, "LEAST_BYTES", 1000)
    told = of_strategy(kind, 8, 5, saved=True, width=300, memory="300 kB")
    for name, figure in models_of(told).items():
        if name == "checkpoints":  # which have tables besides, as large as some of these models
            assert figure.predicted <= figure.measured <= figure.predicted + 5
        else:
            assert figure.predicted == pytest.approx(figure.measured, rel=0.05), name


def test_a_part_of_a_run_tells_how_many_personal_models_there_will_be() -> None:
    sections = _sections(
        population={"devices": 40, "speed": "100 samples/s"},
        strategy={"kind": "ditto", "clients_per_round": 4},
    )
    counts = []
    for rounds in (5, 30):
        sections["stop"] = {"rounds": rounds}
        trial = Beginning(fedsim.Scenario(**sections), Inline())
        trial.go(60.0)
        trial.share = rounds / 30
        counts.append(count_models(trial))
    forecast, fact = counts
    assert fact.final_models <= 41
    assert forecast.final_models == pytest.approx(fact.final_models, rel=0.2)
    assert forecast.alive_bytes == pytest.approx(fact.alive_bytes, rel=0.25)


def test_check_says_what_cosines_and_states_of_optimisers_need() -> None:
    """Both lie outside of training.memory: two float64 numbers a weight and update; Adam's two."""
    adam = {"kind": "torch", "optimizer": "Adam", "lr": 0.001, "state": "kept", "memory": ROOM}
    scenario = fedsim.Scenario(**_sections(training=adam, evaluation={"cosines": True}))
    trial = Beginning(scenario, Inline())
    trial.go(60.0)
    counts = count_models(trial)
    needs = _by_part(model_needs(trial.run, counts, trial.tally.largest_call, 1))
    size = trial.run.learner.bytes
    cosines = needs["cosines between the updates of a round"]
    assert (cosines.key, cosines.memory_bytes) == ("evaluation.cosines", 4 * DEVICES * size)
    states = needs["states of optimisers"]
    assert states.key == "training.state"
    assert states.memory_bytes == pytest.approx(2 * DEVICES * size, rel=0.01)


def test_lines_name_the_parts_that_need_most() -> None:
    needs = [
        Need("program", "", 3e8),
        Need("data", "data.source", 1e8),
        Need("models", "training.memory", 6e8, 0.0, 2e9),
        Need("records", "stop", 0.0, 1e3),
        Need("final models", "strategy", 0.0, 1e9),
    ]
    assert need_lines(needs) == [
        "of memory: 600 MB models (training.memory), 300 MB program, 100 MB data (data.source)",
        "of the run folder: 1 GB final models (strategy)",
        "of the folder for temporary files (TMPDIR): 2 GB models (training.memory)",
    ]
