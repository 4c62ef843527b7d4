from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsim.analysis.stragglers import MOST_LANES, MOST_PANELS, SORTS, draw_stragglers, read_attempts, trained_rounds
from fedsim.analysis.style import NothingToDrawError, PictureError
from fedsim.lab.reading.history import History
from fedsim.records.reading import RunFolder
from tests.analysis.conftest import Ran, drawn


def attempts_of(run: RunFolder) -> pd.DataFrame:
    history = History(run)
    return read_attempts(history, trained_rounds(history))


def test_attempts_are_what_the_rounds_table_counts(run: RunFolder, split: RunFolder) -> None:
    for folder in (run, split):
        attempts = attempts_of(folder)
        for number, rows in attempts.groupby("round"):
            counts, row = Counter(rows["outcome"]), folder.rounds[int(str(number))]
            assert len(rows) == row["selected"]
            assert counts["valid"] == row["valid"]
            assert counts["slow"] + counts["late"] == row["slow"]
            assert counts["lost"] == row["disconnected"]
    assert attempts["splits"].sum() == sum(event["kind"] == "split" for event in split.events) > 0
    assert (attempts["part"] > 0).any()


def test_who_waits_in_a_queue_is_not_said_to_send(queued: RunFolder) -> None:
    """From the end of training to that of the upload: the queue, if there is one, and the upload, as long as recorded."""
    attempts = attempts_of(queued)
    times: dict[tuple[int, str], float] = {}
    for event in queued.events:
        if event["step"] in ("queue", "upload"):
            times[event["task"], event["step"]] = event["time"] - times.get((event["task"], event["step"]), 0.0)
    sent = attempts.dropna(subset="answered")
    for row in sent.itertuples():
        assert row.answered - row.sends == pytest.approx(times[row.task, "upload"])
        assert row.sends - row.train_end == pytest.approx(times.get((row.task, "queue"), 0.0))
    waited = int((sent["sends"] > sent["train_end"]).sum())
    figure = draw_stragglers(queued, rounds=(0, MOST_PANELS))
    assert 0 < waited == drawn(*figure.axes)["queue"] < drawn(*figure.axes)["upload"] == len(sent)


def test_time_counts_from_the_start_of_the_round(run: RunFolder) -> None:
    attempts = attempts_of(run).set_index("task")
    ends = {event["task"]: event["time"] for event in run.events if (event["kind"], event["step"]) == ("step-end", "download")}
    opened = [event for event in run.events if event["kind"] == "round-start"]
    starts = {event["round"]: (event["time"], event["data"]["deadline"]) for event in opened}
    trained = [event for event in run.events if (event["kind"], event["step"]) == ("step-end", "train")]
    assert trained
    for event in trained:
        row = attempts.loc[event["task"]]
        start, deadline = starts[event["round"]]
        assert row["begun"] == ends[event["task"]] - start
        assert row["epoch_ends"] == [end - start for end in event["data"]["epoch_ends"]]
        assert row["train_end"] == event["time"] - start
        assert row["deadline"] == deadline - start
        assert np.isnan(row["limit"])


def test_epochs_against_a_known_deadline(ran: Ran) -> None:
    """A hundred samples a second and 12 s: as many whole epochs as fit, of the five asked for."""
    deadline = {"kind": "fixed", "time": "12 s", "since": "download"}
    strategy = {"kind": "fedprox", "clients_per_round": 4, "local_epochs": 5, "deadline": deadline}
    known = ran("known", population={"devices": 4, "speed": "100 samples/s"}, strategy=strategy, learning="off")
    attempts = read_attempts(History(known), [0])
    fit = [min(5, 1200 // samples) for samples in attempts["samples"]]
    assert [len(ends) for ends in attempts["epoch_ends"]] == fit
    assert len(set(fit)) > 1
    assert (attempts["limit"] - attempts["begun"]).tolist() == pytest.approx([12.0] * 4)
    assert attempts["outcome"].tolist() == ["valid"] * 4


def test_every_epoch_split_and_part_is_drawn(split: RunFolder) -> None:
    figure = draw_stragglers(split, rounds=(0, MOST_PANELS))
    shown = [number for number in trained_rounds(History(split)) if number < MOST_PANELS]
    attempts = read_attempts(History(split), shown)
    least, courses = figure.axes[0].get_xlim()[1] / 60, zip(attempts["begun"], attempts["epoch_ends"], strict=True)
    short = [bool(ends) and (ends[-1] - begun) / len(ends) < least for begun, ends in courses]
    expected = sum(1 if one else len(ends) for one, ends in zip(short, attempts["epoch_ends"], strict=True))
    counts = drawn(*figure.axes)
    assert counts["epochs"] == expected > 20
    assert counts["splits"] == attempts["splits"].sum() > 0
    assert counts["part"] == (attempts["part"] > 0).sum() > 0
    assert (counts["limit"], counts["no-download"]) == (len(attempts), attempts["train_end"].isna().sum())


def test_lanes_are_sorted_and_texts_do_not_overlap(split: RunFolder) -> None:
    for order in SORTS:
        figure = draw_stragglers(split, rounds=(0, MOST_PANELS), order=order)
        for panel in figure.axes:
            values = [float(label.get_text().split(" · ")[1]) for label in panel.get_yticklabels()]
            assert values == sorted(values, reverse=True)
    figure.draw_without_rendering()
    texts = [text for panel in figure.axes for text in (*panel.get_yticklabels(), *panel.texts, panel.title)]
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    assert len(boxes) > 50
    assert not any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])


