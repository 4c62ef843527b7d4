"""What windows and queues cost beside the fluid model: CPU time of the network alone, in pairs.

    python -m tests.benchmarks.window_cost             # 12 and 100 clients
    python -m tests.benchmarks.window_cost 1000        # other counts

Three rounds with messages of 500 kB both ways, own links of 20 and 10 Mbit/s, and a fifth of their
sum at the server. ``digest`` is a hash of the times of all flows, to the bit: a change that only saves
time keeps it.
"""

import asyncio
import gc
import hashlib
import sys
import time
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import Floats
from fedsim.common.streams import Streams
from fedsim.world.network import Flow, Star, ends
from fedsim.world.network.protocol import Protocol, Tcp, Transport
from fedsim.world.network.queues.sharing import Queueing

_MBIT_S = 125_000.0
_ROUNDS = 3
_BYTES = 500_000.0
_SHARE = 1 / 5
_PAIRS = 3  # of up to 100 clients; one of more
PROTOCOLS = (Tcp(), Tcp(model="window"), Tcp(model="window", pacing=True))


@dataclass
class Cost:
    """What a run took.

    Attributes:
        cpu_s: CPU time (s).
        steps: planned steps of the window model.
        cuts: those of them that the begin or end of a flow cut short.
        digest: hash of the times of all flows.
    """

    cpu_s: float
    steps: int
    cuts: int
    digest: str


def latencies(clients: int, case: str) -> Floats:
    """Return the one-way latency of each client (s), float64 [clients]."""
    if case == "20 ms":
        return np.full(clients, 0.02)
    return np.linspace(0.004, 0.08, clients)


def play(protocol: Protocol, clients: int, case: str) -> Cost:
    """Simulate the rounds with a protocol."""
    down = np.full(clients, 20 * _MBIT_S)
    up = np.full(clients, 10 * _MBIT_S)
    simulation = Simulation()
    network = Star(
        simulation,
        down,
        up,
        latencies(clients, case),
        float(_SHARE * down.sum()),
        float(_SHARE * up.sum()),
        Transport(protocol, Streams(1)),
    )
    flows: list[Flow] = []
    left = [clients]

    def begin_round() -> None:
        left[0] = clients
        for client in range(clients):
            flows.append(network.send(*ends(client, "down"), _BYTES, partial(send_up, client)))

    def send_up(client: int) -> None:
        flows.append(network.send(*ends(client, "up"), _BYTES, note_answer))

    def note_answer() -> None:
        left[0] -= 1
        if left[0] == 0 and len(flows) < 2 * clients * _ROUNDS:
            begin_round()

    gc.collect()
    simulation.wake(("begin", 0), 0.0, begin_round)
    began = time.process_time()
    asyncio.run(simulation.run())
    cpu_s = time.process_time() - began
    times = np.array([[flow.started, flow.ended] for flow in flows])
    digest = hashlib.sha256(times.tobytes()).hexdigest()[:12]
    rule = network._rules[0]
    if isinstance(rule, Queueing):
        return Cost(cpu_s, rule.steps, rule.cuts, digest)
    return Cost(cpu_s, 0, 0, digest)


def main() -> None:
    """Print a line for each count of clients of the command line, and each case."""
    counts = [int(word) for word in sys.argv[1:]] or [12, 100]
    for clients in counts:
        for case in ("20 ms", "4 to 80 ms"):
            repeats = _PAIRS if clients <= 100 else 1
            pairs = [[play(one, clients, case) for one in PROTOCOLS] for _ in range(repeats)]
            fluid_s = min(pair[0].cpu_s for pair in pairs)
            for number, name in ((1, "window"), (2, "paced")):
                window = pairs[0][number]
                window_s = min(pair[number].cpu_s for pair in pairs)
                print(
                    f"{clients:5} {case:<11} {name:<7} {window.steps:6} steps  {window.cuts:5} cuts  fluid {fluid_s:.3f} s  "
                    f"window {window_s:.3f} s  {window_s / fluid_s:5.1f} times  {window.digest}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
