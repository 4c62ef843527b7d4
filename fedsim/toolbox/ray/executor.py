"""Executor on Ray: worker processes on this machine, or on all machines of a cluster.

Any program that reaches the ports of a Ray cluster can run code on it, because Ray's messages are
pickles. A cluster that is started here therefore listens only on the loopback interface. It
requires a token of each client, which only this process and its children have. A cluster of several
machines should be in a separate network, and require tokens.

Calls are sent as parcels (pickles), which omit two kinds of objects. A *placed* object (a trainer,
a data set) is put into the cluster's store once, and unpickled once in each worker process. A large
read-only array, such as a model's weights, is *shared*. The first call with a shared array puts the
array into the store, where workers read it. The store deletes the array after this process has
freed it.
"""

import os
import socket
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from importlib.metadata import version
from itertools import count
from threading import Thread
from typing import Any, TypeAlias

from fedsim.clock.answers import Answer, answer
from fedsim.clock.executors import Executor
from fedsim.clock.placement import TaskResources
from fedsim.common.arrays import AnyArray
from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.common.imports import adopt_module_locations, module_locations
from fedsim.common.machine import usable_cores
from fedsim.toolbox.ray.connection import (
    ALL_INTERFACES,
    AUTH_MODE,
    brief,
    load_ray,
    require_client_token,
    require_server,
)
from fedsim.toolbox.ray.parcels import Opener, Packer, Parcel, Stored

MOST_TRIES = 20  # retries of a call whose worker process is lost
# Ray's default strategy fills one node first, where calls then wait while other nodes are idle
_SCHEDULING = "SPREAD"
# packages that influence results, so that all nodes must have the same versions
_PINNED_PACKAGES = ("fedsim-des", "numba", "numpy", "torch")
_executor_indices = count()


PendingValue: TypeAlias = "Future[Any]"
Work: TypeAlias = Callable[..., Any]


class WorkerLostError(SimulationError):
    """Error of a call whose worker process, or the worker's node, was lost before the result."""


class HomeLostError(SimulationError):
    """Error that the Ray node of this machine was lost, and with it the connection to the cluster."""

    def __init__(self) -> None:
        super().__init__(
            "the Ray node of this process was lost, and with it the cluster; start Ray again, and "
            "go on from what was saved"
        )