def test_what_does_not_apply_is_said(run: RunFolder, roundless: RunFolder, ran: Ran) -> None:
    with pytest.raises(NothingToDrawError, match="no rounds"):
        draw_stragglers(roundless)
    with pytest.raises(NothingToDrawError, match="nobody trained in rounds 70:80"):
        draw_stragglers(run, rounds=(70, 80))
    with pytest.raises(PictureError, match="did you mean 'size'"):
        draw_stragglers(run, order="sizes")
    with pytest.raises(NothingToDrawError, match="no deadline"):
        draw_stragglers(ran("endless", strategy={"kind": "fedavg", "clients_per_round": 6}, learning="off"))


def test_an_upload_that_the_deadline_cuts_is_drawn(small: dict[str, Any], ran: Ran) -> None:
    """Slow links: devices have trained, and are still sending when the round is over."""
    network = small["network"] | {"device": {"up": "2 kbit/s", "down": "1 Mbit/s"}}
    strategy = {"kind": "fedavg", "clients_per_round": 6, "deadline": "8 s"}
    run = ran("cut", network=network, strategy=strategy, learning="off", stop={"rounds": 3})
    cut = [e for e in run.events if (e["kind"], e["step"]) == ("step-end", "upload") and e["outcome"] != "done"]
    assert cut
    attempts = attempts_of(run).set_index("task")
    starts = {event["round"]: event["time"] for event in run.events if event["kind"] == "round-start"}
    for event in cut:
        row = attempts.loc[event["task"]]
        assert row["cut"] == pytest.approx(event["time"] - starts[event["round"]])
    figure = draw_stragglers(run)
    assert drawn(*figure.axes)["cut-upload"] == len(cut)
    assert "all rounds with training" in figure.get_suptitle()


def test_by_default_the_worst_rounds_and_the_median_one_are_drawn(run: RunFolder) -> None:
    """The three rounds with the most tasks that were not done, and the one in the middle of that order."""
    history = History(run)
    wasted = dict.fromkeys(trained_rounds(history), 0)
    for event in run.events:
        if event["kind"] == "task-end" and event["outcome"] != "done" and event["round"] in wasted:
            wasted[event["round"]] += 1
    titles = [panel.get_title() for panel in draw_stragglers(run).axes if panel.get_title()]
    drawn_rounds = [int(title.split()[1].strip(",")) for title in titles]
    worst = [number for number, title in zip(drawn_rounds, titles, strict=True) if "worst" in title]
    assert len(drawn_rounds) == 4
    assert sorted(wasted[number] for number in worst) == sorted(wasted.values())[-3:]


def test_of_many_clients_some_are_drawn(small: dict[str, Any], ran: Ran) -> None:
    population = small["population"] | {"devices": 200, "samples": {"kind": "uniform", "low": 10, "high": 300}}
    strategy = small["strategy"] | {"clients_per_round": 200}
    sections = {"population": population, "network": {"kind": "star"}, "strategy": strategy, "stop": {"rounds": 2}}
    many = ran("many", learning="off", **sections)
    figure = draw_stragglers(many)
    assert len(figure.axes[0].get_yticks()) == MOST_LANES < many.rounds[0]["selected"]
    counts = [int(word) for word in figure.axes[0].get_title().partition("\n")[2].replace(",", "").split() if word.isdecimal()]
    assert sum(counts) == many.rounds[0]["selected"]
    assert "epochs of some selected devices" in figure.get_suptitle()
