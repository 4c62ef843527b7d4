"""The gallery and the notebooks: pages that run, with numbers of the run alone, written by the public face."""

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import fedsim

DOCS = Path(__file__).resolve().parents[1] / "docs"
GALLERY, NOTEBOOKS = (sorted((DOCS / folder).glob("*.py")) for folder in ("gallery", "notebooks"))


def executor() -> Any:
    """``docs/execute.py``, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("execute", DOCS / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_a_page_asks_shows_and_answers_with_numbers_of_the_run(path: Path) -> None:
    tree = ast.parse(path.read_text())
    lines = (ast.get_docstring(tree) or "").splitlines()
    assert lines[0].endswith("?")
    assert lines[1] == "=" * len(lines[0])
    titles = [
        line[2:] for line, under in zip(*(path.read_text().splitlines()[at:] for at in (0, 1)), strict=False) if "# --" in under
    ]
    assert [title.rstrip("s") for title in titles] == ["The set-up", "The picture", "The answer"]
    answers = [node.value for node in tree.body if isinstance(node, ast.Expr) and is_print(node.value)]
    assert len(answers) == 2
    for answer in answers:
        assert any(isinstance(part, ast.FormattedValue) for part in ast.walk(answer))


def is_print(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"


@pytest.mark.parametrize("path", [*GALLERY, *NOTEBOOKS], ids=lambda path: path.stem)
def test_a_page_is_written_by_the_public_face(path: Path) -> None:
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    assert not [node for node in nodes if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedsim")]
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "fedsim"}
    assert used
    assert used <= set(fedsim.__all__)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["first_run", "own_strategy"])  # docs/execute.py runs the study, too, which takes longer
def test_notebooks_run_to_their_end(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.setattr(sys, "path", list(sys.path))
    _, computing = executor().execute(DOCS / "notebooks" / f"{name}.py", tmp_path)
    assert computing < 60


def test_what_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = executor()
    (tmp_path / "gallery").mkdir()
    (tmp_path / "gallery" / "plot_good.py").write_text("import os\nprint(os.getcwd())\n")
    (tmp_path / "gallery" / "plot_bad.py").write_text("raise ValueError('on purpose')\n")
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["execute.py"])
    assert module.main() == 1
    said = capsys.readouterr()
    assert "1 of 2 are well; not plot_bad" in said.out
    assert "on purpose" in said.err
    assert str(tmp_path) not in said.out  # it ran in a folder of its own
    monkeypatch.setattr(sys, "argv", ["execute.py", "goo"])
    assert module.main() == 0
    monkeypatch.setattr(sys, "argv", ["execute.py", "nothing"])
    with pytest.raises(SystemExit):
        module.main()
    assert "there are plot_bad, plot_good" in capsys.readouterr().err
