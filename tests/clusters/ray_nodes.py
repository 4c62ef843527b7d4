"""Two Ray nodes on one machine that share no folder, by hand and as root (Linux).

Each node is a group of processes with a network, ``/tmp``, ``/dev/shm`` and work folder of its own
(namespaces of the kernel), so that a file of one node does not exist for the other; only the installed
software is the same. A pair of virtual network devices connects the nodes and counts their bytes.

``python -m tests.clusters.ray_nodes loss`` runs a study of 16 runs over both nodes, kills all processes
of the second node while it carries out runs, and compares the study's folder with the folder that one
process writes. ``python -m tests.clusters.ray_nodes memory`` sends samples of 1 GB to both nodes with
four workers each, by a study and by a single run (``--verb run`` for the single run alone), and prints
the memory and the network bytes of each node. Before it, the environment may set
``RAY_object_manager_pull_timeout_ms=10000``, Ray's default, with which an object that travels for more
than 10 s is sent twice. ``gpus`` shows on which declared GPUs tasks are placed, and where tasks are
repeated when the second node is killed.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.lab.study.test_ray import content

WORK = Path("/var/tmp/fedsim-nodes")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 6379
PYTHON = [sys.executable, "-m"]
FEDSIM = [*PYTHON, "fedsim"]
RAY = [str(Path(sys.executable).with_name("ray"))]
REPOSITORY = Path(__file__).parents[2]
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex()}
PULL_TIMEOUT = "RAY_object_manager_pull_timeout_ms"
"""Environment variable of Ray: the time after which a node asks for an object again (ms)."""
# Ray 2.60 ends a node whose agents take longer than 15 s to choose a port
FIXED_PORTS = [
    "--metrics-export-port=8090",
    "--dashboard-agent-grpc-port=8091",
    "--dashboard-agent-listen-port=8092",
    "--runtime-env-agent-port=8093",
]
PATIENCE_S = 900.0
SMALL_ROWS = 4000  # samples of the comparison in which data are few
TASK_S = 5.0  # duration of a task that is placed
BEGUN = "begun"  # name of the file that appears when the second node is to be killed
HOLD = f"""
mount -t tmpfs tmpfs /tmp && mount -t tmpfs -o size=6g tmpfs /dev/shm &&
mount -t tmpfs tmpfs {WORK} && exec sleep infinity
"""

STUDY = """
name = "two nodes"
baseline = "fedavg"
seeds = [1, 2, 3, 4, 5, 6, 7, 8]

[base]
stop = { rounds = 40 }
checkpoint = { rounds = 4 }
evaluation = { every = 5 }

[base.data]
source = { kind = "npz", path = "samples.npz" }
partition = { kind = "dirichlet", alpha = 1.0 }

[base.population]
devices = 20
speed = { file = "speeds.csv", column = "speed" }

[base.strategy]
kind = "fedavg"
clients_per_round = 8
local_epochs = 20

[base.model]
kind = "mlp"
hidden = [200]

[variants.fedavg]

