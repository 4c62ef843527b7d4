"""A Flower app here and in Flower's own simulation: wall time and accuracy over seeds.

    python -m tests.benchmarks.flower_simulation --simulation OTHER/bin/python   # from Flower's environment

Flower's simulation pins an older Ray than fedsim's extra ``ray``, so it has an environment of its own, OTHER, with
``flwr[simulation]`` and torch; both run this file. The app is ``tests/flower/apps/torch_app``. Wall times are those of whole
processes; a round's is what many rounds take more than few. Flower does not seed its clients, so only the mean of its accuracy
over seeds can be compared, not a run.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from tests.benchmarks.script import parser

_APP = Path(__file__).parents[1] / "flower" / "apps" / "torch_app"
_SIDES = ("fedsim", "Flower")
_ROUNDS = (2, 12)  # of the two runs whose difference is what a round takes


def here(seed: int, devices: int, rounds: int) -> float:
    """Accuracy after a run of fedsim."""
    from tests.flower.runs import execute, scenario

    found = execute(scenario("torch_app", devices, run_config={"num-server-rounds": rounds}) | {"seed": seed})
    return float(found.summary["accuracy"]["final"])


def there(seed: int, devices: int, rounds: int) -> float:
    """Accuracy after a run of Flower's simulation, with one actor a core."""
    import tomllib

    import torch
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    sys.path.insert(0, str(_APP))
    from torch_app import client_app, server_app  # type: ignore[import-not-found]

    settings = tomllib.loads((_APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings["num-server-rounds"] = rounds
    accuracies = []
    measured = server_app.central

    def central(server_round: int, arrays: Any) -> Any:
        accuracies.append((found := measured(server_round, arrays))["accuracy"])
        return found

    server_app.central = central

    def configured(context: Context) -> Context:
        return Context(context.run_id, context.node_id, context.node_config, context.state, dict(settings))

    class Client(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            return client_app.app(message, configured(context))  # type: ignore[no-any-return]

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        torch.manual_seed(seed)
        server_app.main(grid, configured(context))

    run_simulation(server, Client(), num_supernodes=devices, backend_config={"client_resources": {"num_cpus": 1}})
    return float(accuracies[-1])


def timed(python: str, side: str, seed: int, devices: int, rounds: int) -> tuple[float, float]:
    """Wall time (s) and accuracy of one run, in a process of its own."""
    command = [python, "-m", __spec__.name, "--side", side, *map(str, (seed, devices, rounds))]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    return time.monotonic() - begin, json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Both sides in turns, seed by seed; prints a table."""
    arguments = parser(__doc__, seeds=5, devices=20)
    arguments.add_argument("--simulation", default=sys.executable, metavar="PYTHON")
    arguments.add_argument("--side", help="one run in this process, of the numbers: seed, devices, rounds")
    arguments.add_argument("numbers", type=int, nargs="*")
    asked = arguments.parse_args()
    if asked.side:
        print(json.dumps((here if asked.side == "fedsim" else there)(*asked.numbers)))
        return
    few, many = _ROUNDS
    found: dict[str, list[tuple[float, float, float]]] = {side: [] for side in _SIDES}
    for seed in range(1, asked.seeds + 1):
        for side, python in zip(_SIDES, (sys.executable, asked.simulation), strict=True):
            less, _ = timed(python, side, seed, asked.devices, few)
            more, accuracy = timed(python, side, seed, asked.devices, many)
            found[side].append((more, (more - less) / (many - few), accuracy))
            print(f"{side:8} seed {seed}: {more:6.2f} s, accuracy {accuracy:.3f}", flush=True)
    for side, rows in found.items():
        whole, a_round, accuracies = zip(*rows, strict=True)
        spread = stdev(accuracies) if len(accuracies) > 1 else 0.0
        print(
            f"{side:8} {asked.devices} devices, {many} rounds: {mean(whole):6.2f} s, a round {mean(a_round):.3f} s,"
            f" accuracy {mean(accuracies):.3f} +- {spread:.3f}"
        )


if __name__ == "__main__":
    main()
