"""Runs that were stopped and continued are the runs that were never stopped, to the bit.

That this holds for every strategy is part of the contract (``fedsim.testing``); here are other
worlds, the command line, and what must be refused.
"""

import json
import os
import pty
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import networkx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedsim
from fedsim.common.errors import CheckpointError, RunFolderError
from fedsim.records.lock import LOCK, locked
from fedsim.records.reading import RunFolder
from fedsim.running.checkpoint import store
from fedsim.testing import (
    FIGURES,
    assert_same_run,
    assert_sound,
    eventful_world,
    go_on,
    run,
    run_until,
)
from tests import children
from tests.calls import call
from tests.children import GENEROUS_S
from tests.test_runs import STRATEGIES

Made = Callable[[dict[str, Any], Path], Path]

TREE = {
    "kind": "tree",
    "server": {"down": "2 Mbit/s", "up": "1 Mbit/s"},
    "cells": 3,
    "cell": {"down": "1 Mbit/s", "up": "600 kbit/s"},
    "device": {"down": "1 Mbit/s", "up": "500 kbit/s", "latency": "40 ms"},
}


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    strategy=st.sampled_from(STRATEGIES),
    seed=st.integers(0, 1000),
    share=st.floats(0.0, 1.0),
    tree=st.booleans(),
    tcp=st.booleans(),
)
def test_any_world_any_instant(
    strategy: dict[str, Any],
    seed: int,
    share: float,
    tree: bool,
    tcp: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    place = tmp_path_factory.mktemp("resume")
    scenario = eventful_world(strategy, seed=seed) | ({"network": TREE} if tree else {})
    scenario["network"] = scenario["network"] | ({"protocol": TCP} if tcp else {})
    events = run(scenario, place / "whole")["events"]
    if run_until(scenario, place / "cut", 1 + int(share * (events - 1))) == "interrupted":
        go_on(scenario, place / "cut")
    assert_same_run(place / "whole", place / "cut")
    assert_sound(place / "cut")
    shutil.rmtree(place)


def stopped_often(scenario: dict[str, Any], place: Path, records: int) -> list[dict[str, Any]]:
    """The states of a run that was stopped after every few records, and ended as the run that
    was not.
    """
    run(scenario, place / "whole")
    status, states = run_until(scenario, place / "cut", records), []
    while status == "interrupted":
        states.append(store.read(store.latest(place / "cut"))[1]["root"])
        status = run_until(scenario, place / "cut", records, resume=True)
    assert_same_run(place / "whole", place / "cut")
    return states


def stopped_at(scenario: dict[str, Any], place: Path, *shares: float) -> None:
    """Stop a run after shares of all its records, one after the other: it ends as the run that
    was not stopped.
    """
    events = run(scenario, place / "whole")["events"]
    assert_sound(place / "whole")
    for at, share in enumerate(shares):
        assert (
            run_until(scenario, place / "cut", int(share * events), resume=at > 0) == "interrupted"
        )
    go_on(scenario, place / "cut")
    assert_same_run(place / "whole", place / "cut")


@pytest.mark.parametrize(
    "strategy", [one for one in STRATEGIES if one["kind"] in ("fedbuff", "refl")]
)
def test_while_the_server_computes_and_waits_for_the_lost(
    strategy: dict[str, Any], tmp_path: Path
) -> None:
    """The two of all strategies that do something of their own then."""
    sections = eventful_world(strategy, seed=5, rounds=2) | {
        "learning": "off",
        "server": {"speed": 1e-6, "patience": "9 s"},
    }
    sections["population"]["availability"] = {
        "kind": "renewal",
        "mean_on": "10 s",
        "mean_off": "10 s",
    }
    states = stopped_often(sections, tmp_path, 5)
    assert any(root["parts"]["server"]["unnoticed"] for root in states)
    assert any(root["parts"]["server"]["busy_until"] > root["now"] for root in states)


BUSY = ("cata-fed", "cfl", "tifl", "lcfl", "flexcfl", "fedat")


@pytest.mark.parametrize(
    "strategy", [one for one in STRATEGIES if one["kind"] in BUSY], ids=lambda one: one["kind"]
)
def test_where_the_server_has_costs(strategy: dict[str, Any], tmp_path: Path) -> None:
    """Of strategies that cluster, test tiers or wait for their own timers when the server
    computes or hears of a loss.
    """
    sections = eventful_world(strategy, seed=5, rounds=3) | {
        "server": {"speed": 1e-6, "patience": "4 s"}
    }
    stopped_at(sections, tmp_path, 1 / 3, 1 / 4, 1 / 4)


@pytest.mark.parametrize("kind", ["feddyn", "scaffold"])
def test_models_have_the_names_that_they_would_have(kind: str, tmp_path: Path) -> None:
    """Records name models that are not finite; the zeros with which clients begin were named
    before the interrupt.
    """
    scenario = eventful_world({"kind": kind, "clients_per_round": 4}, rounds=4)
    scenario["training"] = {"lr": 1e6, "weight_decay": 1e3}
    stopped_at(scenario, tmp_path, 1 / 2)
    assert "non-finite" in {event["kind"] for event in RunFolder(tmp_path / "whole").events}


TCP = {
    "kind": "tcp",
    "segment": "100 B",
    "initial_window": 1,
    "round_trip": "1 s",
    "weight_spread": 2.0,
}
"""With small windows and long round trips, so that slow start lasts."""


@pytest.mark.parametrize("network", ["star", "tree"])
def test_in_slow_start(network: str, tmp_path: Path) -> None:
    """Windows that are open go on to double when they would have."""
    scenario = eventful_world(
        {"kind": "fedavg", "clients_per_round": 6, "deadline": "30 s"}, seed=4, rounds=2
    )
    scenario |= {
        "learning": "off",
        "network": (TREE if network == "tree" else scenario["network"]) | {"protocol": TCP},
    }
    assert (
        sum(
            bool(root["parts"]["network"]["windows"])
            for root in stopped_often(scenario, tmp_path, 7)
        )
        > 3
    )
    assert_sound(tmp_path / "cut")


def words(scenario: dict[str, Any], place: Path) -> list[str]:
    """What comes after ``fedsim`` on the command line that runs a scenario into ``place /
    "out"``.
    """
    path = place / "scenario.toml"
    path.write_text(fedsim.Scenario(**scenario).to_toml())
    return ["run", str(path), "--out", str(place / "out"), "--quiet"]


class TestCommandLine:
    """What is stopped is a process of its own; it goes on in this one."""

    def started(self, scenario: dict[str, Any], place: Path) -> "subprocess.Popen[bytes]":
        return children.fedsim(*words(scenario, place))

    def long(self) -> dict[str, Any]:
        scenario = eventful_world(
            {"kind": "fedavg", "clients_per_round": 6, "local_epochs": 2, "deadline": "30 s"},
            seed=2,
        )
        return scenario | {"stop": {"rounds": 100}, "checkpoint": {"rounds": 5}}

    @pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
    def test_a_run_that_is_ended_goes_on(
        self, end: signal.Signals, tmp_path: Path, made: Made
    ) -> None:
        """A signal saves the run (SIGINT in tests/test_cli.py); one that is killed goes on from
        its last checkpoint.
        """
        scenario = self.long()
        made(scenario, tmp_path / "whole")
        process = self.started(scenario, tmp_path)
        saved = f"{store.FOLDER}/[0-9]*[0-9]"  # from then on the run takes signals
        children.wait_until(lambda: any((tmp_path / "out").glob(saved)), process)
        process.send_signal(end)
        assert process.wait(GENEROUS_S) == (130 if end == signal.SIGTERM else -end)
        assert (tmp_path / "out" / "summary.json").exists() == (end == signal.SIGTERM)
        assert call(*words(scenario, tmp_path), "--resume").exit_code == 0
        assert_same_run(tmp_path / "whole", tmp_path / "out")

    def test_the_end_of_its_terminal_saves_the_run(self, tmp_path: Path) -> None:
        terminal, end = pty.openpty()
        process = children.fedsim(
            *[word for word in words(self.long(), tmp_path) if word != "--quiet"],
            stdout=end,
            stderr=end,
        )
        saved = f"{store.FOLDER}/[0-9]*[0-9]"  # from then on the run takes signals
        children.wait_until(lambda: any((tmp_path / "out").glob(saved)), process)
        os.close(end)
        process.send_signal(signal.SIGHUP)
        os.close(terminal)  # from now on whatever is written fails
        assert process.wait(GENEROUS_S) == 130
        assert (
            json.loads((tmp_path / "out" / "summary.json").read_text())["status"] == "interrupted"
        )


Cut = tuple[dict[str, Any], Path]


@pytest.fixture(scope="module")
def cut_once(tmp_path_factory: pytest.TempPathFactory) -> Cut:
    scenario = eventful_world({"kind": "fedbuff", "concurrency": 7, "buffer": 3}, seed=1) | {
        "checkpoint": {"time": "7 s"}
    }
    folder = tmp_path_factory.mktemp("cut") / "cut"
    assert run_until(scenario, folder, 200) == "interrupted"
    assert len(list((folder / store.FOLDER).iterdir())) == 2
    return scenario, folder


@pytest.fixture
def cut(cut_once: Cut, tmp_path: Path) -> Cut:
    return cut_once[0], Path(shutil.copytree(cut_once[1], tmp_path / "cut"))


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(cut: Cut, says: str) -> None:
    before = content(cut[1])
    with pytest.raises((CheckpointError, RunFolderError), match=says):
        go_on(*cut)
    assert content(cut[1]) == before


_SAVED = ("state.json", "arrays.safetensors", "manifest.json")


def swap(out: Path) -> None:
    older, newer = sorted((out / store.FOLDER).iterdir())
    for name in _SAVED:
        one, other = (older / name).read_bytes(), (newer / name).read_bytes()
        (older / name).write_bytes(other)
        (newer / name).write_bytes(one)


def put_elsewhere(out: Path) -> None:
    (out / store.FOLDER).rename(out.with_name("elsewhere"))
    (out / store.FOLDER).symlink_to(out.with_name("elsewhere"))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "none": (lambda out: shutil.rmtree(out / store.FOLDER), "no checkpoint"),
    "swapped": (swap, "which is not its name"),
    "a link": (put_elsewhere, "is a link, which is not followed"),
    **{
        f"{name} is short": (lambda out, name=name: truncate(store.latest(out) / name), "damaged")
        for name in _SAVED
    },
    **{
        f"{name} is gone": (lambda out, name=name: (store.latest(out) / name).unlink(), "damaged")
        for name in _SAVED
    },
}