[variants.fedprox.strategy]
kind = "fedprox"
mu = 0.1
"""


class Node:
    """Node of the cluster: a network namespace, and a process that holds its mounts."""

    def __init__(self, number: int) -> None:
        self.name = f"raynode{number}"
        self.address = ADDRESSES[number]
        self.link = f"rn{number}"
        sh("ip", "netns", "add", self.name)
        sh("ip", "link", "set", self.link, "netns", self.name)
        for words in (
            f"addr add {self.address}/24 dev {self.link}",
            f"link set {self.link} up",
            "link set lo up",
        ):
            sh("ip", "-n", self.name, *words.split())
        command = ["ip", "netns", "exec", self.name, "unshare", "-m", "--propagation", "private"]
        self.holder = subprocess.Popen([*command, "sh", "-c", HOLD])
        wait_until(lambda: b"sleep" in Path(f"/proc/{self.holder.pid}/cmdline").read_bytes())
        self.root = Path(f"/proc/{self.holder.pid}/root")
        self.work = self.root / WORK.relative_to("/")

    def start(self, *command: str, **options: object) -> "subprocess.Popen[str]":
        enter = ["nsenter", "-t", str(self.holder.pid), "-m", "-n"]
        inside = [*enter, "sh", "-c", f'cd {WORK} && exec "$0" "$@"']
        environment = {PULL_TIMEOUT: "120000", **os.environ, **TOKEN}
        environment |= {"PYTHONPATH": str(REPOSITORY), "RAY_DEDUP_LOGS": "0"}
        return subprocess.Popen([*inside, *command], env=environment, text=True, **options)  # type: ignore[call-overload,no-any-return]

    def call(self, *command: str) -> str:
        process = self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{output}")
        return output

    def processes(self) -> list[int]:
        words = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True
        )
        return [int(word) for word in words.stdout.split() if int(word) != self.holder.pid]

    def kill(self) -> None:
        """Kill all processes of this node at once, as if it had lost its power."""
        for process in self.processes():
            os.kill(process, signal.SIGKILL)

    def received(self) -> int:
        """Bytes that have come to this node."""
        text = self.call("cat", "/proc/net/dev")
        line = next(line for line in text.splitlines() if self.link in line)
        return int(line.split(":")[1].split()[0])

    def memory(self) -> Counter[str]:
        """Memory (bytes) of this node's processes, each shared page once: anonymous, and shared."""
        sums: Counter[str] = Counter()
        for process in self.processes():
            try:
                text = Path(f"/proc/{process}/smaps_rollup").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            for line in text.splitlines():
                name, *words = line.split()
                if name in ("Pss_Anon:", "Pss_Shmem:"):
                    sums[name.strip(":")] += 1024 * int(words[0])
        return sums

    def close(self) -> None:
        self.kill()
        self.holder.kill()
        self.holder.wait()
        sh("ip", "netns", "del", self.name)


def sh(*command: str) -> None:
    subprocess.run(command, check=True)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("this takes too long")
        time.sleep(0.2)


@contextmanager
def two_nodes(workers: int, *options: str) -> Iterator[tuple[Node, Node]]:
    WORK.mkdir(exist_ok=True)
    sh("ip", "link", "add", "rn0", "type", "veth", "peer", "name", "rn1")
    with ExitStack() as stack:
        nodes = []
        for number in range(2):
            nodes.append(Node(number))
            stack.callback(nodes[-1].close)
        first, second = nodes
        common = [
            f"--num-cpus={workers}",
            "--disable-usage-stats",
            "--object-store-memory=3000000000",
            *FIXED_PORTS,
        ]
        head = ["--head", f"--port={PORT}", "--include-dashboard=false"]
        for node, words in ((first, head), (second, [f"--address={ADDRESSES[0]}:{PORT}"])):
            node.call(*RAY, "start", f"--node-ip-address={node.address}", *words, *common, *options)
        yield first, second


def make_samples(rows: int, features: int) -> str:
    return (
        "import numpy as np; r = np.random.default_rng(1); "
        f"y = np.arange({rows}) % 10; x = r.normal(size=({rows}, {features})).astype(np.float32); "
        "x[:, :10] += 3 * np.eye(10, dtype=np.float32)[y]; np.savez('samples.npz', x=x, y=y)"
    )


def prepare(node: Node, rows: int, features: int) -> None:
    """Write the study and its data into the work folder of a node."""
    node.call(sys.executable, "-c", make_samples(rows, features))
    speeds = "\n".join(f"{50 + 10 * device} samples/s" for device in range(20))
    (node.work / "speeds.csv").write_text(f"speed\n{speeds}\n")
    (node.work / "study.toml").write_text(STUDY)


LIGHT = (
    "stop.rounds=2",
    "strategy.local_epochs=1",
    "strategy.clients_per_round=4",
    "training.batch_size=500",
    "evaluation.every=2",
)
"""Changes of the study by which runs with much data end soon."""


def ray_options() -> list[str]:
    return ["--executor", "ray", "--address", f"{ADDRESSES[0]}:{PORT}"]


def loss() -> None:
    with two_nodes(2) as (first, second):
        prepare(first, SMALL_ROWS, 64)
        study = first.start(*FEDSIM, "study", "study.toml", "--out", "far", *ray_options())
        runs = first.work / "far/runs"
        wait_until(lambda: count_saved_runs(runs) >= 3 or study.poll() is not None)
        print("node 2 sees:", [path.name for path in second.work.iterdir()], flush=True)
        parts = {str(path.relative_to(runs)) for path in saved(runs)}
        print(f"killing node 2; parts of {len(parts)} checkpoints have come", flush=True)
        second.kill()
        if study.wait(PATIENCE_S):
            raise SystemExit("the study has failed")
        first.call(*FEDSIM, "study", "study.toml", "--out", "near", "--workers", "1")
        far = content(first.work / "far")
        near = content(first.work / "near")
        differing = [
            name for name in sorted(far.keys() | near.keys()) if far.get(name) != near.get(name)
        ]
        print(f"{len(near)} files, {len(differing)} differ: {differing}")
        for run in sorted((first.work / "far/runs").glob("*/*/summary.json")):
            summary = json.loads(run.read_text())
            print(
                run.parts[-3],
                run.parts[-2],
                summary["events_sha256"][:16],
                summary["models_sha256"][:16],
            )
        if differing:
            raise SystemExit(1)


