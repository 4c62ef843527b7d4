"""Run of a strategy's server code in a deployment: a ``Run`` whose devices are real."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from fedsim.common.errors import SimulationError
from fedsim.deployed.tasks import RemoteTasks
from fedsim.federation.client_side import ClientSide
from fedsim.federation.contents import Contents, received
from fedsim.federation.envelopes import Envelopes, Request
from fedsim.federation.task_context import TaskContext
from fedsim.running.assembly import Run
from fedsim.world.steps import Task

if TYPE_CHECKING:
    from fedsim.world.task_runner import TaskRunner


@dataclass(slots=True)
class SentContext(TaskContext):
    """State of a real device's task from the request to the answer.

    Attributes:
        outgoing: contents of the request before encoding.
    """

    outgoing: Contents = field(default_factory=dict)


class SentEnvelopes(Envelopes):
    """Builder of requests for real devices; it stores their contents, to be encoded later."""

    def request(
        self, device: int, contents: Contents, job: str, round_number: int | None
    ) -> Request:
        request = super().request(device, contents, job, round_number)
        context = request.context
        sent = SentContext(context.instruction, brings_base=context.brings_base, outgoing=contents)
        return Request(request.steps, sent)


class RemoteClientSide(ClientSide):
    """Replacement, on the server, for the devices' code, which runs on other machines.

    It passes the contents of a device's answer to the strategy when the answer has arrived.
    """

    def on_answer_arrived(self, task: Task, context: TaskContext) -> Mapping[str, object]:
        if context.brings_base:
            self.devices.with_base.add(task.device)
        contents = {} if context.answer is None else context.answer.arriving
        return _Received(task, received(contents))


class _Received(dict[str, object]):
    """Contents of an answer by name; reading a missing content raises ``SimulationError``."""

    def __init__(self, task: Task, contents: Contents) -> None:
        super().__init__(contents)
        self._task = task

    def __missing__(self, name: str) -> object:
        names = ", ".join(map(repr, self)) or "nothing"
        raise SimulationError(
            f"the answer of device {self._task.device} to task {self._task.id} has {names}, and "
            f"the strategy reads {name!r}; does its node run the same app?"
        )


class ServerRun(Run):
    """Run of a strategy's server code in real time, in which real devices carry out the tasks.

    Attributes:
        remote: the tasks on real devices, and their answers.
    """

    envelopes_type = SentEnvelopes
    remote: RemoteTasks

    def _build_messages(self) -> None:
        super()._build_messages()
        self.dispatch.client_side = RemoteClientSide(
            self.simulation,
            self.learner,
            self._client_side.envelopes,
            self.dispatch.devices,
            self.scenario.training,
            self.local,
        )

    def _connect(self) -> None:
        self.remote = RemoteTasks(self.simulation, self.population, self.network, self.dispatch)
        self.tasks = cast("TaskRunner", self.remote)
        super()._connect()
