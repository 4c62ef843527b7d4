"""Apps that poll, are asynchronous, fail, or never end; and devices that are late, or vanish."""

import io
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import fedsim
from fedsim.clock.simulation import Record
from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.flower.params import SamplesTime
from fedsim.lab.terminal import Console, RunProgress
from fedsim.records.reading import RunFolder
from fedsim.testing import assert_sound
from tests.calls import done
from tests.flower.runs import execute, scenario

ODD = Path(__file__).parent / "apps" / "odd_app" / "odd_app"


def odd(server: str, client: str = "answers", **strategy: Any) -> dict[str, Any]:
    """Three devices that take 1, 2 and 2.5 seconds for their 20 examples."""
    sections = scenario("odd_app", 3, run_config={"server": server, "client": client}, **strategy)
    sections["population"]["speed"] = ["20 samples/s", "10 samples/s", "8 samples/s"]
    return sections


def line(file: str, text: str) -> int:
    """Where a text stands in the app."""
    return (ODD / file).read_text().split("\n").index(text) + 1


def test_a_server_that_polls_waits_in_simulated_time(tmp_path: Path) -> None:
    result = execute(odd("polls"), tmp_path / "run")
    # three rounds: at its second look, after 3 s, all have answered, and it waits once more; then a
    # test of a third of 2.5 s
    assert [row["time"] for row in result.rows] == pytest.approx(
        [6.0, 12.0, 18 + 2.5 / 3], abs=1e-6
    )
    assert result.summary["accuracy"]["final"] == 0.5
    assert_sound(tmp_path / "run")


def test_a_measure_that_is_not_finite_is_an_empty_cell(tmp_path: Path) -> None:
    rows = execute(odd("polls", "diverges"), tmp_path / "run").rows
    assert [row["accuracy"] for row in rows] == [None, None, None]
    assert_sound(tmp_path / "run")


@pytest.mark.parametrize(
    ("server", "seconds", "late"),
    [
        ("polls-at-once", 2.5, 0.011),  # it polls without a pause
        ("waits-for-a-process", 2.5, 0.0),  # a library's wait takes no simulated time
        # a late device answers later, and has its next message then: 2.5 s for each of two
        ("times-out", 5.0, 0.0),
        ("expires", 0.5, 0.0),
    ],
)
def test_waiting_takes_simulated_time(
    server: str, seconds: float, late: float, tmp_path: Path
) -> None:
    assert execute(odd(server), tmp_path / "run").summary["simulated_s"] == pytest.approx(
        seconds, abs=max(late, 1e-6)
    )
    assert_sound(tmp_path / "run")


def test_an_asynchronous_server(tmp_path: Path) -> None:
    summary = execute(odd("asynchronous"), tmp_path / "run").summary
    assert summary["status"] == "done"
    folder = assert_sound(tmp_path / "run")
    asked = [
        event["device"]
        for event in folder.events
        if event["kind"] == "task-end" and event["outcome"] == "done"
    ]
    assert asked.count(0) > asked.count(2) > 0
    assert summary["rounds"] > 5  # one for each model that was sent


@pytest.mark.parametrize(
    ("server", "client", "message"),
    [
        (
            "fails",
            "answers",
            r"the ServerApp raised ValueError: no more, in server_app.py, line {fails}",
        ),
        (
            "computes",
            "answers",
            r"computed for 0.5 s of real time without calling the Grid, in server_app.py, line ",
        ),
        ("calls-from-a-thread", "answers", r"the Grid is called in the thread 'mine'"),
        (
            "polls",
            "raises",
            r"the ClientApp of device 1 raised ZeroDivisionError: by zero, in client_app.py, "
            r"line {raises}",
        ),
        (
            "polls",
            "nonsense",
            r"of device 0 answered with .*, a dict; allowed is a Message that .*, in client_app",
        ),
        (
            "polls",
            "slow",
            r"the ClientApp of device 0 has computed for 0.5 s of real time, in client_app.py, "
            r"line {slow}",
        ),
    ],
)
def test_what_goes_wrong_is_told_with_its_place(
    server: str, client: str, message: str, tmp_path: Path
) -> None:
    lines = {
        "fails": line("server_app.py", '    raise ValueError("no more")'),
        "raises": line("client_app.py", '        raise ZeroDivisionError("by zero")'),
        "slow": line("client_app.py", "        threading.Event().wait()"),
    }
    patience = "500 ms" if "computed" in message else "1 min"
    with pytest.raises(SimulationError, match=message.format(**lines)) as raised:
        execute(odd(server, client, real_patience=patience), tmp_path / "run")
    told = str(raised.value)
    assert ("; the app is in '" in told) == (" raised " in told)
    folder = RunFolder(tmp_path / "run")  # what there was until then can be read
    assert folder.summary["status"] == "failed"
    assert len(folder.rounds) == (server == "fails")


