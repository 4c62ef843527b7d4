"""``python -m fedsim.analysis RUN...``: draws every picture that applies, each beside its run folder."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
from matplotlib.figure import Figure

from fedsim.analysis.pictures import OF_ANY, OF_ONE, OF_SEVERAL
from fedsim.analysis.style import (
    FORMATS,
    NothingToDrawError,
    PictureError,
    as_file_name,
    run_names,
    save,
)
from fedsim.common.errors import nearest
from fedsim.common.harmless import say
from fedsim.records.reading import RunFolder
from fedsim.running.mistakes import explained

KINDS = (*OF_ONE, "accuracy", "costs", "fairness", "energy")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The folder for the pictures; by default RUN-figures beside RUN.",
)
@click.option(
    "--only", metavar="KINDS", help=f"Draw only these, with commas between: {', '.join(KINDS)}."
)
@click.option(
    "--format",
    "formats",
    default=",".join(FORMATS),
    show_default=True,
    help="File formats, with commas between.",
)
@explained("analysis")
def main(runs: tuple[Path, ...], out: Path | None, only: str | None, formats: str) -> None:
    """Draw pictures of runs, each run alone and all side by side.

    Each RUN gets its timelines, clusters, groups and traffic; all runs together get accuracy,
    fairness and traffic. Runs of the same scenario with several seeds are one line with a band in
    ``costs``, and one bar in ``traffic-purposes``.
    """
    endings = _split_option("--format", formats, FORMATS)
    kinds: Sequence[str] = KINDS
    if only is not None:
        kinds = _split_option("--only", only, KINDS)
    folders = [RunFolder(path) for path in runs]
    if out is None:
        first_path = folders[0].path.resolve()
        out = first_path.with_name(f"{first_path.name}-figures")
    for picture in _pictures(folders):
        if picture.kind not in kinds:
            continue
        try:
            paths = save(picture.draw(), out / picture.name, endings)
        except NothingToDrawError as error:
            say(f"no {picture.name}: {error}", err=True)
        else:
            say(*paths)


class _Picture(NamedTuple):
    """Picture to draw.

    Attributes:
        kind: one of ``KINDS``.
        name: file name of the picture, without an ending.
        draw: draws the picture; raises ``NothingToDrawError`` if the picture does not apply.
    """

    kind: str
    name: str
    draw: Callable[[], Figure]


def _pictures(runs: Sequence[RunFolder]) -> Iterator[_Picture]:
    """Yield all pictures of each run, then all pictures of the runs together."""
    for run, suffix in zip(runs, _suffixes(runs), strict=True):
        for kind, picture in OF_ONE.items():
            yield _Picture(kind, f"{kind}{suffix}", partial(picture.draw, run))
    names: Sequence[str] = OF_ANY
    if len(runs) > 1:
        names = [*OF_SEVERAL]
    for name in names:
        kind = name.partition("-")[0]  # ``traffic-purposes`` is a picture of the kind ``traffic``
        yield _Picture(kind, name, partial(OF_SEVERAL[name].draw, runs))


def _suffixes(runs: Sequence[RunFolder]) -> list[str]:
    """Return a suffix for the names of each run's pictures; empty for a single run."""
    if len(runs) == 1:
        return [""]
    suffixes = []
    for number, name in enumerate(run_names(runs), start=1):
        suffixes.append(f"-{number}-{as_file_name(name)}")
    return suffixes


def _split_option(option: str, text: str, allowed: Sequence[str]) -> list[str]:
    """Split the text of an option at its commas, and check each word.

    Raises:
        PictureError: a word is not in ``allowed``.
    """
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if word not in allowed:
            raise PictureError(
                f"{option} is {text!r}; allowed are {', '.join(allowed)}{nearest(word, allowed)}"
            )
    return words


if __name__ == "__main__":
    main(prog_name="python -m fedsim.analysis")