class TestRefusals:
    @pytest.mark.parametrize("harm", HARMS)
    def test_checkpoints_that_were_harmed(self, cut: Cut, harm: str) -> None:
        do, says = HARMS[harm]
        do(cut[1])
        refused(cut, says)

    def test_another_scenario_and_a_run_that_is_done(self, cut: Cut) -> None:
        refused((cut[0] | {"seed": 9}, cut[1]), "another scenario")
        go_on(*cut)
        refused(cut, "is done")

    @pytest.mark.parametrize("table", ["events", "transfers", "rounds"])
    def test_a_part_that_the_checkpoint_counts_on(
        self, cut: Cut, table: str, tmp_path: Path
    ) -> None:
        """Nothing is computed on top of a part that is not as it was: emptied, changed,
        exchanged or gone.
        """
        part = cut[1] / f"{table}.part-00000.parquet"
        whole = part.read_bytes()
        other = (
            cut[1] / f"{'events' if table == 'rounds' else 'rounds'}.part-00000.parquet"
        ).read_bytes()
        run_until(cut[0] | {"seed": 8}, tmp_path / "other", 200)
        of_another_run = (tmp_path / "other" / part.name).read_bytes()
        for content in (
            b"",
            whole[:-1],
            whole[:50] + bytes([whole[50] ^ 1]) + whole[51:],
            other,
            of_another_run,
        ):
            part.write_bytes(content)
            refused(cut, rf"{table}\.part-00000\.parquet' is not what was written")
        part.unlink()
        refused(cut, rf"{table}\.part-00000\.parquet' is missing")
        part.write_bytes(whole)
        assert go_on(*cut)["status"] == "done"

    def test_a_folder_in_which_another_process_works(self, cut: Cut) -> None:
        with locked(cut[1]):
            refused(cut, rf"another process \({os.getpid()} on ")
            with pytest.raises(RunFolderError, match="already holds"):
                run(*cut)
        assert go_on(*cut)["status"] == "done"
        assert not (cut[1] / LOCK).exists()

    def test_forged(self, cut: Cut) -> None:
        """Wrong content under right fingerprints: unknown classes, fields that do not exist,
        states of another form.
        """
        place = store.latest(cut[1])
        events, tree, arrays = store.read(place)
        text = json.dumps(tree)
        for forged, says in (
            (text.replace('["Task"', '["os.system"', 1), "malformed"),
            (text.replace('["Task", {', '["Task", {"__class__": 1, ', 1), "fields"),
            (json.dumps({"root": {}, "objects": []}), "not of this run"),
            (json.dumps([1, 2, 3]), "malformed"),
            (text.replace('"~object": 0}', '"~object": 999999}', 1), "names object"),
        ):
            assert forged != text
            shutil.rmtree(place)
            store.write(cut[1], store.Checkpoint(events, json.loads(forged), arrays))
            refused(cut, says)
        shutil.rmtree(place)
        store.write(cut[1], store.Checkpoint(events, tree, arrays))
        assert go_on(*cut)["status"] == "done"


