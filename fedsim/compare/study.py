"""The tables of a study, written beside its runs."""

import html
from pathlib import Path

from fedsim.compare.lines import read_lines
from fedsim.compare.table import Comparison
from fedsim.compare.text import to_csv, to_markdown
from fedsim.output.harmless import for_markdown
from fedsim.records.folder import write_text
from fedsim.records.study_folder import PUBLISHED, read_index

COMPARE, MARKDOWN, PAIRED, RUNS, REPORT = "compare.csv", "compare.md", "paired.csv", "runs.csv", "published.md"


def write_tables(path: Path) -> None:
    """Write ``compare.csv``, ``compare.md``, ``paired.csv`` and ``runs.csv`` of the study at ``path``, and ``published.md``.

    They depend on its runs alone, never on when or in which order these were made.

    Raises:
        RunFolderError: the study's index or a run is damaged.
    """
    study = read_index(path)
    lines = read_lines([path])
    comparison = Comparison(lines)
    together = comparison.side_by_side(), comparison.differences()
    write_text(path / COMPARE, to_csv(together[0]))
    write_text(path / RUNS, to_csv(comparison.one_by_one()))
    write_text(path / PAIRED, to_csv(comparison.paired(study.seeds)))
    write_text(path / MARKDOWN, "\n".join(to_markdown(*pair) for pair in zip(together, (study.name, ""), strict=True)))
    if (path / PUBLISHED).is_file():
        from fedsim.compare.published import LEGEND, as_printed, beside_published, read_published

        published = read_published(path / PUBLISHED)
        parts = (
            f"# {for_markdown(study.name)}\n",
            f"{html.escape(published.about.strip(), quote=False)}\n",
            f"{LEGEND}\n",
            *map(to_markdown, as_printed(beside_published(lines.lines, published))),
        )
        write_text(path / REPORT, "\n".join(parts))
