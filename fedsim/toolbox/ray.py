"""Work on Ray: processes on this machine, or on all machines of a cluster.

Anybody who reaches the ports of a Ray cluster can run programs on it, because Ray's messages are
pickles. So a cluster that is started here listens on the loopback interface alone, and asks every
client for a token that only this process and its children have. A cluster of several machines
belongs into a network of its own, with tokens.

Calls travel as parcels (pickles), which leave out two kinds of objects. A *placed* object (a
trainer, a data set) is put into the cluster's store once, and unpickled once in each worker
process. A big read-only array, such as a model's weights, is *shared*: its first call puts it into
the store, where workers read it, and it is dropped when this process has freed it.
"""

import io
import os
import pickle
import secrets
import socket
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import version
from itertools import count
from typing import Any

import cloudpickle
import numpy as np

from fedsim.clock.executors import Answer, Executor, answer
from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.common.imports import learn, places

_SHARED_BYTES = 1 << 15  # a smaller array costs less in the parcel than in the store
_TRIES = 20  # times that a call's worker may be lost before the call itself is suspected
_OLDEST = 2, 60
# Ray's default fills one node first, and lets calls wait there while another node is idle
_SCHEDULING = "SPREAD"
_CONNECT_S = 5.0  # how long a cluster's port may take to answer
_MUST_AGREE = ("fedsim-des", "numba", "numpy", "torch")  # packages with influence on results
_numbers = count()


ParcelReference = Any
"""Name of a thing in the store: a ``ray.ObjectRef``."""


@dataclass
class Parcel:
    """A pickle, and the references by the numbers in it; of placed things, ``buffers`` has the
    memory of their arrays.
    """

    content: bytes = b""
    buffers: list[pickle.PickleBuffer] = field(default_factory=list)
    placed: list[ParcelReference] = field(default_factory=list)
    shared: list[ParcelReference] = field(default_factory=list)


class Packer:
    """Makes parcels; ``put`` puts a thing into the store and gives its reference."""

    def __init__(self, put: Callable[[Any], ParcelReference]) -> None:
        self._put = put
        self._placed: dict[int, tuple[Any, ParcelReference]] = {}
        self._shared: dict[int, tuple[weakref.ref[Any], ParcelReference]] = {}

    def place(self, thing: Any) -> None:
        """Put ``thing`` into the store; from now on it goes into parcels by reference."""
        if id(thing) not in self._placed:
            self._placed[id(thing)] = (thing, self._put(self.pack(thing, apart=True)))

    def pack(self, thing: Any, *, apart: bool = False) -> Parcel:
        """A parcel with ``thing`` in it; with the memory of its arrays ``apart``."""
        parcel = Parcel()
        memory = io.BytesIO()
        pickler = cloudpickle.Pickler(
            memory, protocol=5, buffer_callback=parcel.buffers.append if apart else None
        )
        pickler.persistent_id = partial(self._number, parcel)
        pickler.dump(thing)
        parcel.content = memory.getvalue()
        return parcel

    def _number(self, parcel: Parcel, thing: Any) -> tuple[str, int] | None:
        """The kind of ``thing`` and the position of its reference in the parcel; None if
        ``thing`` goes by value.
        """
        kind = "placed"
        key = id(thing)
        held, reference = self._placed.get(key, (None, None))
        if (
            type(thing) is np.ndarray
            and not thing.flags.writeable
            and thing.nbytes >= _SHARED_BYTES
        ):
            kind, (known, reference) = "shared", self._shared.get(key, (None, None))
            if known is None or known() is not thing:
                reference = self._put(thing)
                self._shared[key] = (
                    weakref.ref(thing, lambda _: self._shared.pop(key, None)),
                    reference,
                )
        elif held is None or held is not thing:
            return None
        references: list[ParcelReference] = getattr(parcel, kind)
        if reference not in references:
            references.append(reference)
        return kind, references.index(reference)


class Opener:
    """Opens parcels in a worker and keeps placed objects there; ``fetch`` gets objects from the
    store.
    """

    def __init__(self, fetch: Callable[[Sequence[ParcelReference]], Sequence[Any]]) -> None:
        self._fetch = fetch
        self._kept: dict[ParcelReference, Any] = {}

    def open(self, parcel: Parcel, shared: Sequence[Any] | None = None) -> Any:
        """The content of the parcel; ``shared`` are the shared arrays, if they have been fetched
        already.
        """
        arrays = self._fetch(parcel.shared) if shared is None else shared
        for reference in parcel.placed:
            if reference not in self._kept:
                self._kept[reference] = self.open(*self._fetch([reference]))
        things = {
            "placed": [self._kept[reference] for reference in parcel.placed],
            "shared": arrays,
        }
        unpickler: Any = pickle.Unpickler(io.BytesIO(parcel.content), buffers=parcel.buffers)
        unpickler.persistent_load = lambda number: things[number[0]][number[1]]
        return unpickler.load()


