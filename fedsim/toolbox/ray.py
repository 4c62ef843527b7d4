"""Executor on Ray: worker processes on this machine, or on all machines of a cluster.

Any program that reaches the ports of a Ray cluster can run code on it, because Ray's messages are
pickles. A cluster that is started here therefore listens only on the loopback interface. It
requires a token of each client, which only this process and its children have. A cluster of several
machines belongs into a separate network, with tokens.

Calls are sent as parcels (pickles), which omit two kinds of objects. A *placed* object (a trainer,
a data set) is put into the cluster's store once, and unpickled once in each worker process. A large
read-only array, such as a model's weights, is *shared*. The first call with a shared array puts the
array into the store, where workers read it. The store deletes the array after this process has
freed it.
"""

import io
import os
import pickle
import secrets
import socket
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import version
from itertools import count
from typing import Any, Protocol, TypeGuard

import cloudpickle
import numpy as np

from fedsim.clock.executors import Answer, Executor, answer
from fedsim.common.arrays import AnyArray
from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.common.imports import learn, places
from fedsim.common.machine import usable_cores

_SHARED_BYTES = 1 << 15  # least size of a shared array; a smaller one costs less in the parcel
_TRIES = 20  # retries of a call whose worker process is lost
_OLDEST = 2, 60  # oldest version of Ray that is supported
# Ray's default fills one node first, where calls wait while another node is idle
_SCHEDULING = "SPREAD"
_CONNECT_S = 5.0  # timeout of the connection to a cluster's port (s)
_MUST_AGREE = ("fedsim-des", "numba", "numpy", "torch")  # packages that influence results
_numbers = count()


class Stored(Protocol):
    """The methods of ``ray.ObjectRef``, a reference to an object in the store, that are used."""

    def future(self) -> "Future[bytes]": ...


@dataclass
class Parcel:
    """Pickle of an object, and references to the placed and shared objects that it omits."""

    content: bytes = b""
    """the pickle, in which ("placed" or "shared", index) stands for an omitted object."""
    buffers: list[pickle.PickleBuffer] = field(default_factory=list)
    """memory of the arrays of a placed object, outside the pickle."""
    placed: list[Stored] = field(default_factory=list)
    """references to the omitted placed objects, in order of index."""
    shared: list[Stored] = field(default_factory=list)
    """references to the omitted shared arrays, in order of index."""


class Packer:
    """Packs objects into parcels, in the main process.

    Args:
        put: puts an object into the cluster's store, and returns its reference.
    """

    def __init__(self, put: Callable[[object], Stored]) -> None:
        self._put = put
        self._placed: dict[int, tuple[object, Stored]] = {}
        self._shared: dict[int, tuple[weakref.ref[AnyArray], Stored]] = {}

    def place(self, thing: object) -> None:
        """Put an object into the store, so that later parcels only refer to it."""
        if id(thing) not in self._placed:
            self._placed[id(thing)] = (thing, self._put(self.pack(thing, apart=True)))

    def pack(self, thing: object, *, apart: bool = False) -> Parcel:
        """Pack an object.

        Args:
            thing: the object.
            apart: whether the memory of the object's arrays is stored in ``Parcel.buffers``,
                outside the pickle.

        Returns:
            The parcel.
        """
        parcel = Parcel()
        memory = io.BytesIO()
        buffer_callback = parcel.buffers.append if apart else None
        pickler = cloudpickle.Pickler(memory, protocol=5, buffer_callback=buffer_callback)
        pickler.persistent_id = partial(self._number, parcel)
        pickler.dump(thing)
        parcel.content = memory.getvalue()
        return parcel

    def _number(self, parcel: Parcel, thing: object) -> tuple[str, int] | None:
        """Return the stand-in for a placed or shared object in a pickle.

        The object's reference is added to the parcel.

        Returns:
            ("placed" or "shared", index of the reference); None to pickle the object itself.
        """
        if _is_shared(thing):
            return "shared", _position(self._share(thing), parcel.shared)
        placed = self._placed.get(id(thing))
        if placed is None or placed[0] is not thing:
            return None
        return "placed", _position(placed[1], parcel.placed)

    def _share(self, array: AnyArray) -> Stored:
        """Return the reference of a shared array, after putting a new array into the store."""
        key = id(array)
        entry = self._shared.get(key)
        if entry is not None and entry[0]() is array:
            return entry[1]
        reference = self._put(array)
        weak = weakref.ref(array, lambda _: self._shared.pop(key, None))
        self._shared[key] = (weak, reference)
        return reference


def _is_shared(thing: object) -> TypeGuard[AnyArray]:
    if type(thing) is not np.ndarray:
        return False
    return not thing.flags.writeable and thing.nbytes >= _SHARED_BYTES


def _position(reference: Stored, references: list[Stored]) -> int:
    """Return the index of a reference in a list, to which it is appended if it is missing."""
    if reference not in references:
        references.append(reference)
    return references.index(reference)