def test_what_a_killed_writer_left_is_gone_after_a_resume(cut: Cut, tmp_path: Path) -> None:
    """Whatever it was writing: the summary, a table, a part, a model, a checkpoint; and parts
    written after the checkpoint.

    The newest checkpoint is gone, and the one before it serves.
    """
    shutil.rmtree(store.latest(cut[1]))
    for name in ("summary.json", "devices.parquet"):  # something else has taken their place
        (cut[1] / name).unlink()
        (cut[1] / name / "in it").mkdir(parents=True)
    for name in (
        "summary.json",
        "events.parquet",
        "rounds.part-00009.parquet",
        "models/global.safetensors",
    ):
        (cut[1] / f"{name}.writing").write_text("{")
    (cut[1] / store.FOLDER / "000000099999.writing").mkdir()
    (cut[1] / "events.part-00077.parquet").write_text("of what was lost")
    (cut[1] / LOCK).write_text("1 elsewhere\n")  # its holder is dead
    go_on(*cut)
    run(cut[0], tmp_path / "whole")
    assert_same_run(tmp_path / "whole", cut[1])
    assert_sound(cut[1])
    left = {path.name for path in cut[1].rglob("*") if path.is_file()}
    assert not [name for name in left if "writing" in name or "part-" in name or name == LOCK]


