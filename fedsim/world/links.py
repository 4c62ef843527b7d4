"""Kinds of links with published or estimated figures, to write scenarios with: ``links.toml`` has each with its source."""

from pathlib import Path
from typing import Any

from fedsim.errors import ScenarioError, nearest
from fedsim.files import read_toml
from fedsim.world.device_kinds import Figure


def links() -> dict[str, str]:
    """Name -> title of every kind of link."""
    return {name: entry["title"] for name, entry in _table().items()}


def figures_of_link(name: str) -> dict[str, Figure]:
    """The figures of a kind of link: ``down``, ``up``, ``latency``, their ``spread``, and an energy ``preset`` where one fits.

    Raises:
        ScenarioError: there is no such kind of link.
    """
    known = _table()
    if name not in known:
        raise ScenarioError(f"the link is {name!r}; allowed are {', '.join(known)}{nearest(name, known)}")
    return {key: Figure(*said) for key, said in known[name].items() if key != "title"}


def _table() -> dict[str, Any]:
    return read_toml(Path(__file__).with_suffix(".toml"))
