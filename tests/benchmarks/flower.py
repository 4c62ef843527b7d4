"""What a Flower app costs in simulated time, beside a plain loop over the same app, or beside Flower's own simulation.

    python -m tests.benchmarks.flower             # in Flower's environment; two minutes on an idle core
    python -m tests.benchmarks.flower --pairs 9   # where others work on the machine
    python -m tests.benchmarks.flower --simulation OTHER/bin/python

Run and loop (``tests.flower.runs``) take turns in this process. Times are those of the processor, of all threads; of every
pair the difference and the ratio are taken, and of all pairs the median. A message is one of the ServerApp's, with its reply;
half of them are to train, half to test. What it costs is the difference between many rounds and few, so what a run costs once
is not in it. The loop hands messages over as they are, without the copy that the tests have it make.

Exit status 1 if a message costs 1 ms more than in the loop at 10 kB, 60 ms more at 40 MB, or a run of the app that trains a
network of torch's takes more than 1.15 times the loop's.

Flower's simulation pins an older Ray than fedsim's extra ``ray``, so it has an environment of its own, OTHER, with
``flwr[simulation]`` and torch. Wall times are those of whole processes. Flower does not seed its clients, so only the mean of
its accuracy over seeds can be compared, not a run.
"""

import gc
import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from tests.benchmarks.script import parser

_MESSAGES = ((10_000, 5, 30, 0.001), (40_000_000, 1, 3, 0.060))  # bytes, few and many rounds, the limit (s)
_RATIO = 1.15
_DEVICES = 4
_APP = Path(__file__).parents[1] / "flower" / "apps" / "torch_app"
_SIDES = ("fedsim", "Flower")
_ROUNDS = (2, 12)  # of the two runs whose difference is what a round takes


def cost_s(function: Callable[[], Any]) -> float:
    """Processor time of a call (s)."""
    gc.collect()
    begin = time.process_time()
    function()
    return time.process_time() - begin


def both(app: str, devices: int, config: dict[str, Any], **names: str) -> tuple[float, float]:
    """Processor time of a run and of the loop (s)."""
    from tests.flower.runs import execute, run_plain, scenario

    sections = scenario(app, devices, run_config=config, **names)
    return cost_s(lambda: execute(sections)), cost_s(lambda: run_plain(app, devices, **config))


def message(size: int, few: int, many: int, pairs: int) -> tuple[float, float]:
    """What a message of so many bytes costs in a run and in the loop (s): the medians over pairs."""
    found = []
    for _ in range(pairs):
        less, more = (both("numpy_app", _DEVICES, {"size": size // 4, "num-server-rounds": rounds}) for rounds in (few, many))
        found.append([(b - a) / (2 * _DEVICES * (many - few)) for a, b in zip(less, more, strict=True)])
    return median(run for run, _ in found), median(loop for _, loop in found)


def here(seed: int, devices: int, rounds: int) -> float:
    """Accuracy after a run of fedsim."""
    from tests.flower.runs import execute, scenario

    found = execute(scenario("torch_app", devices, run_config={"num-server-rounds": rounds}) | {"seed": seed})
    return float(found.summary["accuracy"]["final"])


def there(seed: int, devices: int, rounds: int) -> float:
    """Accuracy after a run of Flower's simulation, with one actor a core."""
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


def timed(python: str, *words: object) -> tuple[float, float]:
    """Wall time (s) and accuracy of one run, in a process of its own."""
    begin = time.monotonic()
    command = [python, "-m", __spec__.name, "--side", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    return time.monotonic() - begin, json.loads(done.stdout.splitlines()[-1])


def beside_simulation(python: str, seeds: int, devices: int) -> None:
    """Both sides in turns, seed by seed; prints a table."""
    few, many = _ROUNDS
    found: dict[str, list[tuple[float, float, float]]] = {side: [] for side in _SIDES}
    for seed in range(1, seeds + 1):
        for side, own in zip(_SIDES, (sys.executable, python), strict=True):
            less, _ = timed(own, side, seed, devices, few)
            more, accuracy = timed(own, side, seed, devices, many)
            found[side].append((more, (more - less) / (many - few), accuracy))
            print(f"{side:8} seed {seed}: {more:6.2f} s, accuracy {accuracy:.3f}", flush=True)
    for side, rows in found.items():
        whole, a_round, accuracies = zip(*rows, strict=True)
        spread = stdev(accuracies) if len(accuracies) > 1 else 0.0
        took = f"{mean(whole):6.2f} s, a round {mean(a_round):.3f} s"
        print(f"{side:8} {devices} devices, {many} rounds: {took}, accuracy {mean(accuracies):.3f} +- {spread:.3f}")


def beside_loop(pairs: int) -> bool:
    """Print what messages and a run cost; whether one of them is too dear."""
    from tests.flower import runs

    runs.deepcopy = lambda message: message  # type: ignore[assignment, attr-defined]
    both("numpy_app", _DEVICES, {})
    bad = False
    for size, few, many, limit in _MESSAGES:
        run, loop = message(size, few, many, pairs)
        bad |= run - loop > limit
        print(f"a message of {size:>10,} bytes: {run * 1e3:7.2f} ms, in the loop {loop * 1e3:7.2f} ms", flush=True)
    config = {"local-epochs": 20}
    both("torch_app", 6, config, loss="eval_loss")
    ratio = median(run / loop for run, loop in (both("torch_app", 6, config, loss="eval_loss") for _ in range(pairs)))
    print(f"a run of the app in torch: {ratio:.3f} times the loop")
    return bad or ratio > _RATIO


def main() -> int:
    """Measure and print."""
    arguments = parser(__doc__, pairs=5, seeds=5, devices=20)
    arguments.add_argument("--simulation", metavar="PYTHON")
    arguments.add_argument("--side", help="one run in this process, of the numbers: seed, devices, rounds")
    arguments.add_argument("numbers", type=int, nargs="*")
    asked = arguments.parse_args()
    if asked.side:
        print(json.dumps((here if asked.side == "fedsim" else there)(*asked.numbers)))
    elif asked.simulation:
        beside_simulation(asked.simulation, asked.seeds, asked.devices)
    else:
        return int(beside_loop(asked.pairs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
