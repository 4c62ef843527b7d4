"""The gallery and the notebooks: pages that run, with numbers of the run alone, written by the public face."""

import ast
import sys
from pathlib import Path

import pytest

import fedsim
from tests.conftest import module_at

DOCS = Path(__file__).resolve().parents[1] / "docs"
GALLERY, NOTEBOOKS = (sorted((DOCS / folder).glob("*.py")) for folder in ("gallery", "notebooks"))


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
    _, computing = module_at(DOCS / "execute.py").execute(DOCS / "notebooks" / f"{name}.py", tmp_path)
    assert computing < 60


def test_what_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = module_at(DOCS / "execute.py")
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
