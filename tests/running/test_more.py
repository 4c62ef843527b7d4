"""A finished run that goes on is the run that was planned with the later end, to the bit."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.common.errors import CheckpointError, FedsimError, RunFolderError, ScenarioError
from fedsim.lab.audit import audit
from fedsim.testing import assert_same_run, eventful_world, go_on, run, run_until
from tests.calls import call, done
from tests.test_runs import STRATEGIES

FEDAVG = {"kind": "fedavg", "clients_per_round": 5, "deadline": "30 s"}
Sections = dict[str, Any]


def lasting(sections: Sections, planned: int, **checkpoint: Any) -> Sections:
    """The scenario with that many rounds, whose finished run can go on."""
    stop = sections["stop"] | {"rounds": planned}
    return sections | {"stop": stop, "checkpoint": {"last": True} | checkpoint}


def lengthen(sections: Sections, folder: Path, more: int | str) -> Any:
    scenario = fedsim.Scenario(**sections)
    return fedsim.run(scenario, folder, executor="inline", more=more).summary


ACTS_BY_PLAN = {"tifl": "credits"}
"""Kind of a strategy that acts by the planned rounds -> word of the reason."""


def check_going_on(strategies: list[Sections], place: Path) -> None:
    """Compare runs of 3 + 2 rounds with runs of 5, without learning."""
    refused = {}
    for number, strategy in enumerate(strategies):
        whole = place / f"{number}-whole"
        more = place / f"{number}-more"
        sections = eventful_world(strategy) | {"learning": "off"}
        sections.pop("drift")
        run(lasting(sections, 5), whole)
        run(lasting(sections, 3), more)
        before = (more / "summary.json").read_bytes()
        try:
            lengthen(lasting(sections, 3), more, 2)
        except CheckpointError as error:
            refused[strategy["kind"]] = str(error)
            assert (more / "summary.json").read_bytes() == before
            continue
        assert_same_run(whole, more)
        assert (whole / "scenario.toml").read_bytes() == (more / "scenario.toml").read_bytes()
    assert refused.keys() >= ACTS_BY_PLAN.keys()
    for kind, reason in refused.items():
        # a device may be ahead of the others in strategies without a server
        assert ACTS_BY_PLAN.get(kind, "was ahead of the others") in reason


FAMILIES = ("fedasync", "tifl", "ifca", "gossip", "refl")


def test_families_of_strategies_go_on_as_if_they_had_been_planned_so(tmp_path: Path) -> None:
    check_going_on([some for some in STRATEGIES if some["kind"] in FAMILIES], tmp_path)


@pytest.mark.long
def test_every_strategy_goes_on_as_if_it_had_been_planned_so(tmp_path: Path) -> None:
    check_going_on(STRATEGIES, tmp_path)


@pytest.mark.parametrize(
    "strategy", [{"kind": "fedbuff"}, {"kind": "fl-hc", "moment": {"rounds": 3}}]
)
def test_models_and_learned_state_go_on(strategy: Sections, tmp_path: Path) -> None:
    sections = eventful_world(strategy) | {"evaluation": {"every": 2, "keep_best": True}}
    run(lasting(sections, 5), tmp_path / "whole")
    run(lasting(sections, 2), tmp_path / "more")
    for rounds in (1, 2):  # it goes on more than once
        lengthen(lasting(sections, 1 + rounds), tmp_path / "more", rounds)
    assert_same_run(tmp_path / "whole", tmp_path / "more")
    best = [fedsim.load_run(tmp_path / name).summary["best"] for name in ("whole", "more")]
    assert best[0] == best[1]
    assert not any(audit(tmp_path / "more").values())


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_it_goes_on_from_any_count_of_rounds(rounds: int, tmp_path: Path) -> None:
    sections = eventful_world(FEDAVG) | {"learning": "off"}
    run(lasting(sections, 5, rounds=1), tmp_path / "whole")
    run(lasting(sections, rounds, rounds=1), tmp_path / "more")
    lengthen(lasting(sections, rounds, rounds=1), tmp_path / "more", 5 - rounds)
    assert_same_run(tmp_path / "whole", tmp_path / "more")


def test_a_run_of_simulated_time_goes_on_by_a_time(tmp_path: Path) -> None:
    sections = eventful_world(FEDAVG) | {"learning": "off"}
    sections["checkpoint"] = {"time": "20 s", "last": True}
    whole = run(sections | {"stop": {"simulated_time": "150 s"}}, tmp_path / "whole")
    shorter = sections | {"stop": {"simulated_time": "90 s"}}
    run(shorter, tmp_path / "more")
    lengthen(shorter, tmp_path / "more", "1 min")
    assert whole["simulated_s"] == 150.0
    assert_same_run(tmp_path / "whole", tmp_path / "more")


def test_a_run_that_is_killed_as_it_goes_on_is_resumed(tmp_path: Path) -> None:
    sections = eventful_world(FEDAVG) | {"learning": "off"}
    longer = lasting(sections, 6)
    whole = run(longer, tmp_path / "whole")
    run(lasting(sections, 3), tmp_path / "more")
    # as a process that is killed leaves the folder: no summary, the later end, the old checkpoint
    shutil.copy(tmp_path / "whole" / "scenario.toml", tmp_path / "more" / "scenario.toml")
    (tmp_path / "more" / "summary.json").unlink()
    go_on(longer, tmp_path / "more")
    assert_same_run(tmp_path / "whole", tmp_path / "more")
    assert run_until(longer, tmp_path / "cut", whole["events"] // 2) == "interrupted"
    with pytest.raises(RunFolderError, match="a run that is not done"):
        lengthen(longer, tmp_path / "cut", 3)


def test_the_command_takes_the_folder(tmp_path: Path) -> None:
    sections = lasting(eventful_world(FEDAVG) | {"learning": "off"}, 4)
    run(sections, tmp_path / "whole")
    run(lasting(sections, 2), tmp_path / "more")
    done("run", "--resume", tmp_path / "more", "--more", 2)
    assert_same_run(tmp_path / "whole", tmp_path / "more")
    for words, reason in (
        (("run", tmp_path / "more"), "is a folder, not a scenario"),
        (("run", "--resume", tmp_path / "more"), "--more 20 gives it 20 more rounds"),
        (("run", "quickstart"), "--out is missing"),
        (("run", tmp_path / "more", "--more", 2, "--seed", 9), "a run of another scenario"),
        (("run", tmp_path / "more", "--more", "0"), "a count of rounds, 1 or more"),
        (("run", tmp_path / "more", "--more", "soon"), "--more is 'soon'"),
    ):
        result = call(*words)
        assert result.exit_code == 2, result.output
        assert reason in result.output


def refused(sections: Sections, folder: Path, more: int | str) -> str:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(FedsimError) as error:
        lengthen(sections, folder, more)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return str(error.value)


def test_what_cannot_go_on_says_why_and_remains(tmp_path: Path) -> None:
    sections = eventful_world(FEDAVG) | {"learning": "off"}
    unsaved = sections | {"stop": {"rounds": 2}, "checkpoint": {"rounds": 1}}
    run(unsaved, tmp_path / "unsaved")
    assert "a run with checkpoint.last = true can" in refused(unsaved, tmp_path / "unsaved", 2)
    saved = lasting(sections, 2)
    run(saved, tmp_path / "saved")
    assert "ended as '2 rounds', and --more gives a time; give rounds" in refused(
        saved, tmp_path / "saved", "1 h"
    )
    goal = lasting(sections, 30) | {"learning": "on"}
    goal["stop"] = {"rounds": 30, "accuracy": 0.05}
    run(goal, tmp_path / "goal")
    assert "--more cannot move that end" in refused(goal, tmp_path / "goal", 2)
    with pytest.raises(ScenarioError, match="no round is the last"):
        fedsim.Scenario(stop={"simulated_time": "1 h"}, checkpoint={"last": True})


def test_a_strategy_of_ones_own_is_named(tmp_path: Path) -> None:
    sections = lasting(eventful_world({"kind": "tests.test_runs:EveryArrival"}), 3)
    run(sections, tmp_path / "more")
    result = call("run", "--resume", tmp_path / "more", "--more", 1, "--allow-code")
    assert result.exit_code == 0, result.output
    assert "if it reads 'planned_rounds'" in result.output
