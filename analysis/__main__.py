"""``python -m analysis RUN...``: draw every picture that applies, beside the run folders, never
inside them.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

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
    """Draw the timelines, clusters, groups and traffic of each RUN, and the accuracy, fairness
    and traffic of all side by side.

    Runs of one scenario with several seeds are one line with a band in ``costs``, and one bar in
    ``traffic-purposes``.
    """
    endings = _chosen("--format", formats, FORMATS)
    wanted = KINDS if only is None else _chosen("--only", only, KINDS)
    folders = [RunFolder(path) for path in runs]
    first = folders[0].path.resolve()
    target = first.with_name(f"{first.name}-figures") if out is None else out
    for kind, name, draw in _pictures(folders):
        if kind in wanted:
            try:
                say(*save(draw(), target / name, endings))
            except NothingToDrawError as error:
                say(f"no {name}: {error}", err=True)


def _pictures(runs: Sequence[RunFolder]) -> Iterator[tuple[str, str, Callable[[], Figure]]]:
    names = [
        f"-{place}-{as_file_name(name)}" for place, name in enumerate(run_names(runs), start=1)
    ]
    for run, name in zip(runs, names if len(runs) > 1 else [""], strict=True):
        for kind, picture in OF_ONE.items():
            yield kind, f"{kind}{name}", partial(picture.draw, run)
    for kind in OF_ANY if len(runs) == 1 else OF_SEVERAL:
        yield kind.partition("-")[0], kind, partial(OF_SEVERAL[kind].draw, runs)


def _chosen(option: str, text: str, allowed: Sequence[str]) -> list[str]:
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if word not in allowed:
            raise PictureError(
                f"{option} is {text!r}; allowed are {', '.join(allowed)}{nearest(word, allowed)}"
            )
    return words


if __name__ == "__main__":
    main(prog_name="python -m analysis")