class Opener:
    """Unpacks parcels in a worker process, where it caches placed objects.

    Args:
        fetch: returns the stored objects of a list of references, in order.
    """

    def __init__(self, fetch: Callable[[Sequence[Stored]], Sequence[Any]]) -> None:
        self._fetch = fetch
        self._placed: dict[Stored, object] = {}

    def open(self, parcel: Parcel, shared: Sequence[AnyArray] | None = None) -> Any:
        """Unpack a parcel.

        Args:
            parcel: the parcel.
            shared: the shared arrays; None to fetch them from the store.

        Returns:
            The object in the parcel.
        """
        arrays = self._fetch(parcel.shared) if shared is None else shared
        for reference in parcel.placed:
            if reference not in self._placed:
                self._placed[reference] = self.open(*self._fetch([reference]))
        omitted: dict[str, Sequence[object]] = {
            "placed": [self._placed[reference] for reference in parcel.placed],
            "shared": arrays,
        }
        unpickler = _Unpickler(io.BytesIO(parcel.content), buffers=parcel.buffers)
        unpickler.omitted = omitted
        return unpickler.load()


class _Unpickler(pickle.Unpickler):
    omitted: Mapping[str, Sequence[object]]

    def persistent_load(self, number: tuple[str, int]) -> object:
        kind, position = number
        return self.omitted[kind][position]


class Ray(Executor):
    """Executor that carries out each call as a Ray task, and repeats the calls of lost workers.

    The machine on which this executor runs stores the objects that all nodes need. A run does not
    survive its loss.

    Args:
        address: ``HOST:PORT`` of a cluster to which this machine belongs, or ``auto`` for a
            cluster that was started on this machine; None to start Ray on this machine only, for
            the life of the executor. If the program has called ``ray.init``, its cluster is used.
        workers: count of processes if Ray is started here; None for the count of cores.

    Raises:
        ScenarioError: Ray is not installed, there is no cluster at ``address``, or the cluster has
            no CPUs.
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self._ray = _load(address)
        self._packer = Packer(self._ray.put)
        self._open: dict[Future[Any], Stored] = {}
        self._owns_cluster = not self._ray.is_initialized()
        if self._owns_cluster:
            self._start(address, workers)
        self.workers = int(self._ray.cluster_resources().get("CPU", 0))
        if not self.workers:
            self.close()
            raise ScenarioError(
                "the Ray cluster has no CPUs, so nothing could ever run; one node at least "
                "needs --num-cpus"
            )
        self._number = next(_numbers)
        self._versions = {package: version(package) for package in _MUST_AGREE}
        self._home: str = self._ray.get_runtime_context().get_node_id()
        self._call = self._ray.remote(_carry_out).options(
            num_cpus=1, max_retries=_TRIES, scheduling_strategy=_SCHEDULING
        )

    def _start(self, address: str | None, workers: int | None) -> None:
        """Start Ray on this machine, or join the cluster at ``address``."""
        # for a job of a client, Ray does not put the working directory first in a worker's path
        config = self._ray.job_config.JobConfig(_client_job=True)
        options = {"log_to_driver": False, "logging_level": "error", "job_config": config}
        if address is None:
            self._start_here(workers, options)
        else:
            self._join(address, options)

    def _start_here(self, workers: int | None, options: Mapping[str, object]) -> None:
        os.environ[_TOKEN] = _make_token()
        # Ray then asks for tokens, and says so in its settings even if it has read them
        os.environ.pop(_AUTH_MODE, None)
        processes = usable_cores() if workers is None else workers
        self._ray.init("local", num_cpus=processes, include_dashboard=False, **options)
        host = self._ray.get_runtime_context().gcs_address.rpartition(":")[0]
        if host == "127.0.0.1":
            return
        self._ray.shutdown()
        raise ScenarioError(
            f"Ray would listen on {host}, not on the loopback interface alone, because it "
            "was imported before fedsim could "
            f"say so; set {_LOOPBACK}=0 beforehand, or call ray.init yourself"
        )

    def _join(self, address: str, options: Mapping[str, object]) -> None:
        _refuse_no_server(address)
        try:
            self._ray.init(address, **options)
        except (ConnectionError, RuntimeError, ValueError, self._ray.exceptions.RayError) as error:
            hint = ""
            if not os.environ.get(_AUTH_MODE):
                hint = "; one that asks for a token needs RAY_AUTH_MODE=token here too"
            raise ScenarioError(
                f"--address is {address!r}, where no Ray cluster could be joined: "
                f"{_brief(error)}{hint}"
            ) from error

    def place(self, thing: object) -> None:
        self._packer.place(thing)

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        parcel = self._packer.pack((function, args))
        shared = parcel.shared
        parcel.shared = []  # Ray fetches the arguments of a task itself
        reference = self._call.remote(
            self._number, self._home, self._versions, places(), parcel, *shared
        )
        future: Future[Any] = Future()
        self._open[future] = reference
        reference.future().add_done_callback(lambda answer: self._settle(future, answer))
        return future

    def _settle(self, future: "Future[Any]", answer: "Future[Answer]") -> None:
        """Copy the result or the error of a Ray task to the caller's future.

        Args:
            future: the caller's future.
            answer: Ray's future of the pickled answer.
        """
        self._open.pop(future, None)
        if not future.set_running_or_notify_cancel():
            return
        try:
            content, buffers = answer.result()
            # copies the buffers, so that the store's memory is freed at once
            succeeded, outcome = Answer(content, [bytearray(part) for part in buffers]).outcome()
        except Exception as error:
            succeeded = False
            outcome = SimulationError(
                f"a call could not be carried out on the Ray cluster: {_brief(error)}"
            )
        if succeeded:
            future.set_result(outcome)
        else:
            future.set_exception(outcome)

    def close(self) -> None:
        open_calls = self._open
        self._open = {}
        for future, reference in open_calls.items():
            future.cancel()
            self._ray.cancel(reference)
        self._packer = Packer(self._ray.put)
        if self._owns_cluster:
            self._ray.shutdown()
        self._owns_cluster = False


_openers: dict[int, Opener] = {}
"""Index of an executor -> the opener of this worker process; one entry."""


def _carry_out(
    executor: int,
    home: str,
    versions: dict[str, str],
    module_places: dict[str, str],
    parcel: Parcel,
    *shared: AnyArray,
) -> Answer:
    """Carry out the call in a parcel, in a worker process.

    Args:
        executor: index of the executor in its process.
        home: ID of the node on which the executor runs.
        versions: package: version on the executor's node.
        module_places: Python module of the user: its file.
        parcel: the function and its arguments.
        *shared: the shared arrays of the parcel.

    Returns:
        The pickled result or error of the call, of ``fedsim.clock.executors.answer``.
    """
    import ray

    def call() -> object:
        if executor not in _openers:
            _refuse_versions(versions)
            _openers.clear()
            _openers[executor] = Opener(ray.get)
        learn(module_places)
        function, args = _openers[executor].open(parcel, shared)
        result: object = function(*args)
        return result

    def call_with_node() -> object:
        try:
            return call()
        except Exception as error:
            node = node_beside(home)
            if node and error.args and isinstance(error.args[0], str):
                message = f"{error.args[0]}{_missing_code(error)} (on the node {node})"
                error.args = (message, *error.args[1:])
            raise

    return answer(call_with_node)


def _refuse_versions(versions: Mapping[str, str]) -> None:
    """Raise ``SimulationError`` if a package's version on this node is not the executor's."""
    for package, expected in versions.items():
        installed = version(package)
        if installed != expected:
            raise SimulationError(
                f"the worker on {socket.gethostname()!r} has {package} {installed}, and "
                f"this run {expected}: their "
                "results may differ; install the same on every node"
            )


def node_beside(home: str) -> str:
    """Describe the node of this worker for error messages.

    Args:
        home: ID of the executor's node.

    Returns:
        Host name, address and the first characters of the node's ID; "" on the executor's node.
    """
    import ray

    node = ray.get_runtime_context().get_node_id()
    if node == home:
        return ""
    return f"{socket.gethostname()}, {ray.util.get_node_ip_address()}, {node[:8]}"


def _missing_code(error: Exception) -> str:
    """Return advice if an error is a failed import of a user's module, else ""."""
    is_missing = isinstance(error, ImportError) or "cannot be imported" in str(error)
    if not is_missing:
        return ""
    return "; code of your own must be on every node, installed or at the same path"


