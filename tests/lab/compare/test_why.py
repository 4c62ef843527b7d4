"""Critical paths in words, and the pair of runs that ``whatif`` makes."""

from pathlib import Path

from fedsim.lab.compare.why import path_table, round_in_words, run_in_words, totals_table
from tests.lab.compare.test_critical_path import FEDAVG, paths
from tests.test_cli import call


def test_a_round_that_its_deadline_ended(tmp_path: Path) -> None:
    found = paths(tmp_path / "run", [20, 40], 2, strategy=FEDAVG | {"deadline": "6 s"})
    assert round_in_words(found, 1) == [
        "Round 1 took 6 s, as long as the median: from 6 s to 12 s of simulated time.",
        "Its deadline ended it: 1 of 2 clients were late (device 1).",
        "It waited longest for device 1 (train): 4 s, 67%.",
        "Without the late clients it would have ended 0.8 s sooner.",
        "With twice the rate there, 0.8 s sooner; then another client is the last.",
    ]
    assert run_in_words(found)[1:] == [
        "Half of a round's clients were done after 87% of it; the slowest alone held the rounds up for 1.6 s in all.",
        "The deadline ended 2 of 2 rounds.",
        "Waited for most often: device 1 (2 rounds).",
    ]
    steps, of, after, took, *_ = (column.cells for column in path_table(found.round(1)).columns)
    assert list(zip(steps, of, after, took, strict=True))[-1] == ("upload (late)", "device 1", "5.1 s", "0.9 s")


def test_what_if_twice_the_deadline(tmp_path: Path) -> None:
    """The device of 40 samples, cut off after 6 s, is done after 7.2 s: 1.2 s more for its own upload."""
    run = tmp_path / "run"
    paths(run, [20, 40], strategy=FEDAVG | {"deadline": "6 s"})
    result = call("whatif", run, "--set", "strategy.deadline=12 s")
    assert result.exit_code == 0, result.output
    told = [line.split() for line in result.output.splitlines() if "own link" in line]
    assert [line[6:9] for line in told[2:]] == [["run", "0.9", "s"], ["run.whatif", "2.1", "s"]]
    assert (tmp_path / "run.whatif.report.html").is_file()
    assert "round 0" in call("why", tmp_path / "run.whatif").output
    assert call("why", run, "--round", 4).exit_code == 2
    assert totals_table({}).columns[0].cells == ()
