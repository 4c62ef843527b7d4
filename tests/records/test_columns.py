"""Each column, field of a record, entry and key of a folder is checked, or declared as unchecked in one place."""

from pathlib import Path
from typing import Any

import pytest

from fedsim.audit.declared import PARTS, UNCHECKED, is_unchecked
from fedsim.federation.codecs import CODECS
from fedsim.federation.malicious import ATTACKS
from fedsim.strategies import STRATEGIES
from fedsim.strategies.parts.aggregation import AGGREGATIONS
from fedsim.strategies.parts.deadline import DEADLINES
from fedsim.strategies.parts.selection import SELECTIONS
from fedsim.strategies.parts.server import OPTIMISERS
from fedsim.testing import run
from fedsim.world.processes.base import PROCESSES
from tests.records.column_runs import RUNS
from tests.records.columns import Cached, finder, tried

_GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "run-folder.md"


@pytest.mark.parametrize("of", [pytest.param(of, marks=[] if of == "versions" else pytest.mark.long) for of in RUNS])
def test_what_no_check_covers_is_declared(of: str, tmp_path: Path) -> None:
    run(RUNS[of], tmp_path / of)
    folder = Cached(tmp_path / of)
    assert finder(folder, of) is None
    missed = [name for name, found in tried(folder, skip=is_unchecked) if found is None]
    assert missed == []


def test_the_guide_has_the_list() -> None:
    rows = [f"| `{name}` | {reason} |" for name, reason in UNCHECKED.items()]
    text = _GUIDE.read_text(encoding="utf-8")
    assert [row for row in rows if row not in text] == []
    assert sum(line.startswith("| `") for line in text.splitlines()) == len(rows)


_FAMILIES = (STRATEGIES, AGGREGATIONS, CODECS, PROCESSES, DEADLINES, SELECTIONS, OPTIMISERS, ATTACKS)


@pytest.mark.parametrize("family", _FAMILIES, ids=lambda family: family.called)
def test_a_new_part_says_what_the_audit_checks_of_it(family: Any) -> None:
    declared = sorted(kind for kinds in PARTS[family.called].values() for kind in kinds)
    assert declared == sorted(family.known)
