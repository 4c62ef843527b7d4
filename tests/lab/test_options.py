"""What a user gives is used, or refused by name: no override, choice, target or option is lost
in silence.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.calls import call, done
from tests.lab.conftest import finish, rows_of, write

PARTS = {
    "plain": {"grid": {"links": ["usual", "slow"]}},
    "own": {"changes": {"training.lr": 0.3}},
    "table": {"changes": {"training": {"batch_size": 5}, "strategy.local_epochs": 4}},
}
SETS = {
    "links": {
        "usual": {"network.device.up": "20 kbit/s"},
        "slow": {"network.device.up": "5 kbit/s"},
    }
}
FELT = [
    (("training.lr=0.7",), ("part=own",), "parts.own.changes says training.lr = 0.3"),
    (
        ("training.lr=0.7",),
        ("part=own", "seed=1", "fedavg"),
        "parts.own.changes says training.lr = 0.3",
    ),
    (
        ("strategy.local_epochs=3",),
        ("part=table",),
        "parts.table.changes says strategy.local_epochs = 4",
    ),
    (
        ("strategy.mu=0.5", "strategy.kind=fedprox"),
        ("fedprox", "part=own"),
        "variants.fedprox says strategy.mu = 0.1",
    ),
    (
        ("network.device.up=1 kbit/s",),
        ("links=slow",),
        "sets.links.slow says network.device.up = '5 kbit/s'",
    ),
    (
        ("stop.rounds=2", "training.batch_size=7"),
        ("part=table",),
        "parts.table.changes says training.batch_size = 5",
    ),
]


@pytest.fixture
def parted(tables: dict[str, Any], tmp_path: Path) -> Path:
    tables["base"]["learning"] = "off"
    return write(tmp_path / "parted.toml", tables | {"parts": PARTS, "sets": SETS})


def unfolded(*words: object) -> str:
    return " ".join(done(*words).split())


def listed(study: Path, changes: tuple[str, ...], only: tuple[str, ...]) -> Any:
    words = [word for change in changes for word in ("--set", change)] + [
        word for text in only for word in ("--only", text)
    ]
    return call("study", study, "--out", study.parent / "out", "--dry-run", "--no-trial", *words)


@pytest.mark.parametrize(
    ("changes", "only", "says"),
    FELT,
    ids=[" ".join(only) + " " + changes[0] for changes, only, _ in FELT],
)
def test_an_override_that_no_chosen_run_feels_is_refused(
    parted: Path, changes: tuple[str, ...], only: tuple[str, ...], says: str
) -> None:
    told = listed(parted, changes, only)
    assert told.exit_code == 2, told.output
    assert f"reaches none of the runs that are chosen: {says}" in told.output
    assert not (parted.parent / "out").exists()


def test_an_override_that_some_runs_do_not_feel_says_which(parted: Path) -> None:
    told = listed(parted, ("training.lr=0.7",), ())
    assert told.exit_code == 0
    assert (
        "does not reach 2 of 8 lines, such as 'fedavg, part=own': parts.own.changes says "
        "training.lr = 0.3" in told.stderr
    )
    assert listed(parted, ("training.lr=0.7",), ("part=plain",)).stderr == ""


@pytest.mark.parametrize(
    ("only", "says"),
    [
        (("part=own", "links=slow"), "--only part=own chooses no run"),
        (("part=plain", "links=slow", "part=own"), "--only part=own chooses no run"),
        (("part=plain", "seed=3"), "--only seed is '3'; allowed are 1, 2"),
    ],
)
def test_a_choice_that_chooses_nothing_is_refused(
    parted: Path, only: tuple[str, ...], says: str
) -> None:
    told = listed(parted, (), only)
    assert (told.exit_code, says in told.output) == (2, True), told.output


def test_the_target_that_is_asked_for_is_answered(study: Path) -> None:
    text = unfolded("compare", study, "--target", "0.15")  # the study names 0.2 and 1.0
    assert "To an accuracy of 0.15 " in text
    assert "time to target 0.15" in text
    several = unfolded("compare", study, "--target", "0.1", "--target", "0.999")
    assert "To an accuracy of 0.1 " in several
    assert "No line reaches an accuracy of 0.999; " in several
    assert "ends with the highest, 0." in several
    assert "To an accuracy of 0.2 " in unfolded("compare", study)


def test_a_goal_without_figures_says_so(study: Path) -> None:
    assert "No run has a figure to rank by energy." in unfolded(
        "compare", study, "--goal", "energy"
    )


def test_runs_that_were_left_out_are_no_lines(parted: Path) -> None:
    out = finish(parted, parted.parent / "out", ["part=own", "fedprox"])
    rows = rows_of(done("compare", out, "--csv"))
    assert [(row["variant"], row["part"], row["runs"]) for row in rows] == [("fedprox", "own", "2")]
    assert "No run was begun of fedavg, fedprox." in done("compare", out)
    refused = call("compare", out, "--baseline", "fedavg")
    assert (refused.exit_code, "of which no run was begun" in refused.output) == (2, True)


UNUSED = [
    ("compare RUN --all --goal energy", "--goal energy ranks lines, but --all"),
    ("compare RUN --csv --goal time", "--goal time ranks lines, but --csv"),
    ("compare RUN --markdown --goal bytes", "--goal bytes ranks lines, but --markdown"),
    *(
        (f"compare RUN --published x.toml {words}", words.split()[0])
        for words in ("--target 0.5", "--goal time", "--baseline a")
    ),
    ("compare RUN --published x.toml --ledger paper", "--ledger paper changes nothing"),
    ("compare RUN --published x.toml --budget time=1h", "--budget changes nothing"),
    ("compare RUN --budget bytes=1GB --budget bytes=2GB", "--budget gives 'bytes' twice"),
    ("report RUN --port 8000", "--port is 8000, but nothing is served"),
    ("report RUN --watch --out x.html", "--watch writes no file"),
    ("run quickstart --out OUT --port 8000", "--port is 8000, but nothing is served"),
    (
        "run quickstart --out OUT --executor inline --workers 4",
        "--workers is 4, but --executor is 'inline'",
    ),
    ("run quickstart --out OUT --address auto", "only 'ray' has an address"),
    ("run quickstart --out OUT --seed 3 --set seed=4", "is undone by another change"),
    (
        "run quickstart --out OUT --set stop.rounds=1 --set stop.rounds=2",
        "is undone by another change",
    ),
    ("check quickstart --seed 3 --set seed=4", "is undone by another change"),
    ("study quickstart-study --out OUT --dry-run --quiet", "--quiet prints nothing"),
    ("study quickstart-study --out OUT --no-trial", "--no-trial belongs to --dry-run"),
]


@pytest.mark.parametrize(("words", "says"), UNUSED, ids=[words for words, _ in UNUSED])
def test_an_option_that_would_change_nothing_is_refused(
    words: str, says: str, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = call(
        *[
            str(runs["off"]) if word == "RUN" else "out" if word == "OUT" else word
            for word in words.split()
        ]
    )
    assert (told.exit_code, says in told.output) == (2, True), told.output
    assert [*tmp_path.iterdir()] == []
