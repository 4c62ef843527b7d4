"""Parsing of the field ``data`` of a run's records, which is JSON text."""

from typing import Any, TypeAlias

from fedsim.common.files import parse_json

RecordData: TypeAlias = dict[str, Any]
"""Dict from name to value: a record, its parsed ``data``, a row of a table, or a summary."""


def parse_data(text: object) -> RecordData:
    """Parse ``data``, the JSON text of a record; an empty dict if the record has none."""
    return parse_json(text) if isinstance(text, str) else {}
