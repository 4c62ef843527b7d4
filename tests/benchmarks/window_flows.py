"""Every strategy on links with congestion windows and queues: are runs that are stopped in the
middle of flows and resumed the runs that were never stopped, and sound?

    python -m tests.benchmarks.window_flows                # every strategy with every control
    python -m tests.benchmarks.window_flows fedavg gossip  # these strategies alone

Worlds have batteries that run dry, devices that disconnect, and by turns a star, edge servers, links
that follow a trace, and short shared queues. Each run is compared with one that is stopped twice, to
the bit, and audited. A combination is ``kept``, ``refused`` by name before the run, or ``broken``.
Exit status 1 if any is broken.
"""

import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from fedsim.common.errors import FedsimError
from fedsim.testing import (
    assert_same_run,
    assert_sound,
    eventful_world,
    go_on,
    run,
    run_until,
)
from tests.records.test_energy import BATTERY, CHARGED, PHONE
from tests.test_runs import STRATEGIES

Table = dict[str, Any]
_CONTROLS = ("cubic", "reno", "bbr")
_WORLDS = ("star", "tree", "trace", "short queues")
_LEAST_RECORDS = 20
_MOST_RECORDS = 200


def network_of(world: str, control: str, given: Table, folder: Path) -> Table:
    """Return the network of a world, on top of the strategy's own.

    Args:
        world: one of ``_WORLDS``.
        control: congestion control.
        given: network of ``eventful_world``.
        folder: folder for a file of a trace.
    """
    protocol: Table = {"kind": "tcp", "model": "window", "control": control}
    network = given | {"protocol": protocol}
    device: Table = {"down": "4 Mbit/s", "up": "1 Mbit/s", "latency": "30 ms"}
    if world == "tree":
        return {"kind": "tree", "cells": 2, "protocol": protocol, "device": device}
    if world == "trace":
        path = folder / "up.csv"
        path.write_text("time,rate\n0,1\n5,0.2\n9,2\n20,0.5\n", encoding="utf-8")
        trace = {"kind": "trace", "file": str(path), "time": "s", "rate": "Mbit/s"}
        return {"kind": "star", "protocol": protocol, "device": device | {"up": trace}}
    if world == "short queues":
        protocol |= {"queue": {"size": "6 kB"}, "pacing": control != "bbr"}
        server = {"down": "4 Mbit/s", "up": "1 Mbit/s"}
        return {"kind": "star", "protocol": protocol, "device": device, "server": server}
    return network


def compare(strategy: Table, world: str, control: str, folder: Path, draw: random.Random) -> str:
    """Run a combination, once without a stop and once with two stops.

    Returns:
        ``kept``, or the reason why it is refused or broken.
    """
    sections: Table = dict(eventful_world(strategy, seed=draw.randrange(1000), rounds=4))
    given = sections["network"]
    sections["network"] = network_of(world, control, dict(given), folder)
    if strategy["kind"] in ("d-psgd", "gossip", "epidemic"):
        sections["network"] = dict(given) | {"protocol": sections["network"]["protocol"]}
    else:
        sections["energy"] = PHONE | {"battery": BATTERY | CHARGED}
    try:
        run(sections, folder / "whole")
    except FedsimError as refusal:
        return f"refused: {str(refusal).splitlines()[0]}"
    cut = folder / "cut"
    records = draw.randrange(_LEAST_RECORDS, _MOST_RECORDS)
    if run_until(sections, cut, records) == "interrupted":
        more = draw.randrange(_LEAST_RECORDS, _MOST_RECORDS)
        if run_until(sections, cut, more, resume=True) == "interrupted":
            go_on(sections, cut)
    try:
        assert_same_run(folder / "whole", cut)
        assert_sound(cut)
    except AssertionError as fault:
        return f"broken: {str(fault).splitlines()[0]}"
    return "kept"


def main() -> int:
    """Try all combinations of the strategies that the command line names, or of all."""
    words = sys.argv[1:]
    results: Counter[str] = Counter()
    number = 0
    for strategy in STRATEGIES:
        kind = strategy["kind"]
        if words and kind not in words:
            continue
        for control in _CONTROLS:
            world = _WORLDS[number % len(_WORLDS)]
            number += 1
            with tempfile.TemporaryDirectory() as folder:
                draw = random.Random(f"{kind}/{control}")
                result = compare(strategy, world, control, Path(folder), draw)
            results[result.split(":")[0]] += 1
            print(f"{kind:<16} {control:<6} {world:<13} {result}", flush=True)
    print(dict(results))
    return 1 if results["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
