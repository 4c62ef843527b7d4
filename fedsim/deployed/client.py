"""The ClientApp of an exported app."""

import time
from functools import cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsim.common.errors import SimulationError, shown
from fedsim.deployed.device import DeviceHalf
from fedsim.deployed.packing import Packet
from fedsim.deployed.records import ARRAYS, HEAD, from_records, to_records
from fedsim.running.scenario import load
from fedsim.version import __version__

PARTITION = "partition-id"
"""Key of a node's configuration: the number of the device, from 0."""


@cache
def _half(scenario: Path, device: int, pace: float) -> DeviceHalf:
    """Return the client half of a device, built once in a process."""
    return DeviceHalf(load(scenario, allow_code=True), device, pace)


def client_app(scenario: Path) -> ClientApp:
    """Return the ClientApp of a scenario, whose client half answers the server half.

    Args:
        scenario: the app's scenario file.
    """
    app = ClientApp()

    def hello(message: Message, context: Context) -> Message:
        device = _device_of(context)
        head = Packet({"device": device, "fedsim": __version__})
        return Message(to_records(head), reply_to=message)

    def train(message: Message, context: Context) -> Message:
        request = from_records(message.content)
        pace = context.run_config["pace"]
        assert isinstance(pace, int | float)
        began = request.head["began"]
        assert isinstance(began, int | float)

        def clock() -> float:
            return (time.time() - began) / (pace or 1.0)

        half = _half(scenario, _device_of(context), float(pace))
        memory = Packet({})
        if HEAD in context.state:
            memory = from_records(context.state)
        answer = half.answer(request, memory, clock)
        answer.head["task"] = request.head["task"]
        records = to_records(memory)
        context.state.pop(ARRAYS, None)
        context.state.update(records)
        return Message(to_records(answer), reply_to=message)

    app.query()(hello)
    app.train()(train)
    return app


def _device_of(context: Context) -> int:
    """Return the number of the device that a node is.

    Raises:
        SimulationError: the node's configuration has no such number.
    """
    device = context.node_config.get(PARTITION)
    if not isinstance(device, int):
        raise SimulationError(
            f"the node's configuration has {PARTITION} = {shown(device)}; allowed is the number "
            f"of the device, from 0: flower-supernode --node-config '{PARTITION}=0'"
        )
    return device