def count_saved_runs(runs: Path) -> int:
    return len({path.parent.parent for path in saved(runs)})


def saved(runs: Path) -> list[Path]:
    return sorted(runs.glob("*/seed-*/checkpoint/*/manifest.json"))


def memory(rows: int, verb: str) -> None:
    light = [word for change in LIGHT for word in ("--set", change)]
    with two_nodes(4) as (first, second):
        for size in (SMALL_ROWS, rows):
            prepare(first, size, 1000)
            print(f"samples of {size * 4000 / 1e9:.3f} GB")
            # the study with few samples also writes the scenario of the single run
            if verb != "run" or size == SMALL_ROWS:
                watched(first, second, "study", "study.toml", *light, "--seeds", "4")
            if verb != "study":
                watched(first, second, "run", "scenario.toml")


def watched(first: Node, second: Node, verb: str, file: str, *more: str) -> None:
    if verb == "run":
        run = next((first.work / "out-study").glob("runs/fedavg/seed-1/scenario.toml"))
        shutil.copy(run, first.work / file)
    out = first.work / f"out-{verb}"
    shutil.rmtree(out, ignore_errors=True)
    before = [node.received() for node in (first, second)]
    process = first.start(*FEDSIM, verb, file, "--out", out.name, *ray_options(), *more)
    most: list[Counter[str]] = [Counter(), Counter()]
    while process.poll() is None:
        for number, node in enumerate((first, second)):
            most[number] = max(most[number], node.memory(), key=Counter.total)
        time.sleep(1.0)
    if process.returncode:
        raise SystemExit(f"fedsim {verb} has failed")
    for number, node in enumerate((first, second)):
        sums = ", ".join(
            f"{name} {size / 1e9:.2f} GB" for name, size in sorted(most[number].items())
        )
        sent = node.received() - before[number]
        print(f"  {verb}: node {number + 1}: {sums}; received {sent / 1e9:.3f} GB", flush=True)


def gpus() -> None:
    with two_nodes(4, "--num-gpus=2") as (first, second):
        process = first.start(sys.executable, "-m", "tests.clusters.ray_nodes", "placed")
        begun = first.work / BEGUN
        wait_until(lambda: begun.exists() or process.poll() is not None)
        second.kill()
        if process.wait(PATIENCE_S):
            raise SystemExit("the tasks have failed")


def placed() -> None:
    """Print which tasks, of a quarter of a GPU each, ran on which GPU of which node.

    While the second set of tasks runs, the second node is killed.
    """
    from fedsim.clock.executors import make_executor

    resources = '{"num_cpus": 0.5, "num_gpus": 0.25, "memory": "50 MB"}'
    executor = make_executor("ray", address=f"{ADDRESSES[0]}:{PORT}", resources=resources)
    print("places:", executor.workers)
    for is_last in (False, True):
        calls = [executor.submit(_place_of_task) for _ in range(executor.workers)]
        if is_last:
            time.sleep(TASK_S / 2)
            print("killing node 2", flush=True)
            Path(BEGUN).touch()
        for place, count in sorted(Counter(call.result() for call in calls).items()):
            print(place, count, "tasks", flush=True)
    executor.close()


def _place_of_task() -> tuple[str, str, str]:
    import ray

    time.sleep(TASK_S)
    address = ray.util.get_node_ip_address()
    return address, str(ray.get_gpu_ids()), os.environ["CUDA_VISIBLE_DEVICES"]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the nodes are taken away
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("loss", "memory", "gpus", "placed"))
    parser.add_argument("--rows", type=int, default=250_000, help="samples of 4 kB each")
    parser.add_argument("--verb", choices=("study", "run", "both"), default="both")
    given = parser.parse_args()
    if given.what == "memory":
        memory(given.rows, given.verb)
    else:
        {"loss": loss, "gpus": gpus, "placed": placed}[given.what]()
