"""One word for one thing: the glossary, and what it says of the columns."""

import re
from pathlib import Path

from fedsim.records import schema

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
NEVER = re.compile(
    r"instrument|\bcompany\b|manieth|slips? of the pen|\bin vain\b|thrown[ -]away|offline(?![\"-])", re.IGNORECASE
)
"""Words that have another in the glossary, or that nobody needs. W&B has a mode "offline", and folders offline-run-*."""


def test_every_column_of_every_table_has_a_line_and_no_other_has() -> None:
    told = re.findall(r"^\| (events|transfers|rounds|devices|availability|energy) \| (.*?) \|", GLOSSARY, re.MULTILINE)
    columns = [(table, column) for table, names in told for column in re.findall(r"`(\w+)`", names)]
    tables = {"events": schema.EVENTS, "transfers": schema.TRANSFERS, "rounds": schema.ROUNDS, "devices": schema.DEVICES}
    tables |= {"availability": schema.AVAILABILITY, "energy": schema.OF_METERS["energy.parquet"]}
    assert sorted(columns) == sorted((table, name) for table, made in tables.items() for name in made.names)


def test_words_that_have_a_better_one_are_not_used() -> None:
    paths = [path for folder in ("fedsim", "analysis") for kind in ("*.py", "*.js") for path in (ROOT / folder).rglob(kind)]
    assert len(paths) > 150
    for path in [*paths, ROOT / "README.md"]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = NEVER.search(line)
            assert not found, f"{path.relative_to(ROOT)}:{number}: {found[0] if found else ''}"
