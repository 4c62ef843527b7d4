"""``kind = "flower"``: an unmodified Flower app as a strategy."""

import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from numpy.typing import NDArray

from fedsim.common.errors import ScenarioError
from fedsim.federation.client import Client, Instruction, LocalResult, Real, RunInfo
from fedsim.federation.contents import Contents, Opaque, TaskEnd
from fedsim.federation.devices import Device
from fedsim.federation.evaluator import ModelAssignment
from fedsim.federation.server import Server
from fedsim.flower.app import read_app
from fedsim.flower.params import FlowerParams
from fedsim.strategies.base import Strategy, StrategyParams
from fedsim.world.task import Pause, Work


class FlowerClient(Client[FlowerParams]):
    """Has the ClientApp work; it alone knows what devices remember."""

    def __init__(self, params: FlowerParams, setting: RunInfo) -> None:
        super().__init__(params, setting)
        self._app = read_app(params.app, params.run_config)
        self._run = uuid.uuid4().hex
        self._states: dict[int, Any] = {}
        self._flops: dict[str, float] = {}  # of an example, by the kind of message
        self._counted: set[tuple[int, str]] = set()  # devices and kinds of messages

    def real(self, device: Device, instruction: Instruction) -> Real:
        from flwr.app import RecordDict

        from fedsim.flower.client_side import AppJob, carry_out

        number = device.number
        message = instruction[instruction.job]
        seeds = instruction["seeds"]
        by = self.params.time.kind
        first = (number, instruction.job) not in self._counted
        self._counted.add((number, instruction.job))
        due = instruction.job not in self._flops if by == "flops" else first and by == "samples"
        state = self._states.get(number, RecordDict())
        run = (self._run, number, self.setting.devices)
        return Real(
            carry_out,
            (AppJob(self.params, self._app, *run, message, state, seeds, by if due else None),),
        )

    def work(self, device: Device, instruction: Instruction) -> list[Pause | Work]:
        from fedsim.flower.client_side import config_of

        outcome = instruction.value
        config = config_of(instruction[instruction.job], self._app.config)
        self._states[device.number] = outcome.state
        examples = float(device.samples) if outcome.examples is None else outcome.examples
        if (
            self.params.time.kind == "flops"
            and instruction.job not in self._flops
            and outcome.counted
        ):
            self._flops[instruction.job] = outcome.counted / max(examples, 1.0)
        work = self.params.time.work(
            instruction.job, examples, self._flops.get(instruction.job), config
        )
        slept: list[Pause | Work] = [Pause("sleep", outcome.slept_s)] if outcome.slept_s else []
        return [*slept, work] if work else slept

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        return {
            f"{instruction.job}-reply": Opaque(instruction.value, float(instruction.value.bytes))
        }


class Flower(Strategy[FlowerParams]):
    """A Flower app between simulated devices: its ServerApp decides, its ClientApp computes;
    fedsim says how long all takes.

    Source: https://flower.ai, version 1.41 and later. What the ServerApp pushes is downloaded by
    the device, in the bytes in which Flower writes it; the ClientApp's work is carried out for
    real, and takes as long as ``time`` says; its reply is uploaded. A device takes one message at a
    time. One that vanishes is answered for, as Flower does, ``unavailable_after`` later. A newcomer
    is among ``get_node_ids`` from the time at which it can be reached.

    State: none that could be saved; the app's own thread has it.
    """

    Params: ClassVar[type[StrategyParams]] = FlowerParams
    Client = FlowerClient

    def __init__(self, params: FlowerParams, server: Server) -> None:
        super().__init__(params, server)
        try:
            from fedsim.flower.server_side import Session
        except ImportError as error:
            what = (
                "pip install 'flwr>=1.41' installs it, in an environment of its own "
                "(docs/flower.md)"
            )
            raise ScenarioError(
                f"strategy.kind is 'flower', but Flower cannot be imported ({error}); {what}"
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

    def tensors(self) -> Mapping[str, Mapping[str, NDArray[Any]]]:
        tensors = self.session.tensors()
        return {"global": tensors} if tensors else {}

    def why_no_accuracy(self) -> str | None:
        names = ", ".join(sorted(self.session.rounds.seen)) or "none"
        return (
            f"no metric of the app's was called {self.params.accuracy!r} (strategy.accuracy); "
            f"there were: {names}"
        )

    def facts(self) -> dict[str, Any]:
        return self.session.facts()

    def on_end(self) -> None:
        self.session.turns.close()
