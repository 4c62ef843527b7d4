"""Draws the pictures of README and of the first page: ``python docs/draw.py``.

It takes half a minute on two cores.
"""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        fedsim.run(fedsim.load("quickstart", SMALL), f"{folder}/quickstart")
        save(fedsim.load_run(f"{folder}/quickstart").figure("timeline"), "timeline")
        command = ["study", "communication", "--out", f"{folder}/study"]
        for variant in VARIANTS:
            command += ["--only", variant]
        main(command, standalone_mode=False)
        save(fedsim.load_study(f"{folder}/study").figure("costs"), "study")