class Ray(Executor):
    """Executor that carries out each call as a Ray task, and repeats the calls of lost workers.

    The machine on which this executor runs stores the objects that all nodes need. If this machine
    is lost, the run fails.

    Args:
        address: ``HOST:PORT`` of a cluster to which this machine belongs, or ``auto`` for a
            cluster that was started on this machine; None to start Ray on this machine only, for
            the life of the executor. If the program has called ``ray.init``, its cluster is used.
        workers: count of processes if Ray is started here; None for the count of cores.
        resources: resources that each task reserves; None for one core.

    Raises:
        ScenarioError: Ray is not installed, there is no cluster at ``address``, or no node of the
            cluster has the resources.
    """

    def __init__(
        self,
        address: str | None = None,
        workers: int | None = None,
        resources: TaskResources | None = None,
    ) -> None:
        self._ray = load_ray(address)
        errors = self._ray.exceptions
        # errors of a call whose worker process, node or arguments were lost
        self._loss_errors = (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.LocalRayletDiedError,
            errors.OutOfMemoryError,
            errors.ObjectLostError,
        )
        self._packer = Packer(self._ray.put)
        # future of a call that has not ended -> Ray's reference to its result
        self._open_calls: dict[PendingValue, Stored] = {}
        self._owns_cluster = not self._ray.is_initialized()
        if self._owns_cluster:
            self._start(address, workers)
        self._resources = resources or TaskResources()
        try:
            self._refuse_unplaceable()
        except ScenarioError:
            self.close()
            raise
        self.workers = self.count_places()
        self._index = next(_executor_indices)  # number of this executor in its process
        # versions that the packages of every worker process must have
        self._versions = {package: version(package) for package in _PINNED_PACKAGES}
        self._home: str = self._ray.get_runtime_context().get_node_id()  # node of this process
        demand = self._resources
        options = {
            "num_cpus": demand.num_cpus,
            "num_gpus": demand.num_gpus,
            "memory": demand.memory or None,
            "resources": dict(demand.named),
            "scheduling_strategy": _SCHEDULING,
        }
        # a call that Ray repeats if its worker is lost, and a call that it does not repeat
        task = self._ray.remote(_carry_out)
        self._retried_task = task.options(max_retries=MOST_TRIES, **options)
        self._single_task = task.options(max_retries=0, **options)

    def _refuse_unplaceable(self) -> None:
        """Raise ``ScenarioError`` if no node of the cluster has the resources of a task."""
        nodes = self._nodes()
        if self._resources == TaskResources() and not any(node.get("CPU") for node in nodes):
            raise ScenarioError(
                "the Ray cluster has no CPUs, so nothing could ever run; one node at least "
                "needs --num-cpus"
            )
        self._resources.refuse_unplaceable(nodes)

    def _nodes(self) -> list[dict[str, float]]:
        """Return the resources of each live node of the cluster, as name (``CPU``) -> amount."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def count_places(self) -> int:
        """Return how many tasks the nodes of the cluster can carry out at the same time."""
        return sum(map(self._resources.count_on, self._nodes()))

    def _start(self, address: str | None, workers: int | None) -> None:
        """Start Ray on this machine, or join a cluster.

        Args:
            address: address of the cluster; None to start Ray here.
            workers: count of processes if Ray is started here; None for the count of cores.
        """
        # for a job of a client, Ray does not put the working directory first in a worker's path
        config = self._ray.job_config.JobConfig(_client_job=True)
        options = {"log_to_driver": False, "logging_level": "error", "job_config": config}
        with warnings.catch_warnings():
            # Ray 2.52 warns that a later version will treat tasks without a GPU in another way
            warnings.simplefilter("ignore", FutureWarning)
            if address is None:
                self._start_here(workers, options)
            else:
                self._join(address, options)
        self._print_events(is_on=False)

    def _print_events(self, is_on: bool) -> None:
        """Set whether Ray prints messages to stdout, such as that a worker or a node was lost.

        fedsim switches them off, as they would corrupt its own output, such as that of ``--json``.
        """
        self._ray._private.worker._worker_logs_enabled = is_on

    def _start_here(self, workers: int | None, options: Mapping[str, object]) -> None:
        """Start Ray on this machine, and require that it listens only on the loopback interface.

        Ray chooses its interfaces when it is imported. If the program has imported Ray before
        fedsim, Ray may have chosen all interfaces.

        Args:
            workers: count of processes; None for the count of cores.
            options: further arguments of ``ray.init``.

        Raises:
            ScenarioError: Ray listens on another interface; Ray is shut down first.
        """
        require_client_token()
        processes = usable_cores() if workers is None else workers
        self._ray.init("local", num_cpus=processes, include_dashboard=False, **options)
        host = self._ray.get_runtime_context().gcs_address.rpartition(":")[0]
        if host == "127.0.0.1":
            return
        self._ray.shutdown()
        raise ScenarioError(
            f"Ray would listen on {host}, not on the loopback interface alone, because it "
            "was imported before fedsim could "
            f"say so; set {ALL_INTERFACES}=0 beforehand, or call ray.init yourself"
        )

    def _join(self, address: str, options: Mapping[str, object]) -> None:
        """Join the cluster at an address.

        Args:
            address: ``HOST:PORT`` or ``auto``.
            options: further arguments of ``ray.init``.

        Raises:
            ScenarioError: no cluster answers at the address, or the cluster refuses the connection.
        """
        require_server(address)
        try:
            self._ray.init(address, **options)
        except (ConnectionError, RuntimeError, ValueError, self._ray.exceptions.RayError) as error:
            hint = ""
            if not os.environ.get(AUTH_MODE):
                hint = "; one that asks for a token needs RAY_AUTH_MODE=token here too"
            raise ScenarioError(
                f"--address is {address!r}, where no Ray cluster could be joined: "
                f"{brief(error)}{hint}"
            ) from error

    def place(self, thing: object) -> None:
        self._packer.place(thing)

    def submit(self, function: Work, *args: object) -> PendingValue:
        return self._submit(self._retried_task, function, args, repeats=MOST_TRIES)

    def submit_once(self, function: Work, *args: object) -> PendingValue:
        """Start a call that is not repeated if its worker is lost.

        Args:
            function: the function.
            args: its arguments.

        Returns:
            A future of the function's value or exception. If the worker or its node is lost, the
            future has the exception ``WorkerLostError``.
        """
        return self._submit(self._single_task, function, args, repeats=0)

    def _submit(
        self, task: Any, function: Work, args: tuple[object, ...], *, repeats: int
    ) -> PendingValue:
        """Start a call as a Ray task, and return a future of its value.

        Args:
            task: Ray's remote function of ``_carry_out``, with the options of the task.
            function: the function.
            args: its arguments.
            repeats: how often the task may be started again if Ray could not place it.
        """
        parcel = self._packer.pack((function, args))
        shared = parcel.shared
        parcel.shared = []  # these arrays are sent as arguments of the task, which Ray fetches
        future: PendingValue = Future()
        start_task = partial(
            task.remote,
            self._index,
            self._home,
            self._versions,
            module_locations(),
            parcel,
            *shared,
        )
        self._start_task(future, start_task, repeats)
        return future

    def _start_task(
        self, future: PendingValue, start_task: Callable[[], Stored], repeats: int
    ) -> None:
        """Start a Ray task, and pass its result or error to the caller's future.

        Args:
            future: the caller's future.
            start_task: starts the task, and returns Ray's reference to its result.
            repeats: how often the task may be started again if Ray could not place it.
        """
        reference = start_task()
        self._open_calls[future] = reference

        def settle(answer: "Future[Answer]") -> None:
            if isinstance(answer.exception(), self._ray.exceptions.LocalRayletDiedError):
                # Ray's thread of callbacks must neither wait nor start tasks
                restart = partial(self._restart_lost, future, start_task, repeats, answer)
                Thread(target=restart, daemon=True).start()
            else:
                self._settle(future, answer)

        reference.future().add_done_callback(settle)

    def _restart_lost(
        self,
        future: PendingValue,
        start_task: Callable[[], Stored],
        repeats: int,
        answer: "Future[Answer]",
    ) -> None:
        """Start a task again that Ray could not place because a node was lost.

        Ray 2.52 does not do so itself. If the node of this process was lost, the caller's future
        fails immediately, as no repeat can succeed.

        Args:
            future: the caller's future.
            start_task: starts the task again.
            repeats: how often it may still be started; 0 lets the caller's future fail.
            answer: Ray's future, which has failed.
        """
        if not self.has_home:
            failed: Future[Answer] = Future()
            failed.set_exception(HomeLostError())
            self._settle(future, failed)
        elif repeats:
            self._start_task(future, start_task, repeats - 1)
        else:
            self._settle(future, answer)

    @property
    def has_home(self) -> bool:
        """Whether the Ray node on the machine of this process is alive."""
        try:
            nodes = self._ray.nodes()
        except Exception:  # Ray raises many kinds of errors if a cluster is lost or ended
            return False
        return any(node["NodeID"] == self._home and node["Alive"] for node in nodes)

    def _settle(self, future: PendingValue, answer: "Future[Answer]") -> None:
        """Pass the result or the error of a Ray task to the caller's future.

        Args:
            future: the caller's future.
            answer: Ray's future of the pickled answer.
        """
        self._open_calls.pop(future, None)
        if not future.set_running_or_notify_cancel():  # the caller has cancelled it
            return
        try:
            content, buffers = answer.result()
            # copies the buffers, so that the store's memory is freed immediately
            succeeded, outcome = Answer(content, [bytearray(part) for part in buffers]).outcome()
        except HomeLostError as error:
            succeeded = False
            outcome = error
        except Exception as error:
            succeeded = False
            kind = WorkerLostError if isinstance(error, self._loss_errors) else SimulationError
            outcome = kind(f"a call could not be carried out on the Ray cluster: {brief(error)}")
        if succeeded:
            future.set_result(outcome)
        else:
            future.set_exception(outcome)

    def close(self) -> None:
        open_calls = self._open_calls
        self._open_calls = {}
        for future, reference in open_calls.items():
            future.cancel()
            self._ray.cancel(reference)
        self._packer = Packer(self._ray.put)
        if self._owns_cluster:
            self._ray.shutdown()
            self._print_events(is_on=True)
        self._owns_cluster = False


_openers: dict[int, Opener] = {}
"""Index of the executor that sends calls to this worker process -> ``Opener`` of their parcels.