@pytest.mark.parametrize(
    ("server", "stopped"), [("sleeps", "simulated time"), ("goes-on", "4 rounds")]
)
def test_a_server_that_never_ends_is_ended(server: str, stopped: str, tmp_path: Path) -> None:
    before = threading.enumerate()
    summary = execute(
        odd(server) | {"stop": {"rounds": 4, "simulated_time": "1 h"}}, tmp_path / "run"
    ).summary
    assert (summary["status"], summary["stopped"]) == ("done", stopped)
    assert_sound(tmp_path / "run")
    assert "ServerApp" not in [
        thread.name for thread in threading.enumerate() if thread not in before
    ]


@pytest.mark.parametrize("when", ["0.5 s", "1.5 s"])
def test_a_device_that_vanishes_is_answered_for(when: str, tmp_path: Path) -> None:
    """Be it at work, or before: it is not known to have gone until the patience is over."""
    sections = odd("asks-the-lost", unavailable_after="7 s")
    sections["population"] |= {"devices": 1, "speed": "10 samples/s"}
    (tmp_path / "on.csv").write_text(f"device,start,end\n0,0 s,{when}\n")
    sections["population"]["availability"] = {"kind": "intervals", "file": str(tmp_path / "on.csv")}
    summary = execute(sections, tmp_path / "run").summary
    assert summary["simulated_s"] == pytest.approx(float(when.split()[0]) + 7.0, abs=1e-6)
    folder = assert_sound(tmp_path / "run")
    assert [event["outcome"] for event in folder.events if event["kind"] == "task-end"] == ["lost"]


@pytest.mark.parametrize("server", ["queries", "queries-and-trains"])
def test_an_app_that_only_asks_has_rounds_and_one_that_asks_before_it_trains_no_more(
    server: str, tmp_path: Path
) -> None:
    result = execute(odd(server), tmp_path / "run")
    assert [(row["selected"], row["valid"]) for row in result.rows] == [(3, 3)] * 3
    assert result.summary["bytes"]["wasted"] == 0
    assert_sound(tmp_path / "run")


def test_what_a_node_is_told_of_itself() -> None:
    """A value for all devices, or a list with one for each: of those the mean is reported."""
    assert execute(odd("polls", node_config={"share": 0.25})).summary["accuracy"]["final"] == 0.25
    assert (
        execute(odd("polls", node_config={"share": [0.25, 0.5, 0.75]})).summary["accuracy"]["final"]
        == 0.5
    )


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (
            {"app": "nowhere"},
            r"strategy.app is 'nowhere', but there is no "
            rf"'{Path.cwd()}/nowhere/pyproject\.toml'; .*working",
        ),
        (
            {"run_config": {"num-server-round": 3}},
            r"has the key 'num-server-round'.*did you mean 'num-server-rounds'",
        ),
        (
            {"run_config": {"server": ["a"]}},
            r"strategy.run_config.server is \['a'\]; allowed are numbers",
        ),
        (
            {"node_config": {"a": [1, 2]}},
            "strategy.node_config.a has 2 values, and population.devices is 6; allowed are one",
        ),
        ({"time": "flops"}, "strategy.time is 'flops', but nothing says how many FLOPs"),
    ],
)
def test_a_scenario_s_mistakes(strategy: dict[str, Any], message: str) -> None:
    sections = scenario("odd_app")
    sections["strategy"] |= strategy
    with pytest.raises(ScenarioError, match=message):
        execute(sections)


