import json
import math
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsim.analysis.membership import draw_membership, draw_split_tree, read_splits
from fedsim.errors import RunFolderError
from fedsim.language.units import show_seconds
from fedsim.records.history import History
from fedsim.records.reading import RunFolder

Split = tuple[int, int, tuple[int, int], tuple[list[int], list[int]]]  # round, parent, children, members

SPLITS: list[Split] = [
    (1, 0, (1, 2), (list(range(12)), list(range(12, 20)))),
    (4, 2, (3, 4), ([12, 13, 14], list(range(15, 20)))),
    (4, 1, (5, 6), ([0], list(range(1, 12)))),
]
FINAL = [5] + [6] * 11 + [3] * 3 + [4] * 5


def with_splits(run: RunFolder, folder: Path, splits: list[Split]) -> RunFolder:
    """A copy of a run in which clusters are split just before the ends of rounds, in the records of CFL."""
    shutil.copytree(run.path, folder)
    table = pq.read_table(folder / "events.parquet")
    empty: dict[str, Any] = dict.fromkeys(table.column_names)
    moved = {"kind": "assign", "data": json.dumps({"before": None, "why": "start"})}
    rows = [empty | moved | {"time": 0.0, "device": device, "group": 0} for device in range(20)]
    for row in table.to_pylist():
        for number, parent, children, members in splits if row["kind"] == "round" else []:
            if row["round"] == number:
                data = {"children": children, "members": members, "mean_norm": 0.01 * (1 + parent), "max_norm": 0.5}
                what = {"time": row["time"], "group": parent, "round": number, "data": json.dumps(data)}
                rows.append(empty | what | {"kind": "cluster-split"})
                for child, part in zip(children, members, strict=True):
                    why = json.dumps({"before": parent, "why": "split"})
                    rows += [
                        empty | what | {"kind": "assign", "group": child, "device": device, "data": why} for device in part
                    ]
        rows.append(row)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / "events.parquet")
    devices = pq.read_table(folder / "devices.parquet")
    final = [row | {"group": group} for row, group in zip(devices.to_pylist(), FINAL, strict=True)]
    pq.write_table(pa.Table.from_pylist(final, schema=devices.schema), folder / "devices.parquet")
    return RunFolder(folder)


@pytest.fixture
def divided(run: RunFolder, tmp_path: Path) -> RunFolder:
    return with_splits(run, tmp_path / "divided", SPLITS)


def test_the_tree_of_the_splits(divided: RunFolder) -> None:
    (root,) = read_splits(History(divided))
    ends = {row["round"]: row["time"] for row in divided.rounds}
    assert (root.group, root.born, root.members, root.split_round) == (0, 0, 20, 2)
    assert root.told.startswith(f"round 1 ({show_seconds(ends[1])}), mean norm 0.01")
    assert [(node.group, node.born, node.members, node.split_round) for node in root.below()] == [
        (0, 0, 20, 2),
        (1, 2, 12, 5),
        (5, 5, 1, None),
        (6, 5, 11, None),
        (2, 2, 8, 5),
        (3, 5, 3, None),
        (4, 5, 5, None),
    ]
    beside = [text.get_text() for text in draw_split_tree(divided).axes[0].texts if text.get_gid() == "leaf"]
    for group, text in zip((5, 6, 3, 4), beside, strict=True):
        accuracies = [row["accuracy"] for row, own in zip(divided.devices, FINAL, strict=True) if own == group]
        known = [value for value in accuracies if value is not None and math.isfinite(value)]
        assert known
        assert text.startswith(f"group {group}: {len(accuracies)} device")
        assert text.endswith(f"accuracy {sum(known) / len(known):.3f}")


def test_lines_last_as_long_as_their_clusters(divided: RunFolder) -> None:
    figure = draw_split_tree(divided)
    panel, below = figure.axes
    lines = {line.get_gid(): line for line in panel.lines if str(line.get_gid()).startswith("cluster-")}
    spans = {name: tuple(int(x) for x in line.get_xdata()) for name, line in lines.items()}
    assert spans == {f"cluster-{group}": (0, 2) for group in (0,)} | {
        f"cluster-{group}": span for group, span in {1: (2, 5), 2: (2, 5), 3: (5, 8), 4: (5, 8), 5: (5, 8), 6: (5, 8)}.items()
    }
    leaves = {f"cluster-{group}": lines[f"cluster-{group}"].get_ydata()[0] for group in (5, 6, 3, 4)}
    assert list(leaves.values()) == [0, 1, 2, 3]
    widths = {name: line.get_linewidth() for name, line in lines.items()}
    assert widths["cluster-5"] < widths["cluster-3"] < widths["cluster-1"] < widths["cluster-0"]
    told = [text.get_text() for text in figure.legends[0].get_texts()][:3]
    assert [text.partition(" (")[0] for text in told] == ["1: round 1", "2: round 4", "3: round 4"]
    assert ", mean norm 0.03, largest " in told[2]
    dots = [line for line in panel.lines if line.get_gid() == "split"]
    assert [text.get_text() for text in panel.texts if text.get_text().isdigit()] == ["1", "2", "3"]
    assert len(dots) == 3
    assert len(below.lines[0].get_xdata()) == sum(row["accuracy"] is not None for row in divided.rounds)


def test_splits_are_seen_in_the_membership_too(divided: RunFolder) -> None:
    rows, strip = draw_membership(divided).axes[:2]
    (lines,) = [item for item in rows.collections if item.get_gid() == "splits"]
    ends = {row["round"]: row["time"] for row in divided.rounds}
    assert [path.vertices[0, 0] for path in lines.get_paths()] == pytest.approx([ends[1], ends[4]])
    (moved,) = [item for item in strip.collections if item.get_gid() == "moved"]
    heights = [path.vertices[:, 1].max() for path in moved.get_paths()]
    assert heights[:6] == [0, 20, 0, 0, 20, 0]


def test_a_cluster_that_is_split_twice_is_damage(run: RunFolder, tmp_path: Path) -> None:
    damaged = with_splits(run, tmp_path / "damaged", [*SPLITS, (6, 1, (7, 8), ([0], [1]))])
    with pytest.raises(RunFolderError, match="group 1 is split twice"):
        draw_split_tree(damaged)
