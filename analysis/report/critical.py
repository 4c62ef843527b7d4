"""The critical path of a run on its page: its simulated time by category, and the longest round and a usual one."""

from statistics import median

from fedsim.analysis.report.markup import Markup, el, join
from fedsim.analysis.report.tables import TableCell, grid, of_columns
from fedsim.lab.compare.critical_path import CriticalPaths, RoundPath, path_table, round_in_words, run_in_words
from fedsim.language.units import show_seconds
from fedsim.records.reading import RunFolder


def waiting(run: RunFolder) -> Markup | None:
    """The critical paths of a run in short, and those of its longest and a usual round; None without rounds, or time."""
    paths = CriticalPaths(run)
    if not paths.rounds or not paths.end:
        return None
    rows: list[list[str | TableCell]] = [
        [name, TableCell(show_seconds(seconds), seconds), TableCell(f"{seconds / paths.end:.1%}", seconds)]
        for name, seconds in paths.totals.items()
    ]
    usual = median(one.seconds for one in paths.rounds)
    longest = max(paths.rounds, key=lambda one: one.seconds)
    middle = min(paths.rounds, key=lambda one: abs(one.seconds - usual))
    chosen = dict.fromkeys((longest.number, middle.number))
    return join(
        el("h3", "Where the simulated time went"),
        el("p", " ".join(run_in_words(paths))),
        grid(["on the critical path", "took", "share"], rows, [True, False, False], "Its times sum to the run's."),
        *(_round(paths, paths.round(number), number == longest.number) for number in chosen),
    )


def _round(paths: CriticalPaths, one: RoundPath, is_longest: bool) -> Markup:
    columns = path_table(one).columns
    title = f"Round {one.number}, {'the longest' if is_longest else 'a usual one'}: what it waited for"
    table = of_columns(columns, range(len(columns[0].cells)))
    return el("details", el("summary", title), el("p", " ".join(round_in_words(paths, one.number))), table)
