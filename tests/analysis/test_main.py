import ast
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import fedsim
from fedsim import analysis
from fedsim.analysis.__main__ import main
from fedsim.audit import audit
from fedsim.records.folder import fingerprints
from fedsim.records.reading import RunFolder

PACKAGE = Path(analysis.__file__).parent
ENGINE = (
    "fedsim.simulation",
    "fedsim.federation.server",
    "fedsim.world",
    "fedsim.learning",
    "fedsim.strategies.",
    "fedsim.running.runner",
    "torch",
)
PICTURES = ("timeline", "stragglers", "traffic", "accuracy", "fairness")


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.long
def test_all_pictures_of_a_run_lie_beside_it(run: RunFolder) -> None:
    before = fingerprints(run.path)
    result = call(run.path)
    assert result.exit_code == 0, result.output
    folder = run.path.with_name("run-figures")
    expected = {f"{name}.{kind}" for name in PICTURES for kind in ("png", "svg")}
    assert {path.name for path in folder.iterdir()} == expected
    assert "no clusters: " in result.stderr
    assert sorted(result.stdout.split()) == sorted(str(folder / name) for name in expected)
    assert fingerprints(run.path) == before
    assert not any(audit(run.path).values())


@pytest.mark.long
def test_several_runs(run: RunFolder, renamed: RunFolder, unlearned: RunFolder, tmp_path: Path) -> None:
    result = call(run.path, renamed.path, unlearned.path, "--out", tmp_path / "out", "--format", "png", "--devices", "5")
    assert result.exit_code == 0, result.output
    names = [path.stem for path in (tmp_path / "out").iterdir()]
    assert {"accuracy", "traffic-compared", "timeline-1-run", "traffic-3-unlearned"} < set(names)
    assert {"stragglers-1-run", "fairness", "traffic-purposes"} < set(names)
    assert len(names) == 13


def test_groups_are_drawn_and_only_what_is_asked_for(grouped: RunFolder, tmp_path: Path) -> None:
    result = call(grouped.path, "--out", tmp_path, "--format", "png", "--only", "membership, similarity,embedding,split-tree")
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} == {"membership.png", "similarity.png", "embedding.png"}
    assert "no split-tree: " in result.stderr


def test_what_does_not_apply_is_left_out_and_said(unlearned: RunFolder, tmp_path: Path) -> None:
    result = call(unlearned.path, "--out", tmp_path / "out", "--format", "svg", "--rounds", "1:3")
    assert result.exit_code == 0, result.output
    assert "no accuracy: no round was evaluated" in result.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{name}.svg" for name in PICTURES if name != "accuracy"}


def test_a_run_that_takes_no_time_has_no_timeline(tmp_path: Path) -> None:
    sections = {"learning": "off", "population": {"devices": 10}, "stop": {"rounds": 2}}
    fedsim.run(fedsim.Scenario(**sections), tmp_path / "run", executor="inline")
    result = call(tmp_path / "run", "--out", tmp_path / "out", "--format", "png")
    assert result.exit_code == 0, result.output
    assert "no timeline: no simulated time passes" in result.stderr
    assert (tmp_path / "out" / "traffic.png").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "pgn"], "--format is 'pgn'; allowed are png, svg (did you mean 'png'?)"),
        (["--only", "membership,acuracy"], "(did you mean 'accuracy'?)"),
        (["--rounds", "5"], "--rounds is '5'"),
        (["--rounds", "7:99", "--only", "timeline,stragglers", "--format", "png"], None),  # those that look at some rounds
        (["--rounds", "99:100"], "rounds 0 to 7"),
        (["--devices", "0"], "allowed is 1 or more"),
        (["--order", "speeed"], "did you mean 'speed'?"),
        (["--out", "RUN/pictures"], "lies in the run folder"),
        (["--out", "RUN/summary.json"], "lies in the run folder"),
    ],
)
def test_mistakes_get_one_message(run: RunFolder, tmp_path: Path, options: list[str], message: str | None) -> None:
    options = [option.replace("RUN", str(run.path)) for option in options]
    result = call(run.path, *(options if "--out" in options else ["--out", tmp_path / "out", *options]))
    if message is None:
        assert result.exit_code == 0, result.output
        return
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("analysis: ")
    assert len(result.stderr.splitlines()) == 1


def test_no_run_and_a_damaged_run_are_named(run: RunFolder, tmp_path: Path) -> None:
    (run.path / "events.parquet").write_bytes(b"PAR1 and then nothing")
    for folder, message in ((tmp_path, "is not a run folder"), (run.path, "events.parquet")):
        result = call(folder)
        assert result.exit_code == 2
        assert message in result.stderr


def test_no_picture_imports_the_engine() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
                assert not [module for module in modules if module.startswith(ENGINE)], path.name


def test_drawing_loads_nothing_of_the_engine(run: RunFolder, tmp_path: Path) -> None:
    code = (
        "import sys; from fedsim.analysis.__main__ import main; "
        f"main([{str(run.path)!r}, '--out', {str(tmp_path / 'out')!r}, '--format', 'svg'], standalone_mode=False); "
        "print('loaded', *sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    loaded = process.stdout.splitlines()[-1].split()
    assert not [module for module in loaded if module.startswith(ENGINE)]
