"""Workers of a Ray cluster that carry out runs, one run per worker, like ``pool`` on one machine.

Nodes need not see the study's folder. This process locks each run, so that no other process
carries it out, sends the run's data and files to a node, and stores the run folder that the node
sends back as it grows. If a worker or node is lost, its run is begun again on another node, from
the files that the lost worker sent last.
"""

import signal
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field

from fedsim.common.errors import FedsimError
from fedsim.lab.study.far import Board, FarOrder, carry_out
from fedsim.lab.study.folder import claimed, state_of
from fedsim.lab.study.inputs import StudyInputs
from fedsim.lab.study.parts import PartReceiver, read_folder
from fedsim.lab.study.pool import Ended, News, RunOrder, StudyProgress
from fedsim.lab.study.worker import describe_failure, describe_outcome
from fedsim.records.lock import FolderInUseError
from fedsim.records.reading import RunFolder
from fedsim.toolbox.ray.executor import MOST_TRIES, HomeLostError, Ray, WorkerLostError

_LISTEN_EVERY_S = 0.25
# count of calls of ``_listen`` between two tries to lock a run that another process carries out
_RETRY_EVERY = 4
# count of runs handed to Ray for each run that Ray can carry out at a time; above 1, so that no
# worker idles
_RUNS_AHEAD = 2


@dataclass
class _Active:
    """Run of a study that was handed to Ray and has not ended.

    Attributes:
        order: which run to carry out, and its folder.
        receiver: stores the files of the run's folder that the worker sends.
        claim: lock that keeps other processes from the run; ``claim.close`` releases it.
        attempt: count of workers that were lost with the run.
        node: description of the worker's node; empty until the run has begun.
        problem: message of the error by which a file from the worker could not be stored; empty if
            no error occurred.
    """

    order: RunOrder
    receiver: PartReceiver
    claim: ExitStack = field(default_factory=ExitStack)
    attempt: int = 0
    node: str = ""
    problem: str = ""


