"""Distances between cities along the routes of submarine cables."""

import heapq
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_EARTH_KM = 6371.0


class City(NamedTuple):
    """City with its coordinates: the place of a cloud's region, or a hub of submarine cables.

    Attributes:
        name: name of the city.
        part: the part of the world, such as a continent, in which the city lies.
        latitude: degrees, north is positive.
        longitude: degrees, east is positive.
    """

    name: str
    part: str
    latitude: float
    longitude: float


def great_circle_km(source: City, target: City) -> float:
    """Return the great-circle distance between two cities (km), by the haversine formula."""
    source_lat = math.radians(source.latitude)
    target_lat = math.radians(target.latitude)
    across = math.sin(math.radians(target.longitude - source.longitude) / 2) ** 2
    cosines = math.cos(source_lat) * math.cos(target_lat)
    haversine = math.sin((target_lat - source_lat) / 2) ** 2 + cosines * across
    return 2 * _EARTH_KM * math.asin(math.sqrt(haversine))


class Cables:
    """Finder of routes between cities along submarine cables, for the estimate of round trips.

    A city lies in a part of the world, such as a continent. Cables connect some pairs of parts.

    Args:
        hubs: cities through which a route may lead, such as one at a strait.
        parts: pairs of parts of the world that cables connect directly. A direct route between two
            cities of these parts, or of the same part, is a great circle.
    """

    def __init__(self, hubs: Iterable[City], parts: Iterable[tuple[str, str]]) -> None:
        self._hubs = tuple(hubs)
        self._pairs = {frozenset(pair) for pair in parts}

    def way_km(self, source: City, target: City) -> float:
        """Return the length of the shortest route between two cities, direct or by hubs (km).

        The length is infinite if no cables connect the cities.
        """
        stops = (source, target, *self._hubs)
        source_index = 0
        target_index = 1
        # Dijkstra's algorithm over the stops
        lengths: dict[int, float] = {}  # index of a stop -> length of the shortest route to it
        queue = [(0.0, source_index)]  # length of a route, index of its end
        while queue:
            length, index = heapq.heappop(queue)
            if index in lengths:  # a shorter route to this stop was found before
                continue
            lengths[index] = length
            for other, stop in enumerate(stops):
                if other not in lengths and self._are_connected(stops[index], stop):
                    heapq.heappush(queue, (length + great_circle_km(stops[index], stop), other))
        return lengths.get(target_index, math.inf)

    def _are_connected(self, source: City, target: City) -> bool:
        return source.part == target.part or frozenset({source.part, target.part}) in self._pairs


def read_cities(table: Mapping[str, tuple[str, str, float, float]]) -> dict[str, City]:
    """Convert rows of a table to cities.

    Args:
        table: key -> name of the city, part of the world, latitude and longitude (degrees).

    Returns:
        The same keys -> cities.
    """
    return {name: City(*row) for name, row in table.items()}
