"""Error of a run in which no flow can send another byte."""

from collections.abc import Collection, Sequence

from fedsim.common.errors import SimulationError

PATIENCE_S = 365 * 86_400.0
"""Time (s) after which a standstill of all flows ends the run."""

_MOST_NAMED = 5


def standstill_error(
    routes: Sequence[str], rules: Collection[str], since: float, dead_links: Sequence[str] = ()
) -> SimulationError:
    """Make the error for a run in which no flow can ever send another byte; the caller raises it.

    Args:
        routes: sender and receiver of each flow, such as ``device 3 to server``.
        rules: class names of the sharing rules, which gave each flow the rate 0.
        since: time since which no byte has moved (s).
        dead_links: links whose traces have ended with rate 0.
    """
    names = _join(routes)
    if dead_links:
        return SimulationError(
            f"all {len(routes)} flows under way stand still since {since!r} s, and nothing "
            f"changed that within a year: {names}. Traces have ended with rate 0, which lasts: "
            f"{_join(dead_links)}. ends = 'loop' begins a trace anew; a deadline of the strategy "
            "or stop.simulated_time ends such a run"
        )
    return SimulationError(
        f"all {len(routes)} flows under way stand still since {since!r} s, and nothing "
        f"changed that within a year: {names}; the sharing rule {', '.join(sorted(rules))} gives "
        "them no bytes. Is a link's rate 0, or does an outage never end? A deadline of the "
        "strategy or stop.simulated_time ends such a run"
    )


def _join(texts: Sequence[str]) -> str:
    joined = ", ".join(texts[:_MOST_NAMED])
    if len(texts) > _MOST_NAMED:
        joined += f" and {len(texts) - _MOST_NAMED} more"
    return joined
