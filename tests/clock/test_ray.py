"""Runs on Ray: the same to the bit as in one thread, whatever becomes of workers and nodes; and
parcels.
"""

import asyncio
import gc
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import chdir, closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tomli_w
from numpy.typing import NDArray
from torch import nn

import fedsim
from fedsim.clock.executors import Executor, Inline, make_executor
from fedsim.common.errors import ScenarioError
from fedsim.running.runner import Job
from fedsim.toolbox.ray import executor as ray_executor
from fedsim.toolbox.ray.executor import Ray
from fedsim.toolbox.ray.parcels import Opener, Packer, Parcel
from tests.calls import call
from tests.children import GENEROUS_S
from tests.clusters.two_nodes import two_nodes

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="needs Ray: pip install 'ray>=2.52' 'cloudpickle>=3'"
)
# Ray 2.52 leaves its ended servers to the garbage collector
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <function Popen.__del__:pytest.PytestUnraisableExceptionWarning"
)
Sections = dict[str, Any]

RUNS: dict[str, Sections] = {
    "fedavg": {
        "model": {"kind": "mlp", "hidden": [130]},
        "drift": {"kind": "swap-all", "probability": 0.5, "at": {"every_rounds": 2}},
        "strategy": {
            "kind": "fedavg",
            "clients_per_round": 6,
            "local_epochs": 2,
            "deadline": "30 s",
        },
    },
    "ifca": {
        "data": {"source": "digits", "partition": "rotations"},
        "model": {"kind": "mlp", "hidden": [150]},
        "drift": {"kind": "swap-all", "probability": 0.5, "at": {"every_rounds": 2}},
        "training": {"lr": 0.1, "batch_size": 10, "l2": 0.001},
        "strategy": {"kind": "ifca", "groups": 3, "clients_per_round": 6, "local_epochs": 2},
    },
    "local": {
        "model": {"kind": "module", "factory": "tests.clock.test_ray:odd_module"},
        "drift": {"kind": "rotation", "probability": 0.5, "at": {"every_rounds": 2}},
        "strategy": {"kind": "local", "clients_per_round": 5},
    },
}


def odd_module() -> nn.Module:
    """A module that only a pickle by value can carry: its class and its activation have no
    importable names.
    """

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop, self.second = (
                nn.Conv2d(1, 4, 3),
                nn.Dropout(0.2),
                nn.Linear(144, 10),
            )
            self.activation = lambda x: x.relu()

        def forward(self, x: Any) -> Any:
            return self.second(self.drop(self.activation(self.first(x)).flatten(1)))

    return Odd()


def fingerprints(sections: Sections, executor: Executor) -> tuple[str, str]:
    summary = asyncio.run(Job(fedsim.Scenario(**sections), None, executor).execute()).summary
    assert summary["status"] == "done"
    return summary["events_sha256"], summary["models_sha256"]


class Preceded(Executor):
    """An executor on whose workers something happens before each call."""

    def __init__(self, inner: Executor, before: Callable[..., None], *given: Any) -> None:
        self.workers = inner.workers
        self._inner, self._before = inner, (before, given)

    def place(self, thing: Any) -> None:
        self._inner.place(thing)

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        return self._inner.submit(_preceded, self._before, function, *args)

    def close(self) -> None:
        self._inner.close()


def _preceded(
    before: tuple[Callable[..., None], tuple[Any, ...]], function: Callable[..., Any], *args: Any
) -> Any:
    first, given = before
    first(*given)
    return function(*args)


def _count(folder: Path) -> int:
    """How many calls there have been, of all processes."""
    with (folder / "calls").open("a") as file:
        file.write("x")
        return file.tell()


def _lose_worker(folder: Path, turn: int) -> None:
    """Kill the worker of call number ``turn``."""
    if _count(folder) == turn:
        os.kill(os.getpid(), signal.SIGKILL)


def _lose_node(folder: Path, head: str, turn: int) -> None:
    """From call number ``turn`` on, kill the other node in its next call; the ``head`` gives it
    time to get one.
    """
    import ray

    if _count(folder) < turn or (folder / "killed").exists():
        return
    if ray.get_runtime_context().get_node_id() != head:
        (folder / "killed").touch()
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    deadline = time.monotonic() + 0.5
    while not (folder / "killed").exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def _search_path() -> list[str]:
    return sys.path


