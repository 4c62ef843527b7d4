"""Draws the pictures of README, of the first page, of strategies and of the figures for papers.

``python docs/draw.py`` takes some three minutes on two cores.
"""

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from strategy_pictures import TIMELINES, changes

import fedsim
from fedsim.cli import main

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OUT = Path(__file__).parent / "pictures"
SMALL = (
    "population.devices=16",
    "strategy.clients_per_round=8",
    "strategy.deadline=80 s",
    "stop.rounds=5",
)
VARIANTS = ("fedavg", "scaffold", "fedbuff", "ifca", "flexcfl")


def save(figure: "Figure", name: str) -> None:
    """Save a figure as a PNG of modest size, with a white background.

    Args:
        figure: the figure.
        name: name of the file, without its suffix.
    """
    figure.savefig(
        OUT / f"{name}.png",
        dpi=75,
        bbox_inches="tight",
        facecolor="white",
        pil_kwargs={"optimize": True},
    )


def carry_out(command: list[str]) -> None:
    """Carry out a command of fedsim, and fail if it fails.

    Args:
        command: the words after ``fedsim``.
    """
    try:
        main(command, standalone_mode=False)
    except SystemExit as end:  # also a command that has succeeded ends so
        if end.code:
            raise


def draw_paper(folder: Path) -> None:
    """Draw the figures of the page ``figures.md``, from the study that the page has.

    Args:
        folder: folder for the runs.
    """
    page = (Path(__file__).parent / "figures.md").read_text(encoding="utf-8")
    study = re.search(r"```toml\n(# paper\.toml\n.*?)```", page, re.DOTALL)
    assert study is not None
    (folder / "paper.toml").write_text(study[1], encoding="utf-8")
    carry_out(["study", f"{folder}/paper.toml", "--out", f"{folder}/paper"])
    runs = []
    for seed in (1, 2, 3):
        runs.append(f"{folder}/migration-{seed}")
        fedsim.run(fedsim.load("migration", seed=seed), runs[-1])
    drawings = (
        [f"{folder}/paper", "--figure", "straggling", "--figure", "waiting"],
        [f"{folder}/paper", "--figure", "communication"],
        [f"{folder}/paper", "--figure", "rounds", "--only", "cata-fed"],
        [*runs, "--figure", "migration", "--figure", "members"],
    )
    for words in drawings:
        carry_out(["figures", *words, "--format", "png", "--out", f"{folder}/figures"])
    for path in sorted((folder / "figures").glob("*.png")):
        keep_few_colours(path, OUT / f"paper-{path.name}")


def draw_strategies(folder: Path) -> None:
    """Draw the timelines of the strategies' pages.

    Args:
        folder: folder for the runs.
    """
    for kind in TIMELINES:
        fedsim.run(fedsim.load("quickstart", changes(kind)), f"{folder}/{kind}")
        save(fedsim.load_run(f"{folder}/{kind}").figure("timeline"), f"strategy-{kind}")
        path = OUT / f"strategy-{kind}.png"
        keep_few_colours(path, path)


def keep_few_colours(path: Path, out: Path) -> None:
    """Save a picture with 64 colours, which is half as large.

    Args:
        path: the picture.
        out: path of the result.
    """
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(64)
    few.save(out, optimize=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        fedsim.run(fedsim.load("quickstart", SMALL), f"{folder}/one")
        save(fedsim.load_run(f"{folder}/one").figure("timeline"), "timeline")
        command = ["study", "communication", "--out", f"{folder}/study"]
        for variant in VARIANTS:
            command += ["--only", variant]
        carry_out(command)
        save(fedsim.load_study(f"{folder}/study").figure("costs"), "study")
        draw_strategies(Path(folder))
        draw_paper(Path(folder))