class Ray(Executor):
    """Runs each call as a Ray task. A worker or a node that is lost costs time only: its calls
    are made again elsewhere.

    The machine on which this runs holds what the others need; it must stay.

    Args:
        address: ``HOST:PORT`` of a cluster of which this machine is a node, or ``auto`` for one
            that was started here; None to start Ray on this machine alone, for as long as this
            executor lives. A program that has called ``ray.init`` itself keeps its cluster.
        workers: processes, where Ray is started here; by default one a core.

    Raises:
        ScenarioError: Ray is not installed, or there is no cluster at ``address``.
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self._ray = _load(address)
        self._packer = Packer(self._ray.put)
        self._open: dict[Future[Any], Any] = {}
        self._ours = not self._ray.is_initialized()
        if self._ours:
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
        # For what it takes for a client's job Ray does not put the working directory before all
        # else that workers search.
        config = self._ray.job_config.JobConfig(_client_job=True)
        quiet = {"log_to_driver": False, "logging_level": "error", "job_config": config}
        if address is None:
            os.environ[_TOKEN] = _own_token()
            # Ray then asks for tokens, and says so in its settings even if it has read them
            os.environ.pop(_AUTH_MODE, None)
            self._ray.init(
                "local", num_cpus=workers or os.cpu_count(), include_dashboard=False, **quiet
            )
            host = self._ray.get_runtime_context().gcs_address.rpartition(":")[0]
            if host == "127.0.0.1":
                return
            self._ray.shutdown()
            raise ScenarioError(
                f"Ray would listen on {host}, not on the loopback interface alone, because it "
                "was imported before fedsim could "
                f"say so; set {_LOOPBACK}=0 beforehand, or call ray.init yourself"
            )
        _refuse_no_server(address)
        try:
            self._ray.init(address, **quiet)
        except (ConnectionError, RuntimeError, ValueError, self._ray.exceptions.RayError) as error:
            hint = (
                ""
                if os.environ.get(_AUTH_MODE)
                else "; one that asks for a token needs RAY_AUTH_MODE=token here too"
            )
            raise ScenarioError(
                f"--address is {address!r}, where no Ray cluster could be joined: "
                f"{_brief(error)}{hint}"
            ) from error

    def place(self, thing: Any) -> None:
        self._packer.place(thing)

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        parcel = self._packer.pack((function, args))
        shared = parcel.shared
        parcel.shared = []
        reference = self._call.remote(
            self._number, self._home, self._versions, places(), parcel, *shared
        )
        future: Future[Any] = Future()
        self._open[future] = reference
        reference.future().add_done_callback(lambda answer: self._settle(future, answer))
        return future

    def _settle(self, future: "Future[Any]", answer: "Future[Answer]") -> None:
        self._open.pop(future, None)
        if not future.set_running_or_notify_cancel():
            return
        try:
            content, buffers = answer.result()
            # the store's memory is free again at once
            succeeded, outcome = Answer(content, [bytearray(part) for part in buffers]).outcome()
        except Exception as error:
            succeeded = False
            outcome = SimulationError(
                f"a call could not be carried out on the Ray cluster: {_brief(error)}"
            )
        (future.set_result if succeeded else future.set_exception)(outcome)

    def close(self) -> None:
        open_calls = self._open
        self._open = {}
        for future, reference in open_calls.items():
            future.cancel()
            self._ray.cancel(reference)
        self._packer = Packer(self._ray.put)
        if self._ours:
            self._ray.shutdown()
        self._ours = False


_openers: dict[int, Opener] = {}


def _carry_out(
    executor: int,
    home: str,
    versions: dict[str, str],
    where: dict[str, str],
    parcel: Parcel,
    *shared: Any,
) -> Answer:
    """Carry out the call in ``parcel``, for an executor with that number whose process is on the
    node ``home``.
    """
    import ray

    def work() -> Any:
        try:
            return work_here()
        except Exception as error:
            if (node := node_beside(home)) and error.args and isinstance(error.args[0], str):
                error.args = (
                    f"{error.args[0]}{_missing_code(error)} (on the node {node})",
                    *error.args[1:],
                )
            raise

    def work_here() -> Any:
        if executor not in _openers:
            for package, wanted in versions.items():
                if (here := version(package)) != wanted:
                    raise SimulationError(
                        f"the worker on {socket.gethostname()!r} has {package} {here}, and "
                        f"this run {wanted}: their "
                        "results may differ; install the same on every node"
                    )
            _openers.clear()
            _openers[executor] = Opener(ray.get)
        learn(where)
        function, args = _openers[executor].open(parcel, shared)
        return function(*args)

    return answer(work)


def node_beside(home: str) -> str:
    """The node of this worker for people, if it is another than ``home``; else ``""``."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    return (
        ""
        if node == home
        else f"{socket.gethostname()}, {ray.util.get_node_ip_address()}, {node[:8]}"
    )


def _missing_code(error: Exception) -> str:
    is_missing = isinstance(error, ImportError) or "cannot be imported" in str(error)
    return (
        "; code of your own must be on every node, installed or at the same path"
        if is_missing
        else ""
    )


_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""When this is 0, Ray's servers listen on 127.0.0.1 alone; on Linux it is 1 otherwise.

Read when Ray is imported.
"""

_AUTH_MODE = "RAY_AUTH_MODE"
_TOKEN = "RAY_AUTH_TOKEN"

_own_token = cache(lambda: secrets.token_hex(32))  # of child processes; Ray reads it once a process


def _load(address: str | None) -> Any:
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
    """Raise at once where no cluster can be, because nothing listens there: Ray itself would try
    for minutes.
    """
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
