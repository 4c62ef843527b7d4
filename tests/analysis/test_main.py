"""``python -m fedsim.analysis``; and a run of each family of strategies, in a world where much happens,
in every verb and picture.
"""

import csv
import importlib.util
import io
import json
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import fedsim
from fedsim import analysis
from fedsim.analysis.__main__ import main
from fedsim.analysis.pictures import OF_ANY, OF_ONE, OF_SEVERAL
from fedsim.analysis.style import NothingToDrawError
from fedsim.lab.reading.activities import Activities
from fedsim.lab.reading.attempts import Attempts
from fedsim.lab.reading.history import History
from fedsim.records.folder import fingerprints
from fedsim.records.reading import RunFolder
from fedsim.testing import assert_sound
from tests.analysis.conftest import Lived, Ran
from tests.calls import done

PACKAGE = Path(analysis.__file__).parent
ENGINE = (
    "torch",
    *(f"fedsim.{name}" for name in ("federation", "world", "learning", "strategies", "running")),
)
LIGHT = (  # of these rooms: messages of mistakes, and the columns of meters
    "fedsim.running",
    "fedsim.running.mistakes",
    "fedsim.world",
    "fedsim.world.meters",
    *(f"fedsim.world.meters.{name}" for name in ("base", "ended", "energy", "fields", "spec")),
)
PICTURES = ("timeline", "stragglers", "traffic", "fairness")


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_pictures_lie_beside_their_runs_and_what_does_not_apply_is_left_out(
    unlearned: RunFolder,
) -> None:
    before = fingerprints(unlearned.path)
    result = call(unlearned.path, "--format", "svg")
    assert result.exit_code == 0, result.output
    folder = unlearned.path.with_name("unlearned-figures")
    assert {path.name for path in folder.iterdir()} == {f"{name}.svg" for name in PICTURES}
    assert sorted(result.stdout.split()) == sorted(map(str, folder.iterdir()))
    assert "no accuracy: no round was evaluated" in result.stderr
    assert fingerprints(unlearned.path) == before


def test_of_several_runs_only_what_is_asked_for(
    grouped: RunFolder, renamed: RunFolder, tmp_path: Path
) -> None:
    kinds = "membership, split-tree,traffic"
    result = call(
        grouped.path, renamed.path, "--out", tmp_path / "out", "--format", "png", "--only", kinds
    )
    assert result.exit_code == 0, result.output
    names = sorted(path.stem.partition("-2-")[0] for path in (tmp_path / "out").iterdir())
    assert names == ["membership-1-flexcfl", "traffic", "traffic-1-flexcfl", "traffic-purposes"]
    assert "no split-tree-1-flexcfl: " in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "pgn"], "--format is 'pgn'; allowed are png, svg (did you mean 'png'?)"),
        (["--only", "membership,acuracy"], "(did you mean 'accuracy'?)"),
        (["--out", "RUN/summary.json"], "lies in the run folder"),
    ],
)
def test_mistakes_get_one_message(
    run: RunFolder, tmp_path: Path, options: list[str], message: str
) -> None:
    options = [option.replace("RUN", str(run.path)) for option in options]
    result = call(
        run.path, *(options if "--out" in options else ["--out", tmp_path / "out", *options])
    )
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("analysis: ")
    assert len(result.stderr.splitlines()) == 1


