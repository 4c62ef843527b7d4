"""Published figures beside a study's own: what is read off its runs, and what is said of it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w

import fedsim
from fedsim.common.errors import RunFolderError, ScenarioError
from fedsim.lab.compare.columns import ComparedTable
from fedsim.lab.compare.lines import read_lines
from fedsim.lab.compare.published import Published, Reading, as_printed, beside_published
from fedsim.lab.compare.show import to_markdown
from fedsim.lab.reading.study_folder import IndexedRun, IndexedVariant, StudyIndex, write_index
from fedsim.records import folder as files
from fedsim.records.reading import RunFolder
from fedsim.records.schema import EVENTS, ROUNDS
from tests.calls import call, done

Column = Sequence[float | None]


def write_run(
    folder: Path, accuracy: Column, events: Sequence[tuple[str, int]] = (), seed: int = 1
) -> RunFolder:
    folder.mkdir(parents=True)
    (folder / files.SUMMARY).write_text(json.dumps({"status": "done", "seed": seed}))
    rounds = [
        {"round": at, "time": 10.0 * (at + 1), "loss": at % 2, "accuracy": one}
        for at, one in enumerate(accuracy)
    ]
    pq.write_table(pa.Table.from_pylist(rounds, ROUNDS), folder / files.ROUNDS)
    rows = [{"time": 0.0, "kind": kind, "round": number} for kind, number in events]
    pq.write_table(pa.Table.from_pylist(rows, EVENTS), folder / files.EVENTS)
    return RunFolder(folder)


def write_study(place: Path, runs: Mapping[tuple[str, str], Sequence[Column]]) -> Path:
    """The folder of a study: accuracies by variant and ``size.data``, seed by seed."""
    variants = []
    for (name, data), columns in runs.items():
        folders = [f"runs/{name}-{data}/seed-{seed}" for seed in range(1, len(columns) + 1)]
        for seed, (folder, accuracy) in enumerate(zip(folders, columns, strict=True), 1):
            write_run(place / folder, accuracy, seed=seed)
        indexed = tuple(
            IndexedRun(seed=seed, folder=folder) for seed, folder in enumerate(folders, 1)
        )
        point = {"size": "full", "world.data": data}
        variants.append(
            IndexedVariant(
                name=name,
                label=f"{name}{data}",
                point=point,
                changes={},
                reference=False,
                runs=indexed,
            )
        )
    index = StudyIndex(
        format=1, name="s", baseline=None, targets=(), seeds=(1, 2), variants=tuple(variants)
    )
    write_index(place, index)
    return place


PAPER: dict[str, Any] = {
    "titles": {"ours": "Ours", "fedavg": "FedAvg"},
    "measures": {
        "best": {"title": "best %", "scale": 100, "tolerance": 1.5},
        "lead": {"title": "points over FedAvg", "scale": 100, "minus": {"variant": "fedavg"}},
        "times": {"title": "best / FedAvg", "over": {"variant": "fedavg"}},
    },
    "tables": [
        {
            "title": "Table 1: {data}",
            "at": {"data": ["mnist", "cifar"]},
            "measures": ["best", "lead", "times"],
            "rows": [
                "ours",
                "fedavg",
                {"name": "same", "variant": "ours", "title": "Ours | again"},
            ],
            "published": {"mnist": {"ours": [90.0, 9.0], "fedavg": 75.0, "same": {"times": 2.0}}},
            "tolerance": {"fedavg": 7.0},
            "claims": [
                {
                    "says": "{above} beats {below}",
                    "pairs": [["ours", "fedavg"], ["fedavg", "ours"]],
                    "by": 5.0,
                }
            ],
            "note": "A note.",
        }
    ],
}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    mnist = {
        ("ours", "mnist"): ([0.5, 0.91], [0.9, 0.2]),
        ("fedavg", "mnist"): ([0.8, None], [0.84]),
    }
    cifar = {("ours", "cifar"): ([0.4],), ("fedavg", "cifar"): ([0.2], [0.3])}
    return write_study(tmp_path / "study", mnist | cifar)


def beside(study: Path, paper: Mapping[str, Any] = PAPER, **table: Any) -> list[ComparedTable]:
    said = {**paper, "tables": [{**paper["tables"][0], **table}]}
    return beside_published(read_lines([study]).lines, Published(**said))


def rows_of(table: ComparedTable) -> list[tuple[Any, ...]]:
    return list(zip(*(column.cells for column in table.columns), strict=True))


def test_measured_beside_published_with_verdicts(study: Path) -> None:
    mnist, cifar, claims = beside(study)
    assert [table.title for table in (mnist, cifar, claims)] == [
        "Table 1: mnist",
        "Table 1: cifar",
        "Claims",
    ]
    ours, lead, times, fedavg, *_ = rows_of(mnist)
    assert ours[:3] == ("Ours", "best %", 90.0)
    assert (ours[3].mean, ours[4], ours[5], ours[6]) == pytest.approx((90.5, 0.5, 1.5, "yes"))
    half = 12.706204736432095 * 0.5  # t(0.975, 1), and the standard error of 91 and 90
    assert (ours[3].low, ours[3].high) == pytest.approx((90.5 - half, 90.5 + half))
    # no tolerance: not judged
    assert (lead[3].mean, lead[4], lead[5], lead[6]) == pytest.approx((8.5, -0.5, None, None))
    assert times[2:5:2] == (None, None)
    assert times[3].mean == pytest.approx((0.91 / 0.8 + 0.9 / 0.84) / 2)
    # the row's own tolerance
    assert (fedavg[3].mean, fedavg[5], fedavg[6]) == pytest.approx((82.0, 7.0, "yes"))
    assert rows_of(mnist)[-1][:3] == ("Ours | again", "best / FedAvg", 2.0)
    assert mnist.notes == ("Seeds 1, 2.", "A note.", "2 of 2 figures are within the tolerance.")
    assert cifar.notes == ("Seeds 1.", "A note.")  # the seeds with which all its rows were run
    first, second, third, _ = rows_of(claims)
    assert first[:2] == ("Table 1: mnist", "Ours beats FedAvg")
    assert first[2] == pytest.approx(3.5)  # 11 and 6, less 5
    assert first[4] == "holds in part"
    assert (second[1], second[4]) == ("FedAvg beats Ours", "does not hold")
    assert third[3:] == ("none: one seed", "not judged: one seed")


def test_printed_it_has_a_column_a_measure(study: Path) -> None:
    long = beside(study)
    mnist, cifar, claims = as_printed(long)
    assert (claims, mnist.notes, cifar.title) == (long[2], long[0].notes, "Table 1: cifar")
    assert to_markdown(mnist).splitlines()[2:7] == [
        "| row | best % (+-1.5) | points over FedAvg | best / FedAvg |",
        "| --- | ---: | ---: | ---: |",
        "| Ours | 90.5 +- 6.4 *(90)* | 8 +- 32 *(9)* | 1.10 +- 0.42 |",
        "| FedAvg (+-7) | 82 +- 25 *(75)* | 0 | 1 |",
        "| Ours \\| again | 90.5 +- 6.4 | 8 +- 32 | 1.10 +- 0.42 *(2)* |",
    ]
    assert "| Ours | 40 | 20 | 2 |" in to_markdown(cifar)

    assert "| Ours | **90.5 +- 6.4** *(80)* |" in to_markdown(
        as_printed(beside(study, published={"ours": 80.0}))[0]
    )


def test_figures_said_once_and_those_of_another_size(study: Path) -> None:
    mnist, cifar, _ = beside(study, published={"ours": 90.0})
    assert [rows_of(one)[0][2] for one in (mnist, cifar)] == [90.0, 90.0]
    for size, verdicts in (("huge", {None}), ("full", {None, "yes"})):
        assert {
            row[6] for row in rows_of(beside(study, PAPER | {"judged": {"size": size}})[0])
        } == verdicts


def test_what_runs_do_not_have_is_left_empty_and_not_judged(tmp_path: Path) -> None:
    place = write_study(
        tmp_path / "study",
        {("ours", "mnist"): ([None], [None]), ("fedavg", "mnist"): ([0.8], [0.8])},
    )
    paper = PAPER | {"measures": {"mean": {"title": "mean", "take": "mean"}}}
    mnist, claims = beside(place, paper, measures=["mean"], published={"mnist": {"ours": 90.0}})
    assert rows_of(mnist)[0] == ("Ours", "mean", 90.0, None, None, None, None)
    assert rows_of(claims)[0][2:] == (None, "none", "not judged: runs without the figure")
    empty = tmp_path / "none"
    empty.mkdir()
    (none,) = beside(write_study(empty, {("ours", "mnist"): (), ("fedavg", "mnist"): ()}))
    assert (none.notes[0], rows_of(none)) == ("Its runs have not been made.", [])


def test_rows_that_were_not_run_are_named_beside_the_others(tmp_path: Path) -> None:
    runs = {("ours", "mnist"): (), ("fedavg", "mnist"): ([0.5], [0.7])}
    (mnist,) = beside(write_study(tmp_path / "some", runs))
    assert mnist.notes[:2] == ("Seeds 1, 2.", "Not run: Ours, Ours | again.")
    first = rows_of(mnist)[0]
    assert (first[0], first[3].mean) == ("FedAvg", pytest.approx(60.0))
    assert {row[0] for row in rows_of(mnist)} == {"FedAvg"}
    below = {"title": "rounds to target", "take": "rounds to", "below_best": 0.1}
    paper = PAPER | {"measures": PAPER["measures"] | {"to": below}}
    (mnist,) = beside(tmp_path / "some", paper, measures=["best", "to"], published={})
    assert {row[1] for row in rows_of(mnist)} == {"best %"}  # the best row may not be there


def test_tables_of_what_a_study_has_not_are_left_out_but_a_row_must_be_one_variant(
    study: Path,
) -> None:
    assert beside(study, at={"data": "femnist"}, published={}) == []
    with pytest.raises(ScenarioError, match="no variants with data=mnist, variant=fedagv"):
        beside(study, rows=["ours", "fedagv"], published={}, tolerance={}, claims=[])
    with pytest.raises(ScenarioError, match="2 variants with variant=ours; a row must be one"):
        beside(study, at={}, published={})


def test_what_a_figure_is_compared_with_must_be_there_too(tmp_path: Path) -> None:
    runs = {("ours", "mnist"): ([0.5], [0.6]), ("fedavg", "mnist"): ([0.25],)}
    alone: dict[str, Any] = {"rows": ["ours"], "published": {}, "tolerance": {}, "claims": []}
    (mnist,) = beside(write_study(tmp_path / "s", runs), **alone)
    assert mnist.notes[0] == "Seeds 1."
    assert [row[3].mean for row in rows_of(mnist)] == pytest.approx([50.0, 25.0, 2.0])
    nothing = write_study(
        tmp_path / "t", {("ours", "mnist"): ([0.5],), ("fedavg", "mnist"): ([0.0],)}
    )
    with pytest.raises(RunFolderError, match="it would be divided by 0"):
        beside(nothing, **alone)


def test_a_claim_that_the_paper_makes_of_one_data_set_is_judged_there_alone(study: Path) -> None:
    claim = {
        "says": "{above} beats {below}",
        "pairs": [["ours", "fedavg"]],
        "at": {"data": ["cifar"]},
    }
    *_, claims = beside(study, claims=[claim])
    assert [row[:2] for row in rows_of(claims)] == [("Table 1: cifar", "Ours beats FedAvg")]
    for at, message in (
        ({"date": ["cifar"]}, "no list in 'at' for claims 'date'; allowed are data"),
        ({"data": ["cifra"]}, r"no value of 'data' for claims 'cifra'; .*did you mean 'cifar'"),
    ):
        with pytest.raises(ScenarioError, match=message):
            beside(study, claims=[claim | {"at": at}])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"measures": {"x": {"title": "x", "take": "maximum"}}},
            "measures.x.take is 'maximum'; allowed are max, mean",
        ),
        (
            {"measures": {"x": {"title": "x", "take": "rounds to"}}},
            "needs 'target' or 'below_best'",
        ),
        ({"measures": {"x": {"title": "x", "take": "count"}}}, "needs 'event'"),
        ({"measures": {"x": {"title": "x", "figure": "trafic"}}}, "did you mean 'traffic'?"),
        (
            {"tables": [PAPER["tables"][0] | {"measures": ["bets"]}]},
            "no measure 'bets'; allowed are best, lead, times (did",
        ),
        (
            {"tables": [PAPER["tables"][0] | {"published": {"minst": {}}}]},
            "no value of 'data' 'minst'; allowed are mnist, cifar",
        ),
        (
            {"tables": [PAPER["tables"][0] | {"published": {"mnist": {"our": 1.0}}}]},
            "no row 'our'; allowed are ours",
        ),
        ({"tables": [PAPER["tables"][0] | {"rows": ["ours", "ours"]}]}, "two rows of one name"),
        ({"tabels": []}, "the published figures: all has the unknown key 'tabels'"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        Published(**PAPER | change)
    assert says in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_the_command_line(study: Path, tmp_path: Path) -> None:
    (tmp_path / "paper.toml").write_text(tomli_w.dumps(PAPER))
    said = ("compare", study, "--published", tmp_path / "paper.toml")
    text = done(*said, "--markdown")
    assert "## Table 1: mnist" in text
    assert r"| Ours \| again | 90.5" in text
    assert "Table 1: cifar" in done(*said)
    lines = done(*said, "--csv").splitlines()
    assert (
        lines[0]
        == "table,row,measure,published,ours,ours low,ours high,difference,tolerance,within"
    )
    assert lines[1].startswith("Table 1: mnist,Ours,best %,90,90.5,")
    assert len(lines) == 1 + 2 * 9
    for words in ((*said, study), ("compare", study, "--published", tmp_path / "none.toml")):
        assert call(*words).exit_code == 2


ACCURACY = [0.1, None, 0.3, 0.5, 0.4, 0.6]


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ({}, 60.0),
        ({"take": "mean"}, 38.0),
        ({"take": "mean", "first": 2}, 20.0),
        ({"take": "mean", "last": 50}, 50.0),  # of five tests the last two
        ({"take": "median"}, 40.0),
        ({"take": "variance around a line"}, 90.0),  # 270 of squares left, by hand, over 5 - 2
        ({"take": "zeros"}, 0.0),
        ({"take": "zeros", "column": "loss"}, 50.0),  # in the unit that is said
        ({"take": "variance"}, float(np.var([10, 30, 50, 40, 60], ddof=1))),
        ({"take": "last"}, 60.0),
        ({"take": "after", "rounds": 4}, 50.0),
        ({"take": "rounds to", "target": 30.0}, 3.0),
        ({"take": "rounds to", "target": 61.0}, 6.0),  # never: all of them
        ({"take": "time to", "target": 30.0}, 30.0),
        ({"take": "missed", "target": 30.0}, 0.0),
        ({"take": "missed", "target": 61.0}, 1.0),
        ({"take": "rounds to", "below_best": 35.0}, 4.0),  # 85 less 35
        ({"take": "count", "event": "split"}, 2.0),
        ({"take": "rounds before", "event": "split"}, 3.0),
        ({"take": "rounds before", "event": "split", "number": 2}, 5.0),
        ({"take": "rounds before", "event": "split", "number": 3}, 6.0),
        ({"take": "before", "event": "split"}, 30.0),
        ({"take": "before", "event": "other"}, 60.0),
    ],
)
def test_readings(said: dict[str, Any], value: float, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ACCURACY, [("split", 3), ("assign", 4), ("split", 5)])
    assert Reading(title="x", scale=100, **said).of(run, best=85.0) == pytest.approx(value)


def test_what_a_run_does_not_have_is_unknown_and_a_column_that_there_is_not_an_error(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run", ACCURACY, [("split", 0)])
    for said in (
        {"take": "after", "rounds": 2},
        {"take": "after", "rounds": 7},
        {"take": "before", "event": "split"},
    ):
        assert np.isnan(Reading(title="what it is", **said).of(run))
    # values that each needs
    counts = {"mean": 1, "median": 1, "zeros": 1, "variance": 2, "variance around a line": 3}
    for take, least in counts.items():
        runs = [
            write_run(tmp_path / take / str(rounds), [0.5] * rounds)
            for rounds in (least - 1, least)
        ]
        reading = Reading.model_validate({"title": "x", "take": take})
        assert [bool(np.isnan(reading.of(one))) for one in runs] == [True, False]
    with pytest.raises(
        RunFolderError, match="has no column 'acuracy' in its rounds, for 'what it is'"
    ):
        Reading(title="what it is", column="acuracy").of(run)


def test_figures_of_all_comparisons_are_readings_too(runs: dict[str, Path]) -> None:
    run = RunFolder(runs["fedavg"])
    rounds = fedsim.load_run(runs["fedavg"]).rounds
    dropped = Reading(title="x", figure="dropped updates", scale=100).of(run)
    assert dropped == pytest.approx(100 * (1 - rounds["valid"].sum() / rounds["selected"].sum()))
    assert 0 < dropped < 100
    assert (
        Reading(title="x", figure="traffic", ledger="paper").of(run)
        == run.summary["bytes"]["paper"]
    )
