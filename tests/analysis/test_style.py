import io
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fedsim.analysis import style
from fedsim.errors import RunFolderError


@pytest.mark.parametrize(
    ("span", "size", "name"), [(0, 1, "s"), (179, 1, "s"), (180, 60, "min"), (7200, 3600, "h"), (172800, 86400, "days")]
)
def test_time_units(span: float, size: float, name: str) -> None:
    assert style.time_unit(span) == (size, name)


@pytest.mark.parametrize(("most", "name"), [(0, "B"), (999, "B"), (1e3, "kB"), (2.5e7, "MB"), (1e9, "GB"), (5e13, "TB")])
def test_bytes_units(most: float, name: str) -> None:
    assert style.bytes_unit(most).name == name


def test_names_are_made_fit_to_draw() -> None:
    assert style.short("plain name") == "plain name"
    assert style.short("two\nlines\tand  more") == "two lines and more"
    assert style.short("a円\x00\u202e\ud800") == "a□□□□"
    assert style.short("_hidden") == " _hidden"
    assert style.short("") == "unnamed"
    long = style.short("begin" + "x" * 100 + "end", 20)
    assert len(long) == 20
    assert long.startswith("begin")
    assert long.endswith("end")
    assert "…" in long


def test_settings_of_others_stay_as_they_were(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    figure = style.styled(Figure)()
    style.save(figure, tmp_path / "empty")
    assert dict(matplotlib.rcParams) == before


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        style.save(style.styled(Figure)(), tmp_path / "file" / "picture")


def test_a_picture_takes_the_place_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "picture.png").symlink_to(tmp_path / "precious")
    style.save(style.styled(Figure)(), tmp_path / "picture", ["png"])
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_pixels_are_those_of_the_file() -> None:
    """With a legend outside, which only the layout finds room for."""

    @style.styled
    def draw() -> Figure:
        figure = Figure(figsize=(6.1, 3.3))
        for panel in figure.subplots(1, 2):
            panel.plot([0, 1, 5], [2, 0, 1e6], label="a line")
            panel.set_title("a title\nof two lines")
        style.legend_below(figure, *figure.axes[0].get_legend_handles_labels())
        return figure

    file = Image.open(io.BytesIO(style.rendered(draw(), "png", 160)))
    assert np.array_equal(style.pixels(draw(), 160), np.asarray(file))