def _add(one: int, other: int) -> int:
    return one + other


def _fail() -> None:
    raise ZeroDivisionError("on purpose")


def _kill_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="class")
def start_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("start")


@pytest.fixture(scope="class")
def ray(start_folder: Path) -> Iterator[Ray]:
    """Ray on this machine. Executors made meanwhile use it too, and leave it alone."""
    with chdir(start_folder):
        executor = Ray(workers=2)
    yield executor
    executor.close()


@needs_ray
class TestOneMachine:
    @pytest.mark.parametrize("name", RUNS)
    def test_the_same_run_as_in_one_thread(self, ray: Ray, small: Sections, name: str) -> None:
        small |= RUNS[name] | {"stop": {"rounds": 5}}
        assert fingerprints(small, Ray()) == fingerprints(small, Inline())

    def test_a_run_that_loses_a_worker_is_the_same_run(
        self, ray: Ray, small: Sections, tmp_path: Path
    ) -> None:
        small |= RUNS["ifca"] | {"stop": {"rounds": 4}}
        reference = fingerprints(small, Preceded(Inline(), _lose_worker, tmp_path, 0))
        calls = (tmp_path / "calls").stat().st_size
        (tmp_path / "calls").unlink()
        assert fingerprints(small, Preceded(Ray(), _lose_worker, tmp_path, calls // 2)) == reference
        assert (tmp_path / "calls").stat().st_size > calls

    def test_values_and_failures_come_back_as_they_are(self, ray: Ray) -> None:
        assert [ray.submit(_add, number, 1).result() for number in range(3)] == [1, 2, 3]
        with pytest.raises(ZeroDivisionError, match="on purpose") as caught:
            ray.submit(_fail).result()
        assert "in _fail" in caught.value.__notes__[0]

    def test_a_call_that_always_loses_its_worker_is_given_up(
        self, ray: Ray, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ray_executor, "MOST_TRIES", 1)
        with pytest.raises(
            fedsim.SimulationError,
            match="could not be carried out on the Ray cluster: WorkerCrashedError",
        ):
            Ray().submit(_kill_worker).result(timeout=GENEROUS_S)
        assert ray.submit(_add, 1, 1).result() == 2

    def test_other_versions_are_refused(self, ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
        other = Ray()
        monkeypatch.setitem(other._versions, "torch", "1.0")
        with pytest.raises(
            fedsim.SimulationError,
            match=r"has torch \S+, and this run 1\.0: .*install the same on every node",
        ):
            other.submit(_add, 1, 1).result()

    def test_workers_do_not_search_the_working_directory(
        self, ray: Ray, start_folder: Path
    ) -> None:
        assert str(start_folder) not in ray.submit(_search_path).result()

    def test_closing_drops_what_waits_and_leaves_ray_to_its_owner(self, ray: Ray) -> None:
        other = Ray()
        waiting = [other.submit(signal.pause) for _ in range(5)]
        other.close()
        assert all(future.cancelled() for future in waiting)
        assert ray.submit(_add, 2, 2).result(timeout=GENEROUS_S) == 4

    def test_nothing_listens_beyond_the_loopback_interface(self, ray: Ray) -> None:
        ray.submit(_add, 0, 0).result()
        listening = {place for process in family(os.getpid()) for place in listens(process)}
        assert len(listening) > 3
        assert {place for place in listening if not place.startswith(LOOPBACK)} == set()

    def test_a_client_without_the_token_is_refused(self, ray: Ray, tmp_path: Path) -> None:
        import ray as library

        address = library.get_runtime_context().gcs_address
        join = (
            f"import ray; ray.init({address!r}, log_to_driver=False); "
            "print(ray.get(ray.remote(lambda: 7).remote()))"
        )
        known = os.environ | {"HOME": str(tmp_path)}
        unknown = {name: value for name, value in known.items() if not name.startswith("RAY_AUTH")}
        another = unknown | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
        for environment in (unknown, another):
            done = subprocess.run(
                [sys.executable, "-c", join],
                capture_output=True,
                text=True,
                env=environment,
                check=False,
            )
            assert (done.returncode, done.stdout) == (1, ""), done.stderr
            assert "AuthenticationError" in done.stderr
        done = subprocess.run(
            [sys.executable, "-c", join], capture_output=True, text=True, env=known, check=False
        )
        assert done.stdout == "7\n", done.stderr
        assert list(tmp_path.iterdir()) == []  # Ray's own token would lie in a file there


LOOPBACK = ("0100007F:", "0000000000000000FFFF00000100007F:", "00000000000000000000000001000000:")


def family(process: int) -> list[int]:
    """A process and all that come from it."""
    children = Path(f"/proc/{process}/task/{process}/children")
    try:
        found = [int(child) for child in children.read_text().split()]
    except FileNotFoundError:
        return []
    return [process, *(one for child in found for one in family(child))]


def listens(process: int) -> list[str]:
    """Where a process listens, in the notation of /proc/net."""
    sockets = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        try:
            sockets.add(str(descriptor.readlink()))
        except OSError:
            continue
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]


def _fails_where_it_is(home: str) -> None:
    import ray

    time.sleep(0.2)  # so that both nodes have some
    where = "at home" if ray.get_runtime_context().get_node_id() == home else "beside"
    raise ValueError(f"on purpose, {where}")


@needs_ray
def test_two_nodes_of_which_one_is_lost_in_mid_run(
    small: Sections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small |= RUNS["local"] | {"strategy": RUNS["fedavg"]["strategy"], "stop": {"rounds": 4}}
    reference = fingerprints(small, Inline())
    with two_nodes(monkeypatch, num_cpus=1) as cluster:
        executor = make_executor("ray", address=cluster.address)
        assert executor.workers == 2
        errors: set[str] = set()
        end = time.monotonic() + GENEROUS_S
        while len(errors) < 2 and time.monotonic() < end:  # a node's first process takes seconds
            calls = [executor.submit(_fails_where_it_is, executor._home) for _ in range(12)]
            errors |= {str(call.exception()) for call in calls}
        beside = errors - {"on purpose, at home"}
        assert 0 < len(beside) < len(errors)
        assert all(
            re.fullmatch(r"on purpose, beside \(on the node .+, .+, [0-9a-f]{8}\)", error)
            for error in beside
        )
        killing = Preceded(executor, _lose_node, tmp_path, cluster.head_node.node_id, 12)
        assert fingerprints(small, killing) == reference
        assert (tmp_path / "killed").exists()


def _place_of_task() -> tuple[str, int, list[str], str]:
    import ray

    time.sleep(0.5)  # so that all places are taken at once
    context = ray.get_runtime_context()
    gpus = [str(gpu) for gpu in ray.get_gpu_ids()]
    return context.get_node_id(), os.getpid(), gpus, os.environ["CUDA_VISIBLE_DEVICES"]


@needs_ray
def test_each_task_gets_a_part_of_a_declared_gpu_and_sees_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The nodes have no GPU: what is tried is what Ray makes of the resources."""
    with two_nodes(monkeypatch, num_cpus=2, num_gpus=2) as cluster:
        with pytest.raises(
            ScenarioError, match="asks for 3 GPU a task, but the node with the most"
        ):
            make_executor("ray", address=cluster.address, resources={"num_gpus": 3})
        resources = {"num_cpus": 0.5, "num_gpus": 0.5, "memory": "10 MB"}
        executor = make_executor("ray", address=cluster.address, resources=resources)
        assert executor.workers == 8
        calls = [executor.submit(_place_of_task) for _ in range(8)]
        places = [call.result(GENEROUS_S) for call in calls]
        assert all([visible] == gpus for _, _, gpus, visible in places)
        assert {gpu for _, _, gpus, _ in places for gpu in gpus} <= {"0", "1"}
        assert len({gpus[0] for _, _, gpus, _ in places}) == 2


class TestMistakes:
    """Each ends with 2 and one line, at once, and nothing is written."""

    def refused(self, small: Sections, folder: Path, *words: str) -> str:
        (folder / "scenario.toml").write_text(tomli_w.dumps(small))
        result = call("run", folder / "scenario.toml", "--out", folder / "out", *words)
        assert result.exit_code == 2, (result.output, result.exception)
        assert not (folder / "out").exists()
        (line,) = result.output.strip().splitlines()
        return line

    def test_ray_is_not_installed(
        self, small: Sections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        line = self.refused(small, tmp_path, "--executor", "ray")
        assert "pip install 'ray>=2.52' 'cloudpickle>=3'" in line

    def test_what_does_not_go_together(self, small: Sections, tmp_path: Path) -> None:
        place = ("--address", "127.0.0.1:1")
        assert "only 'ray' has an address" in self.refused(small, tmp_path, *place)
        assert "its own number" in self.refused(
            small, tmp_path, "--executor", "ray", *place, "--workers", "2"
        )
        small["training"] |= {"device": "cuda"}
        assert "whose tasks have no GPU" in self.refused(small, tmp_path, "--executor", "ray")

    @needs_ray
    def test_no_cluster_there(
        self, small: Sections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def answer(address: str) -> str:
            return self.refused(small, tmp_path, "--executor", "ray", "--address", address)

        for address in ("nonsense", "host:", ":6379", "ray://127.0.0.1:10001"):
            assert "must be 'auto' or HOST:PORT" in answer(address)
        for address in ("127.0.0.1:1", "127.0.0.1:99999", "no-such-host.invalid:6379"):
            assert "where no Ray cluster answers" in answer(address)
        for address in ("local", "ray://127.0.0.1:10001", "127.0.0.1:1"):
            monkeypatch.setenv("RAY_ADDRESS", address)
            assert f"RAY_ADDRESS is {address!r}" in answer("auto")
        monkeypatch.delenv("RAY_ADDRESS")
        assert "no Ray cluster could be joined" in answer("auto")


@needs_ray
def test_a_process_whose_own_node_is_lost_is_told_so() -> None:
    with closing(Ray(workers=1)) as executor:
        os.kill(executor.submit(os.getppid).result(GENEROUS_S), signal.SIGKILL)
        for begin in (executor.submit, executor.submit_once):
            with pytest.raises(
                fedsim.SimulationError, match="the Ray node of this process was lost"
            ):
                begin(_add, 1, 1).result(GENEROUS_S)


@needs_ray
def test_ray_that_was_started_for_a_run_ends_with_it_even_when_the_run_cannot_be_built(
    tmp_path: Path,
) -> None:
    code = (
        "import fedsim, ray\n"
        "try: fedsim.run(fedsim.Scenario(population={'devices': 3}), executor='ray', workers=1)\n"
        "except fedsim.FedsimError as error: print(type(error).__name__, ray.is_initialized())\n"
        "result = fedsim.run(fedsim.Scenario(stop={'rounds': 1}), executor='ray', workers=1)\n"
        "print(result.summary['rounds'], ray.is_initialized())"
    )
    environment = os.environ | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.splitlines() == ["ScenarioError False", "1 False"]


def test_an_older_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is called."""
    older = ModuleType("ray")
    older.__version__ = "2.51.2"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", older)
    with pytest.raises(
        ScenarioError,
        match=r"is 2\.51\.2; 2\.52 or later is needed",
    ):
        Ray()


class Store:
    """An object store: what is put into it is pickled, and comes out as a copy."""

    def __init__(self) -> None:
        self.content: list[bytes] = []

    def put(self, thing: Any) -> int:
        self.content.append(pickle.dumps(thing, protocol=5))
        return len(self.content) - 1

    def fetch(self, references: Sequence[int]) -> list[Any]:
        return [pickle.loads(self.content[reference]) for reference in references]


@dataclass
class Holder:
    """Something that holds another."""

    held: Any

    def first(self, count: int) -> Any:
        return self.held[:count]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def packer(store: Store) -> Packer:
    return Packer(store.put)


def sent(parcel: Parcel) -> Parcel:
    """The parcel as it arrives in another process."""
    arrived: Parcel = pickle.loads(pickle.dumps(parcel, protocol=5))
    return arrived


def weights(
    value: float = 1.0, size: int = 1 << 14, *, writeable: bool = False
) -> NDArray[np.float32]:
    array = np.full(size, value, dtype=np.float32)
    array.setflags(write=writeable)
    return array


def test_a_placed_thing_is_sent_once_and_made_once(store: Store, packer: Packer) -> None:
    thing = Holder(list(range(10_000)))
    packer.place(thing)
    packer.place(thing)
    parcels = [packer.pack((sum, [thing, number])) for number in range(3)]
    assert len(store.content) == 1
    assert max(len(parcel.content) for parcel in parcels) < 200
    opener = Opener(store.fetch)
    first, *others = [opener.open(sent(parcel))[1][0] for parcel in parcels]
    assert first == thing
    assert all(one is first for one in others)
    # an equal thing is not the placed one
    one, equal = opener.open(sent(packer.pack([thing, Holder(thing.held)])))
    assert one is first is not equal
    # a method brings nothing along
    function, args = opener.open(sent(packer.pack((thing.first, (3,)))))
    assert function(*args) == [0, 1, 2]


def test_what_a_placed_thing_holds_may_be_placed_itself(store: Store, packer: Packer) -> None:
    pool = Holder(np.arange(100_000))
    users = [Holder(pool), Holder(pool)]
    for thing in (pool, *users):
        packer.place(thing)
    assert sum(len(content) > 100_000 for content in store.content) == 1
    first, second, itself = Opener(store.fetch).open(sent(packer.pack((*users, pool))))
    assert first.held is second.held is itself
    np.testing.assert_array_equal(itself.held, pool.held)


def test_frozen_parameters_of_a_placed_module_are_views_and_trained_ones_are_not() -> None:
    stored: list[Parcel] = []

    def put(thing: Any) -> int:
        stored.append(thing)
        return len(stored) - 1

    packer = Packer(put)
    module = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 10), nn.Linear(200, 200))
    for frozen in (module[0].weight, module[1].weight, module[2].weight):
        frozen.requires_grad_(False)
    module[2].weight = module[0].weight  # tied
    packer.place(module)
    (parcel,) = stored
    (memory,) = [np.frombuffer(buffer, dtype=np.float32) for buffer in parcel.buffers]  # type: ignore[call-overload]
    memory = memory.copy()
    memory.setflags(write=False)
    parcel.buffers = [pickle.PickleBuffer(memory)]
    copy = Opener(lambda references: [stored[number] for number in references]).open(
        sent(packer.pack(module))
    )
    assert copy[0].weight.data_ptr() == copy[2].weight.data_ptr() == memory.ctypes.data
    assert copy[0].weight is copy[2].weight
    assert [parameter.requires_grad for parameter in copy.parameters()] == [
        parameter.requires_grad for parameter in module.parameters()
    ]
    for name, tensor in module.state_dict().items():
        np.testing.assert_array_equal(copy.state_dict()[name].numpy(), tensor.numpy())


def test_read_only_arrays_are_put_once_and_stay_themselves(store: Store, packer: Packer) -> None:
    shared = weights(3.0)
    parcels = [packer.pack({"base": shared, "anchor": shared}) for _ in range(3)]
    assert (len(store.content), len(parcels[2].content) < 200) == (1, True)
    opened = Opener(store.fetch).open(sent(parcels[2]))
    assert opened["base"] is opened["anchor"]
    np.testing.assert_array_equal(opened["base"], shared)


def test_small_and_writeable_arrays_and_those_of_a_subclass_go_by_value(
    store: Store, packer: Packer
) -> None:
    small, own = weights(1.0, 10), weights(2.0, writeable=True)
    masked = np.ma.masked_array(np.zeros(1 << 14), mask=np.arange(1 << 14) == 7)  # type: ignore[no-untyped-call]
    masked.setflags(write=False)
    parcel = packer.pack([small, own, masked])
    own[:] = 5.0
    opened = Opener(store.fetch).open(sent(parcel))
    assert store.content == []
    assert [array[0] for array in opened[:2]] == [1.0, 2.0]
    assert opened[2].mask.sum() == 1


def test_an_array_that_is_gone_is_forgotten_and_its_address_means_nothing(
    store: Store, packer: Packer
) -> None:
    addresses = set()
    for value in range(50):
        array = weights(float(value))
        addresses.add(id(array))
        opened = Opener(store.fetch).open(sent(packer.pack([array])))
        assert opened[0][0] == value
        del array
    gc.collect()
    assert len(addresses) < 50, "no address was used twice, so this has shown nothing"
    assert packer._shared == {}