def test_links_in_a_folder_lead_nothing_to_harm(cut: Cut, tmp_path: Path) -> None:
    scenario, out = cut
    mine = tmp_path / "mine"
    (mine / "3").mkdir(parents=True)
    for name in ("precious", "left.writing", "3/state.json"):
        (mine / name).write_text("precious")
    for name in ("summary.json", "events.parquet", "devices.parquet", "network.json", "models"):
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink(missing_ok=True)
        (out / name).symlink_to(mine if name == "models" else mine / "precious")
    for name in ("events.parquet", "summary.json", "events.part-00001.parquet"):
        (out / f"{name}.writing").symlink_to(mine / "precious")
    (out / "elsewhere").symlink_to(mine)
    (out / store.FOLDER / "999999999999").symlink_to(mine / "3")
    go_on(scenario, out)
    assert sorted(path.name for path in mine.rglob("*")) == [
        "3",
        "left.writing",
        "precious",
        "state.json",
    ]
    assert {path.read_text() for path in mine.rglob("*") if path.is_file()} == {"precious"}


def test_a_network_that_was_changed_is_written_again(tmp_path: Path) -> None:
    graph = networkx.Graph([("hub", name, {"capacity": "1 Mbit/s"}) for name in ("north", "south")])
    (tmp_path / "city.json").write_text(json.dumps(networkx.node_link_data(graph, edges="edges")))
    scenario = eventful_world({"kind": "fedavg", "clients_per_round": 6}, seed=1)
    scenario["data"] |= {"root": str(tmp_path)}
    scenario["network"] = {
        "kind": "graph",
        "file": "city.json",
        "server": "hub",
        "attach": ["north", "south"],
    }
    assert run_until(scenario, tmp_path / "cut", 100) == "interrupted"
    written = (tmp_path / "cut" / "network.json").read_text()
    for damaged in ("", written.replace("125000.0", "1.0")):
        (tmp_path / "cut" / "network.json").write_text(damaged)
        assert run_until(scenario, tmp_path / "cut", 20, resume=True) == "interrupted"
        assert (tmp_path / "cut" / "network.json").read_text() == written
        assert_sound(tmp_path / "cut")


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """The system refuses to make any file of this process larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("share", [0.1, 0.6, 0.95])
def test_a_disk_that_takes_no_more_at_any_write(tmp_path: Path, share: float, made: Made) -> None:
    """The system refuses every file beyond a size: the run fails without a traceback, and goes
    on from its last checkpoint.
    """
    scenario = eventful_world({"kind": "fedbuff", "concurrency": 7, "buffer": 3}, seed=6, rounds=20)
    scenario |= {"checkpoint": {"time": "7 s"}}
    whole, out = made(scenario, tmp_path / "whole"), tmp_path / "out"
    most_bytes = int(
        share * max(file.stat().st_size for file in whole.rglob("*") if file.is_file())
    )
    command = words(scenario, tmp_path)
    with no_file_larger_than(most_bytes):
        failed = call(*command)
    assert failed.exit_code == 1
    assert isinstance(failed.exception, SystemExit)
    assert "File too large" in failed.output
    assert "Traceback" not in failed.output
    assert not [*(out / store.FOLDER).glob("*.writing")]
    if any((out / store.FOLDER).glob("*")):
        go_on(scenario, out)
        assert_same_run(whole, out)
        assert_sound(out)


def test_checkpoints_change_nothing(tmp_path: Path) -> None:
    scenario = eventful_world(
        {"kind": "flexcfl", "groups": 2, "clients_per_round": 5, "local_epochs": 1}, seed=4
    )
    often = run(scenario | {"checkpoint": {"rounds": 1}}, tmp_path / "often")
    never = run(scenario | {"checkpoint": {}}, tmp_path / "never")
    assert [often[key] for key in FIGURES] == [never[key] for key in FIGURES]
    assert (tmp_path / "often" / "events.parquet").read_bytes() == (
        tmp_path / "never" / "events.parquet"
    ).read_bytes()
    assert len(list((tmp_path / "often" / store.FOLDER).iterdir())) == 2
    assert not (tmp_path / "never" / store.FOLDER).exists()
    assert not list((tmp_path / "never").glob("*.part-*"))


_HOLDER = """
import sys, time
from pathlib import Path
from fedsim.records.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def holder(folder: Path, seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", _HOLDER, str(folder), str(seconds)]
    started = children.popen(command, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "held\n"
    return started


def test_the_holder_is_named_and_a_dead_one_is_none(tmp_path: Path) -> None:
    with holder(tmp_path, 60) as other:
        with pytest.raises(RunFolderError) as refusal, locked(tmp_path):
            pass
        assert str(refusal.value) == (
            f"another process ({other.pid} on {socket.gethostname()!r}) works in "
            f"{str(tmp_path)!r}; wait, or end it"
        )
        other.kill()
    assert (tmp_path / LOCK).exists()  # nobody was there to remove it
    with locked(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


def test_who_is_patient_gets_it_when_its_holder_has_ended(tmp_path: Path) -> None:
    with (
        holder(tmp_path, 0.5),
        locked(tmp_path, patience_s=GENEROUS_S),
        pytest.raises(RunFolderError),
        locked(tmp_path),
    ):
        pass


@pytest.mark.parametrize("text", ["", "one two", "1 \x1b[31mred 3", "\x00" * 5000])
def test_a_name_that_says_nothing_is_not_repeated(tmp_path: Path, text: str) -> None:
    with locked(tmp_path):
        (tmp_path / LOCK).write_text(text)
        with pytest.raises(RunFolderError, match=r"^another process works in"), locked(tmp_path):
            pass


def test_a_link_to_another_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    (tmp_path / LOCK).symlink_to(tmp_path / "precious.txt")
    with pytest.raises(RunFolderError, match="cannot be locked"), locked(tmp_path):
        pass
    assert (tmp_path / "precious.txt").read_text() == "mine"
