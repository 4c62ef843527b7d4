"""Studies in Python and notebooks, with tables as pandas frames, figures and runs."""

from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.common.errors import RunFolderError, nearest
from fedsim.common.files import require_regular
from fedsim.common.round_words import counted
from fedsim.lab.compare.columns import ComparedTable
from fedsim.lab.compare.lines import Lines, read_lines
from fedsim.lab.compare.show import plain_columns
from fedsim.lab.compare.table import Comparison
from fedsim.lab.loading import LoadedRun, find_drawing, load_run
from fedsim.lab.reading.study_folder import TRIALS, read_index
from fedsim.records.notebook import as_html

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def load_study(path: str | Path, *, allow_code: bool = False) -> "LoadedStudy":
    """Load the folder of a study, to read its tables and runs.

    Of an unfinished study, only the runs that have finished are loaded.

    Args:
        path: the study's folder.
        allow_code: whether the scenarios of its runs may import code that they name by import path.

    Raises:
        RunFolderError: the folder has no index of a study, or a damaged one.
    """
    return LoadedStudy(path, allow_code)


class LoadedStudy:
    """Folder of a study, finished or not, with its results as tables, runs and pictures.

    Attributes:
        path: the study's folder.
        index: the variants at each point of the grid, and their runs.
    """

    def __init__(self, path: str | Path, allow_code: bool = False) -> None:
        self.path = Path(path)
        self._allow_code = allow_code
        self.index = read_index(self.path)

    @cached_property
    def table(self) -> "pd.DataFrame":
        """DataFrame with one row per variant: means of costs and accuracies over the seeds.

        Each mean has its confidence interval.
        """
        return _to_frame(self._comparison.side_by_side())

    @cached_property
    def runs(self) -> "pd.DataFrame":
        """DataFrame with one row per run: variant and grid values, seed, costs, accuracies."""
        return _to_frame(self._comparison.one_by_one())

    @cached_property
    def paired(self) -> "pd.DataFrame":
        """DataFrame of each variant's differences to the baseline, seed by seed.

        It has one row per variant and measure (such as time or accuracy), with mean and interval.
        """
        return _to_frame(self._comparison.paired(self.index.seeds))

    @cached_property
    def trials(self) -> "pd.DataFrame":
        """DataFrame with one row per trial of the study's search: the tried values, and the result.

        The best trial of each variant comes first.
        """
        import pandas as pd

        try:
            return pd.read_csv(require_regular(self.path / TRIALS))
        except FileNotFoundError:
            raise RunFolderError(
                f"the study {str(self.path)!r} holds no {TRIALS}: nothing was searched, or not yet"
            ) from None
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"{TRIALS} of {str(self.path)!r} cannot be read: {error}"
            ) from None

    def run(self, variant: str, seed: int | None = None) -> LoadedRun:
        """Load one run of the study.

        Args:
            variant: label of the variant, such as ``fedavg`` or ``fedprox, share=0.3``.
            seed: seed of the run; by default the first seed of the study.

        Raises:
            RunFolderError: the study has no such variant or seed, or the run is missing.
        """
        seeds = self.index.seeds
        name = f"the study {str(self.path)!r}"
        if variant not in self.variants:
            allowed = f"allowed are {', '.join(self.variants)}{nearest(variant, self.variants)}"
            raise RunFolderError(f"{name} has no variant {variant!r}; {allowed}")
        if seed is None:
            seed = seeds[0]
        runs = self.index.variants[self.variants.index(variant)].runs
        folders = {run.seed: run.folder for run in runs}
        if seed not in folders:
            raise RunFolderError(f"{name} has no seed {seed}; allowed are {list(seeds)}")
        return load_run(self.path / folders[seed], allow_code=self._allow_code)

    @property
    def variants(self) -> list[str]:
        """Labels of the variants at all points of the grid, such as ``fedprox, share=0.3``."""
        return [variant.label for variant in self.index.variants]

    def figure(self, kind: str = "costs", **options: Any) -> "Figure":
        """Draw a picture of all finished runs side by side.

        Args:
            kind: ``costs``, ``accuracy``, ``fairness``, ``energy`` or ``traffic-purposes``.
            options: options of the picture, see ``fedsim.analysis``.

        Raises:
            FedsimError: there is no picture of this kind.
        """
        from fedsim.analysis.pictures import OF_SEVERAL

        runs = list(chain.from_iterable(line.runs for line in self._lines.lines))
        return find_drawing(OF_SEVERAL, kind)(runs, **options)

    def __repr__(self) -> str:
        return (
            f"<fedsim study {str(self.path)!r}: {counted(len(self.variants), 'variant')}, "
            f"{counted(self._run_count, 'run')}>"
        )

    def _repr_html_(self) -> str:
        done_count = sum(len(line.runs) for line in self._lines.lines)
        entries = {
            "study": self.index.name,
            "variants": ", ".join(self.variants),
            "runs that are done": f"{done_count} of {self._run_count}",
            "seeds": ", ".join(map(str, self.index.seeds)),
        }
        return as_html(f"study {self.path.name}", entries)

    @property
    def _run_count(self) -> int:
        return sum(len(variant.runs) for variant in self.index.variants)

    @cached_property
    def _lines(self) -> Lines:
        return read_lines([self.path])

    @cached_property
    def _comparison(self) -> Comparison:
        return Comparison(self._lines)


def _to_frame(table: ComparedTable) -> "pd.DataFrame":
    """Convert a table of a comparison to a DataFrame; a column without any value becomes NaN."""
    import pandas as pd

    frame = pd.DataFrame({column.head: list(column.cells) for column in plain_columns(table)})
    empty = [head for head in frame if frame[head].isna().all()]
    return frame.astype(dict.fromkeys(empty, float))
