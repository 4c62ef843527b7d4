"""Draws the pictures of README and of the first page: ``python docs/draw.py``, half a minute on
two cores.
"""

import tempfile
from pathlib import Path
from typing import Any

import fedsim
from fedsim.cli import main

OUT = Path(__file__).parent / "pictures"
SMALL = (
    "population.devices=16",
    "strategy.clients_per_round=8",
    "strategy.deadline=80 s",
    "stop.rounds=5",
)
VARIANTS = ("fedavg", "scaffold", "fedbuff", "ifca", "flexcfl")


def save(figure: Any, name: str) -> None:
    """As PNG, modest in size, on white whatever is around it."""
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
        only = [word for name in VARIANTS for word in ("--only", name)]
        main(["study", "communication", "--out", f"{folder}/study", *only], standalone_mode=False)
        save(fedsim.load_study(f"{folder}/study").figure("costs"), "study")
