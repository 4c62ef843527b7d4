"""Predicts ring all-reduces on a shaped network: ``python
scenarios/outside/collectives/predict.py``.
"""

from itertools import product
from pathlib import Path
from statistics import median

import fedsim
from fedsim.running.scenarios.outside.rows import Prediction, given, show, write
from fedsim.toolbox.peers.collectives import AllReduce

HERE = Path(__file__).resolve().parent

MIB, GBIT = 2**20, 1e9 / 8
SHAPES = [(None, None), (1.0, 5.0), (5.0, 2.0), (10.0, 1.0)]  # ms, Gbit/s


def time_s(kind: str, nodes: int, size: float, delay_s: float, rate: float) -> float:
    """An all-reduce (or a send) of so many bytes among equal nodes that send at ``rate``
    (bytes/s).
    """
    device = {"up": f"{rate!r} B/s", "latency": f"{delay_s / 2!r} s"}
    world = fedsim.build_world({"devices": nodes}, {"kind": "star", "device": device})
    if kind == "send_recv":
        world.env.run(until=world.send(0, 1, size))
    else:
        ring = AllReduce(world, range(nodes), size, "ring")
        world.env.run(until=world.env.all_of([ring.join(node) for node in range(nodes)]))
    return world.now


class Rule:
    """The constants of the rule.

    Args:
        wire: bytes on the wire for a byte of payload.
        delays: delays that an all-reduce waits for, whatever its number of nodes.
        free: rate where none was set (bytes/s), by kind.
    """

    def __init__(
        self, wire: float = 1.0, delays: float = 0.0, free: dict[str, float] | None = None
    ) -> None:
        self.wire = wire
        self.delays = delays
        self.free = free or {"allreduce": 10 * GBIT, "send_recv": 10 * GBIT}

    def predict(self, row: dict[str, str]) -> Prediction:
        kind, nodes, size = row["op"], int(row["nodes"]), float(row["size_MiB"]) * MIB
        rate = float(row["bw_gbit_s"]) * GBIT / self.wire if row["bw_gbit_s"] else self.free[kind]
        delay_s = float(row["delay_ms"] or 0) / 1e3
        if kind == "allreduce":
            predicted = time_s(kind, nodes, size, 0.0, rate) + self.delays * delay_s
        else:
            predicted = time_s(kind, nodes, size, delay_s, rate)
        cell = (
            f"{kind} {nodes} nodes {row['size_MiB']} MiB {row['delay_ms'] or 0} ms "
            f"{row['bw_gbit_s'] or 'no'} Gbit/s"
        )
        measured = float(row["time_s"]) if row.get("time_s") else None
        return Prediction("time_s", cell, measured, predicted, measured is not None)


def fitted(rows: list[dict[str, str]]) -> Rule:
    """The rule, fitted to what the README says."""

    def of(op: str, *, rate: bool, delay: bool) -> list[dict[str, str]]:
        return [
            row
            for row in rows
            if row["op"] == op and bool(row["bw_gbit_s"]) == rate and bool(row["delay_ms"]) == delay
        ]

    def rate_of(row: dict[str, str]) -> float:
        nodes = int(row["nodes"])
        share = 2 * (nodes - 1) / nodes if row["op"] == "allreduce" else 1.0
        return share * float(row["size_MiB"]) * MIB / float(row["time_s"])

    wire = median(
        float(row["bw_gbit_s"]) * GBIT / rate_of(row)
        for row in of("send_recv", rate=True, delay=False)
    )
    free = {
        op: median(map(rate_of, of(op, rate=False, delay=False)))
        for op in ("allreduce", "send_recv")
    }
    without = Rule(wire, 0.0, free)
    above = below = 0.0
    for row in of("allreduce", rate=True, delay=True):
        measured = float(row["time_s"])
        delay_s = float(row["delay_ms"]) / 1e3
        above += delay_s * (measured - without.predict(row).predicted) / measured**2
        below += delay_s**2 / measured**2
    return Rule(wire, above / below, free)


def main() -> None:
    """Print both tables, and write the predictions."""
    rows = given(HERE)
    show("before anything is fitted", [Rule().predict(row) for row in rows])
    rule = fitted(rows)
    print(
        f"fitted: {rule.wire:.4f} bytes on the wire, {rule.delays:.2f} delays an all-reduce, "
        f"{rule.free['allreduce'] / GBIT:.2f} Gbit/s"
    )
    cells = product((8, 12, 16, 20, 24, 28, 32), (64, 128, 256, 512, 1024), SHAPES)
    asked = [
        {"op": "allreduce", "nodes": str(nodes), "size_MiB": str(size),
         "delay_ms": f"{delay:g}" if delay else "", "bw_gbit_s": f"{rate:g}" if rate else ""}
        for nodes, size, (delay, rate) in cells
    ]  # fmt: skip
    predictions = [rule.predict(row) for row in rows + asked]
    show("after", predictions)
    write(HERE / "predicted.csv", predictions)


if __name__ == "__main__":
    main()
