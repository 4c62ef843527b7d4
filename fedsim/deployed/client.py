"""The ClientApp of an exported app."""

import math
import time
from pathlib import Path

from flwr import __version__ as flower_version
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsim.common.errors import SimulationError, show_value
from fedsim.common.files import read_text
from fedsim.deployed.device import DeviceHalf
from fedsim.deployed.packing import Packet
from fedsim.deployed.reading import count_of, entry_of, finite_of
from fedsim.deployed.records import ARRAYS, HEAD, from_records, to_records
from fedsim.deployed.step_log import StepLog, log_folder
from fedsim.running.scenario import load
from fedsim.version import __version__

PARTITION = "partition-id"
"""Key of a node's configuration: the number of the device, from 0."""
SLEPT = ("all", "training")
"""Values of ``slept`` in the run configuration: the times of the scenario that a node imitates.

``all``: times of messages and of computations; ``training``: times of computations only. They have
an effect only if ``pace`` is above 0.
"""
_halves: dict[tuple[str, int, float, str], DeviceHalf] = {}


def client_half(scenario: Path, device: int, pace: float, slept: str) -> DeviceHalf:
    """Return the object that runs a strategy's client code for a device in a deployment.

    It is built once per process, and returned again at later calls.

    Args:
        scenario: the app's scenario file. Files with the same text have the same object.
        device: number of the device.
        pace: ``pace`` of the run configuration: real seconds per second of the scenario; 0 if the
            device works as fast as it can.
        slept: ``slept`` of the run configuration: the times of the scenario that the device
            imitates by sleeping if ``pace`` is above 0. ``all``: of messages and computations;
            ``training``: of computations only.

    Raises:
        SimulationError: ``slept`` has another value.
    """
    if slept not in SLEPT:
        raise SimulationError(
            f"the run configuration has slept = {show_value(slept)}; allowed are "
            f"{' and '.join(SLEPT)}"
        )
    key = (read_text(scenario), device, pace, slept)  # equal texts are one scenario
    if key not in _halves:
        loaded = load(scenario, allow_code=True)
        _halves[key] = DeviceHalf(loaded, device, pace, sleeps_links=slept == "all")
    return _halves[key]


def client_app(scenario: Path) -> ClientApp:
    """Return the Flower ClientApp of a scenario, which carries out the tasks of one device.

    Args:
        scenario: the app's scenario file.
    """
    app = ClientApp()

    def half_of(context: Context) -> DeviceHalf:
        pace = context.run_config["pace"]
        slept = context.run_config.get("slept", SLEPT[0])
        return client_half(scenario, _device_of(context), pace_of(pace), str(slept))

    def hello(message: Message, context: Context) -> Message:
        # ``half_of`` loads all modules and data that tasks need. A node that lacks one of them is
        # thus noticed before the run begins.
        device = half_of(context).device
        packet = Packet({"device": device, "fedsim": __version__, "flwr": flower_version})
        return Message(to_records(packet), reply_to=message)

    def train(message: Message, context: Context) -> Message:
        request = from_records(message.content)
        half = half_of(context)
        began = finite_of(entry_of(request.head, "began"), "began")
        task = count_of(entry_of(request.head, "task"), "task")

        def clock() -> float:
            """Return the present time by the server's clock (s)."""
            return (time.time() - began) / half.time_scale

        memory = Packet({})  # memory of the device; empty before the device's first task
        if HEAD in context.state:  # Flower stores the node's state between messages
            memory = from_records(context.state)
        answer = half.answer(request, memory, clock, StepLog(task, half.device, log_folder()))
        answer.head["task"] = task
        # if the new memory has no arrays, ``update`` alone would leave the old ones
        context.state.pop(ARRAYS, None)
        context.state.update(to_records(memory))
        return Message(to_records(answer), reply_to=message)

    app.query()(hello)
    app.train()(train)
    return app


def pace_of(value: object) -> float:
    """Check the key ``pace`` of the run configuration: real seconds per second of the scenario.

    Args:
        value: the value in the run configuration.

    Returns:
        The pace; 0 if nodes work as fast as they can, instead of sleeping to imitate the scenario.

    Raises:
        SimulationError: the value is not a finite number of at least 0.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0.0 <= float(str(value)) < math.inf:
        raise SimulationError(
            f"the run configuration has pace = {show_value(value)}; allowed are 0 (as fast as the "
            "nodes are) and numbers above 0 (real seconds in a second of the scenario)"
        )
    return float(str(value))


def _device_of(context: Context) -> int:
    """Return the number of the device for which a node acts, from the node's configuration.

    Raises:
        SimulationError: the node's configuration has no such number.
    """
    device = context.node_config.get(PARTITION)
    if not isinstance(device, int):
        raise SimulationError(
            f"the node's configuration has {PARTITION} = {show_value(device)}; allowed is the "
            f"number of the device, from 0: flower-supernode --node-config '{PARTITION}=0'"
        )
    return device