_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Environment variable that Ray reads when it is imported.

If it is 0, Ray's servers listen only on 127.0.0.1. On Linux the default is 1.
"""

_AUTH_MODE = "RAY_AUTH_MODE"
_TOKEN = "RAY_AUTH_TOKEN"


@cache
def _make_token() -> str:
    """Return the token for clients of Ray's servers, one per process, as Ray reads it once."""
    return secrets.token_hex(32)


def _load(address: str | None) -> Any:
    """Import Ray, set to listen on the loopback interface if ``address`` is None.

    Raises:
        ScenarioError: Ray is missing or too old.
    """
    if address is None:
        os.environ.setdefault(_LOOPBACK, "0")
    try:
        import ray
    except ImportError as error:
        raise ScenarioError(
            f"--executor is 'ray', but Ray cannot be imported ({error}); pip install "
            "'ray>=2.60' 'cloudpickle>=3' installs it"
        ) from error
    if tuple(map(int, ray.__version__.split(".")[:2])) < _OLDEST:
        raise ScenarioError(
            f"--executor is 'ray', but the Ray that is installed is {ray.__version__}; 2.60 or "
            "later is needed. If "
            "flwr[simulation] has brought it, which pins an older one, give Flower's own "
            "simulation another environment"
        )
    return ray


def _refuse_no_server(address: str) -> None:
    """Raise ``ScenarioError`` if no server listens at HOST:PORT; Ray would retry for minutes."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or "://" in host:
        raise ScenarioError(f"--address is {address!r}; it must be 'auto' or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ScenarioError(
            f"--address is {address!r}, where no Ray cluster answers: {error}"
        ) from error


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