def test_drawing_loads_nothing_of_the_engine(run: RunFolder, tmp_path: Path) -> None:
    code = (
        "import atexit, sys; from fedsim.analysis.__main__ import main; "
        "atexit.register(lambda: print('loaded', *sys.modules)); "
        f"main([{str(run.path)!r}, '--out', {str(tmp_path / 'out')!r}, '--format', 'svg'])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    said, *loaded = process.stdout.splitlines()[-1].split()
    assert said == "loaded"
    heavy = {module for module in loaded if module.startswith(ENGINE)} - {*LIGHT}
    assert heavy == set()


def test_runs_that_moved_nothing_or_learned_nothing(unlearned: RunFolder, ran: Ran) -> None:
    alone = ran(
        "alone",
        population={"devices": 3},
        strategy={"kind": "local"},
        stop={"rounds": 1},
        learning="off",
    )
    for kind, message in (("timeline", "no simulated time passes"), ("traffic", "moved no bytes")):
        with pytest.raises(NothingToDrawError, match=message):
            OF_ONE[kind].draw(alone)
    other = ran("other", seed=2, learning="off")
    several = {
        "traffic-purposes": ([alone, alone], "moved any bytes"),
        "accuracy": ([unlearned], "learning is off"),
    }
    several |= {
        "costs": ([unlearned, other], "no round was evaluated"),
        "energy": ([unlearned], "not counted"),
    }
    for kind, (runs, message) in several.items():
        with pytest.raises(NothingToDrawError, match=message):
            OF_SEVERAL[kind].draw(runs)


CLUSTERINGS = ("membership", "similarity", "embedding")
HAPPENS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cata-fed": (("cluster", "split"), ("stragglers", "clusters")),
    "cfl": (
        ("assign", "leaving", "cluster-split", "clustering"),
        ("stragglers", *CLUSTERINGS, "split-tree"),
    ),
    "fedasync": ((), ()),
    "fedat": (("latency-tiers",), ()),
    "fedavg": ((), ("stragglers",)),
    "flexcfl": (
        ("assign", "migration", "clustering", "shift-test", "server-transfer"),
        ("stragglers", *CLUSTERINGS),
    ),
    "gossip": (("message",), ()),
    "hierfavg": (("edge-transfer", "edge-off", "edges-combined"), ("stragglers",)),
    "ifca-mig": (("assign", "migration", "shift-test"), ("stragglers", "membership")),
    "lcfl": (("assign", "clustering", "campaign"), CLUSTERINGS),
    "local": ((), ()),
    "rfedavg": (("clustering",), ("stragglers", "similarity", "embedding")),
    "tifl": (("tiers", "tier"), ("stragglers", "clusters")),
}
"""The kinds of records that a family is for, and its pictures besides those that all have;
others write no other records.
"""


def happened(run: RunFolder) -> Counter[str]:
    count = Counter(event["kind"] for event in run.events)
    for event in run.events:
        if event["kind"] == "assign" and event["data"]["before"] is not None:
            count["leaving" if event["group"] is None else "migration"] += 1
    return count


def clients_are_those_of_the_rounds_table(run: RunFolder) -> None:
    clients = Attempts(Activities(History(run))).clients
    for row in run.rounds:
        if row["selected"] is None:  # a strategy with versions
            continue
        counts = Counter(client.outcome for client in clients.get(row["round"], []))
        expected = (row["selected"], row["valid"], row["slow"], row["disconnected"])
        slow = counts["slow"] + counts["late"]
        assert (counts.total(), counts["valid"], slow, counts["lost"]) == expected


@pytest.mark.parametrize("kind", HAPPENS)
def test_verbs_and_pictures_of(kind: str, lived: Lived, tmp_path: Path) -> None:
    run = lived(kind)
    count, (records, pictures) = happened(run), HAPPENS[kind]
    missing = [name for name in ("arrival", "departure", "shift", *records) if not count[name]]
    assert not missing, f"this world does not show {missing}"
    assert_sound(run.path)
    if kind != "hierfavg":  # whose rounds count the tasks of their last edge round alone
        clients_are_those_of_the_rounds_table(run)

    (row,) = csv.DictReader(io.StringIO(done("compare", run.path, "--csv")))
    assert (row["migrations"] != "") == (count["assign"] > 0)
    done("trace", run.path, "--out", tmp_path / "trace.json")
    entries = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert not [
        entry["name"] for entry in entries if "None" in entry["name"] or "nan" in entry["name"]
    ]
    named = Counter(entry["name"].rstrip(" 0123456789") for entry in entries)
    assert named["into group"] + named["out of group"] == count["assign"]
    assert named["out of group"] == count["leaving"]
    if importlib.util.find_spec("tensorboard"):
        done("tensorboard", run.path, "--out", tmp_path / "board")

    loaded, drawn = fedsim.load_run(run.path), set()
    if kind == "gossip":  # bytes between devices count as moved
        assert loaded.figure("accuracy").axes[2].lines[0].get_xdata()[-1] > 0
    assert all(len(frame) for frame in (loaded.events, loaded.rounds, loaded.devices))
    assert loaded.transfers.empty == (kind == "local")
    for name in (*OF_ONE, *OF_ANY):
        with suppress(NothingToDrawError):
            figure = loaded.figure(name)
            drawn.add(name)
            assert any(axes.has_data() for axes in figure.axes)
            texts = [
                text.get_text()
                for axes in figure.axes
                for text in (axes.title, *axes.texts, *axes.get_yticklabels())
            ]
            assert not [text for text in texts if "None" in text or "group -1" in text]
    assert drawn == {
        "timeline",
        *pictures,
        *(["traffic"] * (kind != "local")),
        *(["fairness"] * (kind != "gossip")),  # without a server nobody selects devices
        "accuracy",
    }