The dict has one entry after the first call.
"""


def _carry_out(
    executor: int,
    home: str,
    versions: dict[str, str],
    locations: dict[str, str],
    parcel: Parcel,
    *shared: AnyArray,
) -> Answer:
    """Carry out a call that was sent as a parcel (a pickle), in a worker process.

    Args:
        executor: number of the executor among the executors of its process.
        home: ID of the node on which the executor runs.
        versions: package -> version on the executor's node.
        locations: name of a Python module of the user -> path of its file.
        parcel: the function and its arguments.
        *shared: the arrays that the parcel omits, which Ray has fetched.

    Returns:
        The pickled result or error of the call.
    """
    import ray

    def call() -> object:
        if executor not in _openers:  # the first call of this executor in this process
            _refuse_versions(versions)
            _openers.clear()  # frees the objects that were sent by an earlier executor
            _openers[executor] = Opener(ray.get)
        adopt_module_locations(locations)
        function, args = _openers[executor].open(parcel, shared)
        result: object = function(*args)
        return result

    def call_naming_node() -> object:
        try:
            return call()
        except Exception as error:
            node = node_beside(home)
            if node and error.args and isinstance(error.args[0], str):
                message = f"{error.args[0]}{_installation_hint(error)} (on the node {node})"
                error.args = (message, *error.args[1:])
            raise

    return answer(call_naming_node)


def _refuse_versions(versions: Mapping[str, str]) -> None:
    """Raise ``SimulationError`` if a package has another version here than on the executor's node.

    Args:
        versions: package -> version on the executor's node.
    """
    for package, expected in versions.items():
        installed = version(package)
        if installed != expected:
            raise SimulationError(
                f"the worker on {socket.gethostname()!r} has {package} {installed}, and "
                f"this run {expected}: their "
                "results may differ; install the same on every node"
            )


def node_beside(home: str) -> str:
    """Return a text that names the Ray node of this worker, for error messages.

    Args:
        home: ID of the executor's node.

    Returns:
        Host name, address and the first characters of the node's ID; "" if the worker runs on the
        executor's node.
    """
    import ray

    node = ray.get_runtime_context().get_node_id()
    if node == home:
        return ""
    return f"{socket.gethostname()}, {ray.util.get_node_ip_address()}, {node[:8]}"


def _installation_hint(error: Exception) -> str:
    """Return advice for the user if code is missing on a node, to append to an error message.

    The advice is to install the code on each node. It is "" unless ``error`` is a failed import.
    """
    is_missing_code = isinstance(error, ImportError) or "cannot be imported" in str(error)
    if not is_missing_code:
        return ""
    return "; code of your own must be on every node, installed or at the same path"
