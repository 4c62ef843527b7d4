"""Predicts round trips and rates between regions: ``python
scenarios/outside/regions/predict.py``.
"""

from itertools import permutations
from pathlib import Path
from statistics import median

from fedsim.running.scenarios.outside.rows import Prediction, given, is_held_out, show, write
from fedsim.toolbox.worlds.cloud_facts import CloudFacts, Connection

HERE = Path(__file__).resolve().parent
MEASURED_S = 10.0
ROUND_TRIPS_MS = (
    2,
    5,
    10,
    15,
    20,
    30,
    40,
    50,
    75,
    100,
    125,
    150,
    175,
    200,
    225,
    250,
    275,
    300,
    350,
    400,
)


def named(region: str) -> str:
    """``aws:eu-west-1`` of ``AWS eu-west-1``."""
    cloud, name = region.split()
    return f"{cloud.lower()}:{name}"


def predictions(
    pair: tuple[str, str], ways: Connection, row: dict[str, str] | None
) -> list[Prediction]:
    """Round trip, and rate of one connection."""
    found = {"rtt_ms": 1e3 * ways.round_trip, "mbit_s": ways.rate * 8 / 1e6}
    cell = " -> ".join(pair)
    return [
        Prediction(what, cell, float(row[what]) if row else None, value, row is not None)
        for what, value in found.items()
    ]


def main() -> None:
    """Print the tables, and write the predictions."""
    facts = CloudFacts()
    rows = {(named(row["from"]), named(row["to"])): row for row in given(HERE)}
    before = []
    for pair, row in rows.items():
        round_trip = 2 * facts.great_circle_km(*pair) / 200e3
        before += predictions(pair, Connection(round_trip, 65_536 / round_trip), row)
    show("before anything is fitted", before)
    measured, left_out = dict(facts.measured), []
    for one, other in [pair for pair in rows if pair[0] < pair[1] or pair[::-1] not in rows]:
        facts.measured = {
            pair: known for pair, known in measured.items() if {*pair} != {one, other}
        }
        facts.fit()
        left_out += predictions((one, other), facts.connection(one, other), rows[one, other])
    show("each pair from the others", left_out)
    is_held = {pair: is_held_out(" ".join(sorted(pair))) for pair in measured}
    facts.measured = {pair: known for pair, known in measured.items() if not is_held[pair]}
    facts.fit()
    held_out = []
    for pair in rows:
        if is_held[pair]:
            held_out += predictions(pair, facts.estimate(*pair), rows[pair])
    for what in ("rtt_ms", "mbit_s"):
        show(f"the half held out, {what}", [row for row in held_out if row.what == what])
    facts.measured = measured
    facts.fit()
    ruled = [
        each for pair, row in rows.items() for each in predictions(pair, facts.estimate(*pair), row)
    ]
    show("after", ruled)
    for cloud, window in facts.rate_rules.items():
        lost = window.bytes * window.slow_start / MEASURED_S
        print(
            f"window into {cloud}: {window.bytes:.0f} B - {lost:.0f} B a second of round trip; "
            f"{window.fit.error}"
        )
    for within, rule in facts.round_trip_rules.items():
        where = "within aws" if within else "other round trips"
        print(
            f"{where}: {1e3 * rule.fixed:.2f} ms + {1e6 * rule.per_km:.2f} us a km; {rule.fit.error}"
        )
    for low, high in ((0, 50), (50, 100), (100, 200), (200, 400)):
        rates = []
        for prediction in ruled[1::2]:
            source, destination = prediction.cell.split(" -> ")
            if low <= float(rows[source, destination]["rtt_ms"]) < high:
                rates.append(prediction)
        medians = (
            median(prediction.measured or 0.0 for prediction in rates),
            median(prediction.predicted for prediction in rates),
        )
        print(f"  {low} to {high} ms: measured {medians[0]:.1f} Mbit/s, predicted {medians[1]:.1f}")
    measurable = [name for name in facts.sites if not name.startswith("azure:")]
    for pair in permutations(measurable, 2):
        if pair not in rows:
            ruled += predictions(pair, facts.estimate(*pair), None)
    for cloud, window in facts.rate_rules.items():
        for ms in ROUND_TRIPS_MS:
            cell = f"rate into {cloud} at a round trip of {ms} ms"
            ruled.append(Prediction("mbit_s", cell, None, window.rate(ms / 1e3) * 8 / 1e6, False))
    write(HERE / "predicted.csv", ruled)


if __name__ == "__main__":
    main()
