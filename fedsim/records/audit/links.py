"""Can the network have carried it?

The folder tells when each message began and ended, not how its rate went. What can be checked is what must hold in any case:
over any stretch of time, the messages that lie wholly within it brought no more bytes than each link can carry meanwhile.
"""

from collections.abc import Iterator
from typing import Any

from fedsim.records.reading import RunFolder
from fedsim.simulation import TICK_S
from fedsim.units import BytesPerSecond

_SLACK_S = 4 * TICK_S  # messages end on the clock's grid: two ticks at each end


def within_capacity(run: RunFolder) -> Iterator[str]:
    """Each device's own link, and the server's link each way; what stays at the server's side takes neither."""
    links = {row["device"]: row for row in run.devices}
    messages = [(number, row) for number, row in enumerate(run.transfers) if row["device"] is not None]
    for number, row in messages:
        device = links[row["device"]]
        rate = device[f"link_{row['direction']}"]
        moving = row["end"] - row["start"] - (device["latency"] if row["delivered"] else 0.0)
        if row["delivered"] > rate * (moving + _SLACK_S) * (1 + 1e-9):
            yield f"transfer {number} brought {row['delivered']:.0f} bytes in {moving:.6g} s over a link of {rate:g} B/s"
    for direction, rate in _server_rates(run.scenario).items():
        yield from _server_problems([row for _, row in messages if row["direction"] == direction], direction, rate)


def _server_rates(scenario: dict[str, Any]) -> dict[str, float]:
    from pydantic import TypeAdapter

    rate = TypeAdapter(BytesPerSecond)
    server = scenario["network"].get("server")
    if not isinstance(server, dict):
        return {}  # a network from a file: its links are not in the run folder
    return {direction: rate.validate_python(text) for direction, text in server.items()}


def _server_problems(transfers: list[dict[str, Any]], direction: str, rate: float) -> Iterator[str]:
    """Look at stretches from the begin of one message to the end of another, at all lengths up to the whole run."""
    by_end = sorted(transfers, key=lambda row: (row["end"], row["start"]))
    length = 1
    while length <= len(by_end):
        for first in range(0, len(by_end) - length + 1, max(1, length // 2)):
            part = by_end[first : first + length]
            begin, end = min(row["start"] for row in part), part[-1]["end"]
            carried = sum(row["delivered"] for row in part)
            if carried > rate * (end - begin + _SLACK_S) * (1 + 1e-9):
                stretch = f"from {begin:.6g} s to {end:.6g} s"
                yield f"the server's {direction} link of {rate:g} B/s carried {carried:.0f} bytes {stretch}"
                return
        length *= 2
