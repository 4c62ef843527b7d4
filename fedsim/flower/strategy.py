"""``kind = "flower"``: an unmodified Flower app as a strategy."""

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import ScenarioError
from fedsim.federation.client import Client, Instruction, LocalResult, Real, RunInfo
from fedsim.federation.contents import Contents, Opaque
from fedsim.federation.devices import Device
from fedsim.federation.events import TaskEnd
from fedsim.federation.round_result import ModelAssignment
from fedsim.federation.server import Server
from fedsim.flower.app import read_app
from fedsim.flower.params import FlowerParams
from fedsim.strategies.base import Strategy
from fedsim.strategies.params import StrategyParams
from fedsim.world.steps import Pause, Work

if TYPE_CHECKING:
    from flwr.app import RecordDict

    from fedsim.flower.client_side import AppReply


class FlowerClient(Client[FlowerParams]):
    """Client that calls the app's ClientApp for each message, and stores the devices' states."""

    def __init__(self, params: FlowerParams, setting: RunInfo) -> None:
        super().__init__(params, setting)
        self._app = read_app(params.app, params.run_config)
        self._run = uuid.uuid4().hex
        self._states: dict[int, RecordDict] = {}
        self._flops: dict[str, float] = {}  # type of message -> FLOPs of an example
        # pairs of a device and a type of message that the device has received before
        self._handled: set[tuple[int, str]] = set()

    def real(self, device: Device, instruction: Instruction) -> Real:
        from flwr.app import RecordDict

        from fedsim.flower.client_side import AppJob, carry_out

        number = device.number
        app_job = AppJob(
            params=self.params,
            app=self._app,
            run=self._run,
            device=number,
            devices=self.setting.devices,
            message=instruction[instruction.job],
            state=self._states.get(number, RecordDict()),
            seeds=instruction["seeds"],
            counts=self._quantity_to_count(number, instruction.job),
        )
        return Real(carry_out, (app_job,))

    def _quantity_to_count(self, device: int, kind: str) -> str | None:
        """Return which quantity is counted while a device's ClientApp handles a message.

        The call also stores that the device has had a message of this type.

        Args:
            device: index of the device.
            kind: Flower's type of the message.

        Returns:
            With ``strategy.time = "flops"``: ``flops`` until a message of this type was counted.
            With ``"samples"``: ``samples`` for the device's first message of this type. None for
            all other messages.
        """
        is_first = (device, kind) not in self._handled
        self._handled.add((device, kind))
        time = self.params.time.kind
        if time == "flops" and kind not in self._flops:
            return "flops"
        if time == "samples" and is_first:
            return "samples"
        return None

    def work(self, device: Device, instruction: Instruction) -> list[Pause | Work]:
        from fedsim.flower.client_side import config_of

        outcome: AppReply = instruction.value
        kind = instruction.job
        config = config_of(instruction[kind], self._app.config)
        self._states[device.number] = outcome.state
        examples = float(device.samples) if outcome.examples is None else outcome.examples
        counts_flops = self.params.time.kind == "flops"
        # only the first message of a type is counted
        if counts_flops and kind not in self._flops and outcome.counted:
            self._flops[kind] = outcome.counted / max(examples, 1.0)
        steps: list[Pause | Work] = []
        if outcome.slept_s:
            steps.append(Pause("sleep", outcome.slept_s))
        work = self.params.time.work(kind, examples, self._flops.get(kind), config)
        if work:
            steps.append(work)
        return steps

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        outcome: AppReply = instruction.value
        return {f"{instruction.job}-reply": Opaque(outcome, float(outcome.bytes))}


class Flower(Strategy[FlowerParams]):
    """Strategy that runs a Flower app on simulated devices: its ServerApp and ClientApp.

    Source: https://flower.ai, version 1.41 and later.

    For each message that the ServerApp pushes, a device does three steps:

    1. It downloads the message, with the size of Flower's serialised message.
    2. The ClientApp's code is executed for real. In simulated time this takes as long as
       ``strategy.time`` says.
    3. The device uploads the reply.

    A device handles one message at a time. If the device disconnects, the ServerApp gets Flower's
    error ``NODE_UNAVAILABLE`` as the reply, after the time ``strategy.unavailable_after``. A device
    that joins later is among ``get_node_ids`` as soon as it is available.

    A run cannot be saved, as the state of the app is in its thread.
    """

    Params: ClassVar[type[StrategyParams]] = FlowerParams
    Client = FlowerClient

    def __init__(self, params: FlowerParams, server: Server) -> None:
        super().__init__(params, server)
        try:
            from fedsim.flower.server_side import Session
        except ImportError as error:
            raise ScenarioError(
                f"strategy.kind is 'flower', but Flower cannot be imported ({error}); "
                "pip install 'flwr>=1.41' installs it, in an environment of its own "
                "(docs/flower.md)"
            ) from error
        self.session = Session(params, server)

    async def on_start(self) -> None:
        await self.session.begin()

    async def on_task_end(self, message: TaskEnd) -> None:
        self.session.on_task_end(message)

    async def on_timer(self, name: str) -> None:
        await self.session.on_timer(name)

    async def on_return(self, device: int) -> None:
        self.session.on_return(device)

    def models(self) -> ModelAssignment:
        return {}

    def tensors(self) -> Mapping[str, Mapping[str, AnyArray]]:
        tensors = self.session.tensors()
        return {"global": tensors} if tensors else {}

    def why_no_accuracy(self) -> str | None:
        names = ", ".join(sorted(self.session.rounds.seen)) or "none"
        return (
            f"no metric of the app's was called {self.params.accuracy!r} (strategy.accuracy); "
            f"there were: {names}"
        )

    def facts(self) -> dict[str, object]:
        return self.session.facts()

    def on_end(self) -> None:
        self.session.close()
