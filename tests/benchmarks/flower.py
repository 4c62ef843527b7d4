"""What a Flower app costs in simulated time, beside a plain loop over the same app.

    python -m tests.benchmarks.flower             # in Flower's environment; two minutes on an idle core
    python -m tests.benchmarks.flower --pairs 9   # where others work on the machine

Run and loop (``tests.flower.runs``) take turns in this process. Times are those of the processor,
of all threads; of every pair the difference and the ratio are taken, and of all pairs the median. A
message is one of the ServerApp's, with its reply; half of them are to train, half to test. What it
costs is the difference between many rounds and few, so what a run costs once is not in it. The loop
hands messages over as they are, without the copy that the tests have it make.

Exit status 1 if a message costs 1 ms more than in the loop at 10 kB, 60 ms more at 40 MB, or a
run of the app that trains a network of torch's takes more than 1.15 times the loop's.
"""

import gc
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from tests.benchmarks.script import parser

# bytes, few and many rounds, the limit (s)
_MESSAGES = ((10_000, 5, 30, 0.001), (40_000_000, 1, 3, 0.060))
_RATIO = 1.15
_DEVICES = 4


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
    """What a message of so many bytes costs in a run and in the loop (s): the medians over
    pairs.
    """
    found = []
    for _ in range(pairs):
        less, more = (
            both("numpy_app", _DEVICES, {"size": size // 4, "num-server-rounds": rounds})
            for rounds in (few, many)
        )
        found.append(
            [(b - a) / (2 * _DEVICES * (many - few)) for a, b in zip(less, more, strict=True)]
        )
    return median(run for run, _ in found), median(loop for _, loop in found)


def main() -> int:
    """Print what messages and a run cost; 1 if one of them is too dear."""
    from tests.flower import runs

    pairs = parser(__doc__, pairs=5).parse_args().pairs
    runs.deepcopy = lambda message: message  # type: ignore[assignment, attr-defined]
    both("numpy_app", _DEVICES, {})
    bad = False
    for size, few, many, limit in _MESSAGES:
        run, loop = message(size, few, many, pairs)
        bad |= run - loop > limit
        print(
            f"a message of {size:>10,} bytes: {run * 1e3:7.2f} ms, in the loop "
            f"{loop * 1e3:7.2f} ms",
            flush=True,
        )
    config = {"local-epochs": 20}
    both("torch_app", 6, config, loss="eval_loss")
    ratio = median(
        run / loop
        for run, loop in (both("torch_app", 6, config, loss="eval_loss") for _ in range(pairs))
    )
    print(f"a run of the app in torch: {ratio:.3f} times the loop")
    return int(bad or ratio > _RATIO)


if __name__ == "__main__":
    sys.exit(main())
