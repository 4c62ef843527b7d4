from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fedsim.analysis import style
from fedsim.errors import RunFolderError
from fedsim.records.reading import RunFolder


def test_names_are_made_fit_to_draw() -> None:
    names = {"plain name": "plain name", "two\nlines\tand  more": "two lines and more", "_hidden": " _hidden", "": "unnamed"}
    for name, shown in (names | {"a円\x00\u202e\ud800": "a□□□□"}).items():
        assert style.short(name) == shown
    assert style.short("begin" + "x" * 100 + "end", 20) == "beginxxxxxxxx…xxxend"


def test_settings_of_others_stay_as_they_were(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    figure = style.styled(Figure)()
    style.save(figure, tmp_path / "empty")
    assert dict(matplotlib.rcParams) == before


def test_a_picture_takes_the_place_of_a_link_and_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "picture.png").symlink_to(tmp_path / "precious")
    style.save(style.styled(Figure)(), tmp_path / "picture", ["png"])
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(RunFolderError, match="cannot be written"):
        style.save(style.styled(Figure)(), tmp_path / "precious" / "picture")


def test_pixels_are_those_of_the_file(run: RunFolder, tmp_path: Path) -> None:
    """With a legend outside, which only the layout finds room for."""

    @style.styled
    def draw() -> Figure:
        figure = Figure(figsize=(6.1, 3.3))
        for panel in figure.subplots(1, 2):
            panel.plot([0, 1, 5], [2, 0, 1e6], label="a line")
            panel.set_title("a title\nof two lines")
        return style.finished(figure, [run], figure.axes[0].get_legend_handles_labels()[0])

    (path,) = style.save(draw(), tmp_path / "picture", ["png"], 160)
    assert np.array_equal(style.pixels(draw(), 160), np.asarray(Image.open(path)))


_DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
"""Of linear RGB; Machado, Oliveira and Fernandes (2009), severity 1."""


def lab(colour: str, seen: np.ndarray) -> np.ndarray:
    """CIELAB of a colour (D65) as an eye sees it whose linear RGB is ``seen`` times the usual."""
    part = np.array(matplotlib.colors.to_rgb(colour))
    linear = np.clip(seen @ np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4), 0, 1)
    matrix = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    x, y, z = np.array(matrix) @ linear / (0.95047, 1.0, 1.08883)
    f = [np.cbrt(t) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("seen", [np.eye(3), np.array(_DEUTERANOPIA)], ids=["usual", "deuteranopia"])
def test_five_groups_stay_apart(seen: np.ndarray) -> None:
    own = [lab(colour, seen) for colour in style.GROUPS[:5]]
    assert min(np.linalg.norm(one - other) for place, one in enumerate(own) for other in own[:place]) > 25


def test_no_group_looks_like_a_phase() -> None:
    phases = [lab(style.STEPS[step], np.eye(3)) for step in ("download", "train", "evaluate", "upload", "queue")]
    assert min(np.linalg.norm(lab(group, np.eye(3)) - phase) for group in style.GROUPS for phase in phases) > 20