def test_replies_without_the_metric_or_the_number_are_named() -> None:
    summary = execute(odd("polls", accuracy="acc")).summary
    assert summary["no_accuracy"] == (
        "no metric of the app's was called 'acc' (strategy.accuracy); there were: accuracy, "
        "num-examples"
    )
    warnings = execute(odd("polls", "says-no-number")).summary["warnings"]
    assert [warning.partition(":")[0] for warning in warnings] == [
        f"replies to {kind!r} messages give no num-examples" for kind in ("train", "evaluate")
    ]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"lr": 0.1}, (1.0, "no key local-epochs")),
        ({"local-epochs": 3}, (3.0, "local-epochs")),
        ({"algorithm.local_epochs": 2, "epochs": 9}, (2.0, "algorithm.local_epochs")),
        ({"local-epochs": "many", "head.epochs": True, "epochs": 4}, (4.0, "epochs")),
    ],
)
def test_passes_are_what_a_key_says_in_whichever_table(
    config: dict[str, Any], expected: tuple[float, str]
) -> None:
    assert SamplesTime().passes_over(config) == expected
    assert SamplesTime(passes=5).passes_over(config) == (5.0, "strategy.time.passes")


def played(sections: dict[str, Any], folder: Path) -> str:
    (folder / "app.toml").write_text(fedsim.Scenario(**sections).to_toml())
    return done(
        "run", folder / "app.toml", "--out", folder / "run", "--workers", "1", "--allow-code"
    )


def test_what_was_taken_is_printed_and_an_app_that_replies_batches_is_warned_of(
    tmp_path: Path,
) -> None:
    """Two passes over twenty batches of 32 are 1,280 samples; the key says two passes, the reply
    20.
    """
    sections = odd("polls", "counts-batches")
    sections["strategy"]["run_config"]["algorithm.local-epochs"] = 2
    output = played(sections, tmp_path).splitlines()
    assert [line for line in output if line.startswith("warning: ")] == [
        "warning: a 'train' message counts as 40 samples, but the ClientApp's model was given "
        "1280: its time is 32 times too "
        "short (is num-examples a count of samples?); strategy.time.passes = 64 would fit"
    ]
    assert (
        "time by samples: a 'train' message took num-examples (20) x 2 (algorithm.local-epochs)"
        in output
    )
    assert (
        "time by samples: a 'evaluate' message took num-examples (20) / 3 (no training)" in output
    )
    assert output[0].endswith("FLWR_LOG_LEVEL=INFO shows the rest")


def test_passes_of_the_scenario_or_of_the_app_that_fit_give_no_warning() -> None:
    stated = odd("polls", "counts-batches", time={"kind": "samples", "passes": 32.0})
    for sections in (stated, scenario("torch_app", run_config={"local-epochs": 2})):
        summary = execute(sections).summary
        assert "warnings" not in summary
        assert summary["notes"]


@pytest.mark.parametrize("planned", [4, None])
def test_time_left_goes_by_the_app_s_rounds_and_is_not_told_without(
    planned: int | None, tmp_path: Path
) -> None:
    named = "" if planned is None else f"[tool.flwr.app.config]\nserver.num_rounds = {planned}\n"
    components = '[tool.flwr.app.components]\nserverapp = "a:app"\nclientapp = "a:app"\n'
    (tmp_path / "pyproject.toml").write_text(components + named)
    app, shown = fedsim.Scenario(**scenario(str(tmp_path))), io.StringIO()
    progress = RunProgress(app.strategy.horizon(app.stop), Console(file=shown))
    progress._start_s -= 60.0  # as if the run had begun a minute ago
    progress.take(Record(10.0, "round", {"round": 1, "accuracy": None}))
    assert (" left" in shown.getvalue()) == (planned is not None)


def test_a_client_s_sleep_counts_and_so_does_the_server_s_polling(tmp_path: Path) -> None:
    """Devices sleep 2.5, 3.5 and 4.5 s, and compute 1, 2 and 2.5 s; the server looks every 3 s."""
    execute(odd("polls", "sleeps"), tmp_path / "run")
    events = assert_sound(tmp_path / "run").events
    steps = [event for event in events if event["kind"] == "step-end" and event["time"] < 12]
    ends = {
        step: [event["time"] for event in steps if event["step"] == step]
        for step in ("sleep", "compute")
    }
    assert ends == {"sleep": [2.5, 3.5, 4.5], "compute": [3.5, 5.5, 7.0]}
    assert (
        min(
            event["time"]
            for event in events
            if event["kind"] == "task-start" and event["round"] == 1
        )
        == 12.0
    )
