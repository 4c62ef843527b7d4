"""Each column, field of a record, entry and key of a folder is checked, or declared as unchecked
in one place.
"""

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fedsim.federation.codecs import CODECS
from fedsim.federation.malicious import ATTACKS
from fedsim.lab.audit.declared import PARTS, UNCHECKED, is_unchecked
from fedsim.strategies import STRATEGIES
from fedsim.strategies.parts.aggregation import AGGREGATIONS
from fedsim.strategies.parts.deadline import DEADLINES
from fedsim.strategies.parts.selection import SELECTIONS
from fedsim.strategies.parts.server_optimizer import OPTIMIZERS
from fedsim.testing import run
from fedsim.world.processes.base import PROCESSES
from tests.records.column_runs import RUNS
from tests.records.columns import Cached, finder, tried

_GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "run-folder.md"


_ONE_OF = 24
"""So many forgeries one of which the short test tries."""


def missed(of: str, folder: Path, every: int = 1) -> list[str]:
    """What is forged without a check that fires, and without being declared, in one of ``every``
    forgeries of a run.
    """
    run(RUNS[of], folder)
    honest = Cached(folder)
    assert finder(honest, of) is None
    number = count()
    told = tried(honest, skip=lambda name: is_unchecked(name) or next(number) % every > 0)
    return [name for name, found in told if found is None]


def test_some_columns_are_checked_or_declared(tmp_path: Path) -> None:
    assert missed("versions", tmp_path / "run", _ONE_OF) == []


@pytest.mark.long
@pytest.mark.parametrize("of", RUNS)
def test_what_no_check_covers_is_declared(of: str, tmp_path: Path) -> None:
    assert missed(of, tmp_path / of) == []


def test_the_guide_has_the_list() -> None:
    rows = [f"| `{name}` | {reason} |" for name, reason in UNCHECKED.items()]
    text = _GUIDE.read_text(encoding="utf-8")
    assert [row for row in rows if row not in text] == []
    assert sum(line.startswith("| `") for line in text.splitlines()) == len(rows)


_FAMILIES = (
    STRATEGIES,
    AGGREGATIONS,
    CODECS,
    PROCESSES,
    DEADLINES,
    SELECTIONS,
    OPTIMIZERS,
    ATTACKS,
)


@pytest.mark.parametrize("family", _FAMILIES, ids=lambda family: family.called)
def test_a_new_part_says_what_the_audit_checks_of_it(family: Any) -> None:
    declared = sorted(kind for kinds in PARTS[family.called].values() for kind in kinds)
    assert declared == sorted(family.known)