class RayWorkers:
    """Carries out the runs of a study on the nodes of a Ray cluster.

    The nodes need no access to the study's folder. The class has the methods of ``WorkerPool``,
    which does the same in processes of this machine: ``run``, ``interrupt`` and ``close``.

    Args:
        executor: connection to the Ray cluster.
        progress: display of the runs' progress.
        inputs: data sets and files that the study's runs read, to send to the nodes.
    """

    def __init__(self, executor: Ray, progress: StudyProgress, inputs: StudyInputs) -> None:
        import ray

        self._ray = ray
        self._executor = executor
        self._progress = progress
        self._inputs = inputs
        self._home: str = ray.get_runtime_context().get_node_id()  # ID of this process's Ray node
        # the actor with the workers' messages runs on this node, so that the messages outlast the
        # workers' nodes
        on_home = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            self._home, soft=False
        )
        self._board = ray.remote(Board).options(num_cpus=0, scheduling_strategy=on_home).remote()
        self._interrupted = False
        # index of an order in the present call of ``run`` -> the run that Ray carries out for it
        self._active: dict[int, _Active] = {}
        self._futures: dict[Future[News], int] = {}
        self._ended: dict[int, Ended] = {}

    def interrupt(self, number: int = signal.SIGINT) -> None:
        self._interrupted = True

    def run(self, orders: Sequence[RunOrder]) -> list[Ended]:
        """Carry out runs on the cluster, and return their outcomes, in the order of ``orders``."""
        self._ended = {}
        waiting = deque(enumerate(orders))
        # runs that another process carries out at present, each with the index of its order; they
        # are tried again at intervals
        elsewhere: deque[tuple[int, RunOrder]] = deque()
        listenings = 0  # count of the calls of ``_listen``
        while waiting or elsewhere or self._futures:
            self._begin_runs(waiting, elsewhere)
            if self._futures:
                wait(self._futures, _LISTEN_EVERY_S, FIRST_COMPLETED)
            elif elsewhere:
                time.sleep(_LISTEN_EVERY_S)
            # A worker sends its last message before its task ends. So tasks that have ended by now
            # have no message left after the listening, and can be settled.
            ended_futures = [future for future in self._futures if future.done()]
            self._listen()
            for future in ended_futures:
                self._settle(self._futures.pop(future), future)
            listenings += 1
            if listenings % _RETRY_EVERY == 0:
                waiting.extend(elsewhere)
                elsewhere.clear()
        return [self._ended[order_index] for order_index in range(len(orders))]

    def close(self) -> None:
        """Release the locks of runs that have not ended, so that other processes may do these runs.

        Called when the study ends or is interrupted; no worker is ended.
        """
        for active in self._active.values():
            active.receiver.drop()
            active.claim.close()
        self._active = {}

    def _begin_runs(
        self, waiting: "deque[tuple[int, RunOrder]]", elsewhere: "deque[tuple[int, RunOrder]]"
    ) -> None:
        """Hand waiting runs to Ray while it has places for runs.

        After an interrupt, no run is begun, and all waiting runs get the outcome ``interrupted``.

        Args:
            waiting: runs that are not begun yet, each with its index. Runs that begin or get an
                outcome are removed.
            elsewhere: runs that another process carries out at present, each with its index. Such
                runs from ``waiting`` are added, to be tried again later.
        """
        if self._interrupted:
            for order_index, order in (*waiting, *elsewhere):
                self._store_outcome(order_index, Ended(order, "interrupted"))
            waiting.clear()
            elsewhere.clear()
        most_active = _RUNS_AHEAD * max(1, self._executor.count_places())
        while waiting and len(self._futures) < most_active:
            order_index, order = waiting.popleft()
            try:
                self._claim_and_submit(order_index, order)
            except FolderInUseError:
                if order.waits:
                    elsewhere.append((order_index, order))
                else:
                    self._store_outcome(order_index, Ended(order, "elsewhere"))
            except Exception as error:
                self._store_outcome(
                    order_index, Ended(order, "failed", describe_failure(error, order.folder))
                )

    def _claim_and_submit(self, order_index: int, order: RunOrder) -> None:
        """Lock a run against other processes, and hand it to Ray unless it is already done.

        Args:
            order_index: index of the run in the list of orders.
            order: the run and its folder.

        Raises:
            FolderInUseError: another process carries out the run.
        """
        with ExitStack() as stack:
            stack.enter_context(claimed(order.folder))
            if state_of(order.folder, order.scenario) == "done":
                self._store_outcome(
                    order_index, Ended(order, **describe_outcome(RunFolder(order.folder).summary))
                )
                return
            active = _Active(order, PartReceiver(order.folder))
            self._submit(order_index, active)
            active.claim = stack.pop_all()  # the claim outlasts this call
            self._active[order_index] = active

    def _submit(self, order_index: int, active: _Active) -> None:
        """Hand a run to Ray, with its data and, if it was interrupted before, its saved files.

        Args:
            order_index: index of the run in the list of orders.
            active: the run.
        """
        order = active.order
        state = state_of(order.folder, order.scenario)
        saved_files = read_folder(order.folder) if state == "resume" else {}
        inputs = self._inputs.of(order.scenario)
        for dataset in inputs.data.datasets.values():
            self._executor.place(dataset)
        far_order = FarOrder(order_index, active.attempt, order.scenario, inputs, saved_files)
        future = self._executor.submit_once(carry_out, self._board, self._home, far_order)
        self._futures[future] = order_index

    def _listen(self) -> None:
        """Process the messages that the workers of a study on Ray have sent since the last call.

        Files of run folders are stored here; notes and progress are shown. Messages of a worker
        that was considered lost, and replaced, are ignored.
        """
        for order_index, attempt, news in self._fetch_messages():
            active = self._active.get(order_index)
            if active is None or active.attempt != attempt or active.problem:
                continue
            try:
                self._handle_news(order_index, active, news)
            except OSError as error:
                active.problem = describe_failure(error, active.order.folder)

    def _fetch_messages(self) -> list[tuple[int, int, News]]:
        future = self._board.collect.remote(self._interrupted)
        try:
            messages: list[tuple[int, int, News]] = self._ray.get(future)
        except self._ray.exceptions.RayError as error:
            # the actor with the messages is on this process's node, which may be lost
            raise HomeLostError from error
        return messages

    def _handle_news(self, order_index: int, active: _Active, news: News) -> None:
        """Process a message of a worker: on a file of the run folder, the begin, or the progress.

        Changes of the run folder arrive in parts. A part is a series of pieces of files, and then a
        list of all files.

        Args:
            order_index: index of the run in the list of orders.
            active: the run.
            news: the message.
        """
        if news["event"] == "file-piece":
            active.receiver.take_piece(news["path"], news["content"])
        elif news["event"] == "part-complete":
            active.receiver.complete_part(news["files"])
        elif news["event"] == "begun":
            active.node = news["node"]
            self._show_begin(order_index, news)
        else:
            self._progress.take(order_index, news)

    def _show_begin(self, order_index: int, news: News) -> None:
        """Show on which node and GPUs a worker has begun a run.

        Nothing is shown if the run is on this process's own node and uses no GPU.

        Args:
            order_index: index of the run in the list of orders.
            news: message of the worker, with ``node`` (empty for this process's node) and ``gpus``.
        """
        locations = []
        if news["node"]:
            locations.append(f"the node {news['node']}")
        if news["gpus"]:
            locations.append(f"GPU {', '.join(news['gpus'])}")
        if locations:
            self._progress.take(
                order_index, {"event": "note", "text": f"begins on {', '.join(locations)}"}
            )

    def _settle(self, order_index: int, future: "Future[News]") -> None:
        """Store the outcome of an ended Ray task, or begin its run again if its worker was lost.

        Args:
            order_index: index of the run in the list of orders.
            future: the ended Ray task, with the run's outcome or an error.
        """
        active = self._active[order_index]
        order = active.order
        active.receiver.drop()  # removes received pieces whose part was not completed
        try:
            ended = Ended(order, **future.result())
        except WorkerLostError as error:
            if self._begin_again(order_index, active):
                return
            ended = Ended(order, "failed", describe_failure(error))
            if self._interrupted:
                ended = Ended(order, "interrupted")
        except Exception as error:
            ended = Ended(order, "failed", describe_failure(error))
        if active.problem:  # the run folder here is incomplete, whatever the worker's outcome
            ended = Ended(order, "failed", active.problem)
        del self._active[order_index]
        active.claim.close()
        self._store_outcome(order_index, ended)

    def _begin_again(self, order_index: int, active: _Active) -> bool:
        """Hand a run to Ray again after its worker was lost, from the files that were sent last.

        Returns:
            Whether the run was handed to Ray. False after an interrupt, after an error, or if 20
            workers were lost with the run before.
        """
        if self._interrupted or active.problem or active.attempt >= MOST_TRIES:
            return False
        active.attempt += 1
        try:
            self._show_loss(order_index, active)
            self._submit(order_index, active)
        except (FedsimError, OSError) as error:
            active.problem = describe_failure(error, active.order.folder)
            return False
        return True

    def _show_loss(self, order_index: int, active: _Active) -> None:
        is_saved = state_of(active.order.folder, active.order.scenario) == "resume"
        where = f" on the node {active.node}" if active.node else ""
        continuation = "goes on from its newest part" if is_saved else "begins anew"
        count = f"{active.attempt} of {MOST_TRIES} times"
        text = f"its worker{where} was lost; it {continuation} ({count})"
        self._progress.take(order_index, {"event": "note", "text": text})

    def _store_outcome(self, order_index: int, ended: Ended) -> None:
        self._ended[order_index] = ended
        self._progress.ended(order_index, ended)
