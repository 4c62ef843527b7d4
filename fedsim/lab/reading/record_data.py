"""Fields of records as JSON has them."""

from typing import Any, TypeAlias

from fedsim.common.files import parse_json

RecordData: TypeAlias = dict[str, Any]
"""Fields of a record, or its parsed ``data``; also a row of a table, or a summary."""


def parse_data(text: object) -> RecordData:
    """Parse the ``data`` of a record; empty if the record has none."""
    return parse_json(text) if isinstance(text, str) else {}
