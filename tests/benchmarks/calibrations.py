"""What ``fedsim calibrate`` finds of known worlds: 20 logs with windows and queues, and one real log.

    python -m tests.benchmarks.calibrations              # all, two to three minutes on one core
    python -m tests.benchmarks.calibrations short8       # those whose names contain a word

Each world has eight clients at a time, of eight, and nine rounds. Its run folder is calibrated, and
the fitted world is used with 4 and 16 clients; so is the true world, whose rounds count. A line of
Markdown has the links that were found down and up beside the true ones (Mbit/s, own / server's / an
edge's), and for 4, 8 and 16 clients the time of a round (s): the fitted world's, its error, the true
one, and the interval of the outlook, marked if the true time is out of it.
"""

import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from fedsim.lab.calibrate import calibrate
from fedsim.lab.calibrate.log import LogDefaults
from fedsim.testing import run

REAL = Path(__file__).resolve().parents[3] / "shared" / "oracles" / "realrun"
WINDOW = {"kind": "tcp", "model": "window"}
BBR = {"kind": "bbr"}
SHORT8 = {
    "device": {"down": "20 Mbit/s", "up": "10 Mbit/s", "latency": "10 ms"},
    "server": {"down": "48 Mbit/s", "up": "16 Mbit/s"},
}
COUNTS = (4, 8, 16)
TOLERANCE = 0.01  # of an interval's ends
_CLIENTS = 8
Table = dict[str, Any]


def spread(median: str) -> Table:
    """Own links that differ by a factor of 1.5."""
    return {"kind": "lognormal", "median": median, "spread": 1.5}


def worlds() -> Iterator[tuple[str, Table]]:
    """Names and networks of the worlds."""
    fast = {"down": "40 Mbit/s", "up": "20 Mbit/s"}
    for latency in ("5 ms", "20 ms"):
        device = {**fast, "latency": latency}
        own = {"down": spread("12 Mbit/s"), "up": spread("4 Mbit/s"), "latency": latency}
        name = latency.replace(" ", "")
        star: Table = {"kind": "star", "protocol": WINDOW}
        yield f"own {name}", {**star, "device": own}
        yield f"own, alike {name}", {**star, "device": {**device, "up": "4 Mbit/s"}}
        yield f"shared up {name}", {**star, "device": device, "server": {"up": "16 Mbit/s"}}
        yield f"shared down {name}", {**star, "device": device, "server": {"down": "30 Mbit/s"}}
        both = {"down": "60 Mbit/s", "up": "14 Mbit/s"}
        yield f"both {name}", {**star, "device": own, "server": both}
        yield f"slow server {name}", {**star, "device": device, "server": {"down": "8 Mbit/s", "up": "8 Mbit/s"}}  # fmt: skip
        tree = {"kind": "tree", "cells": 2, "protocol": WINDOW, "device": device}
        yield f"edges {name}", {**tree, "cell": {"down": "20 Mbit/s", "up": "8 Mbit/s"}}
        yield f"edges and server {name}", {**tree, "cell": {"up": "10 Mbit/s"}, "server": {"up": "12 Mbit/s"}}  # fmt: skip
        up = {**star, "device": device, "server": {"up": "16 Mbit/s"}}
        yield f"BBR, shared up {name}", {**up, "protocol": BBR}
        yield f"TCP's shares, shared up {name}", {**up, "protocol": "tcp"}


def scenario(network: Table, clients: int, seed: int = 3) -> Table:
    """Rounds of ``clients`` clients, without learning, with 0.8 MB each way."""
    sizes = {"kind": "uniform", "low": 100, "high": 100}
    model = {"kind": "plain", "size": "0.8 MB"}
    return {
        "seed": seed,
        "learning": "off",
        "model": {"kind": "logistic"},
        "data": {"source": "digits"},
        "messages": {"down": model, "up": model},
        "population": {"devices": clients, "speed": "166.667 samples/s", "samples": sizes},
        "network": network,
        "strategy": {"kind": "fedavg", "clients_per_round": clients, "local_epochs": 1},
        "stop": {"rounds": 9},
    }


def mean_round_s(sections: Table) -> float:
    """The mean time of the rounds of a scenario (s)."""
    return float(run(sections)["simulated_s"]) / sections["stop"]["rounds"]


def links_of(network: Table, way: str) -> str:
    """Own rate and the server's, in Mbit/s."""
    own = network.get("device", {}).get(way, "inf")
    if isinstance(own, dict):
        own = f"{own.get('median', '?')}*"
    rates = [own, network.get("server", {}).get(way, "inf"), network.get("cell", {}).get(way, "")]
    return "/".join(str(rate).replace(" Mbit/s", "").replace(" B/s", "") for rate in rates if rate)


def trial(name: str, network: Table, folder: Path) -> None:
    """Calibrate a world's log, and print what was found."""
    if name == "short8 (real)":
        log = REAL / "short8-cubic.csv"
    else:
        log = folder / "run"
        run(scenario(network, _CLIENTS), log)
    with redirect_stdout(StringIO()):
        lines = calibrate(log, folder / "out", LogDefaults(), by_client=False, protocol="fluid")
    text = (folder / "out" / "scenario.toml").read_text(encoding="utf-8")
    fitted = tomllib.loads(text)["network"]
    outlooks = dict(outlook_of(line) for line in lines if line.startswith("outlook"))
    cells = []
    for count in COUNTS:
        true_s = mean_round_s(scenario(network, count))
        found_s = mean_round_s(scenario(fitted, count))
        cell = f"{found_s:.2f} ({found_s / true_s - 1:+.1%}), true {true_s:.2f}"
        if count in outlooks:
            low, high = outlooks[count]
            cell += f", {low:.2f} to {high:.2f}"
            if not low * (1 - TOLERANCE) <= true_s <= high * (1 + TOLERANCE):
                cell += " **out**"
        cells.append(cell)
    links = [f"{links_of(where, 'down')}, {links_of(where, 'up')}" for where in (network, fitted)]
    print(f"| {' | '.join([name, *links, *cells])} |", flush=True)


def outlook_of(line: str) -> tuple[int, tuple[float, float]]:
    """The count of clients of a line of the outlook, and the least and greatest time (s)."""
    match = re.match(
        r"outlook +with (\d+) .* takes ([\d.]+) s(?:.* take ([\d.]+) to ([\d.]+) s)?", line
    )
    assert match is not None, line
    return int(match[1]), (float(match[3] or match[2]), float(match[4] or match[2]))


def main() -> None:
    """Try all worlds whose names contain a word of the command line."""
    words = sys.argv[1:]
    cases = [*worlds()]
    if REAL.is_dir():
        cases.append(("short8 (real)", {"kind": "star", "protocol": WINDOW, **SHORT8}))
    print(f"| world | true | found |{''.join(f' {count} clients |' for count in COUNTS)}")
    print(f"|---|---|---|{'---|' * len(COUNTS)}", flush=True)
    for name, network in cases:
        if not words or any(word in name for word in words):
            with tempfile.TemporaryDirectory() as folder:
                trial(name, network, Path(folder))


if __name__ == "__main__":
    main()
