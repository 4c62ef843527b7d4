"""The ClientApp at work: a message and a device's context in, a reply and the context out.

It runs in any process.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from inspect import unwrap
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common.serde_utils import error_to_proto, metadata_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.flop_counter import FlopCounterMode

from fedsim.common.errors import SimulationError, shown
from fedsim.flower.app import App, carried_out, error_of_app
from fedsim.flower.params import FlowerParams
from fedsim.flower.replaced import AppHalf, Sleeper, here, replace_all, where


@dataclass(frozen=True)
class AppJob:
    """A message that a device's ClientApp must answer."""

    params: FlowerParams
    app: App
    run: str  # another run begins with fresh modules
    device: int
    devices: int
    message: Message
    state: RecordDict  # what the device remembers
    # of the global generators: to load the ClientApp (one a run), and for this message
    seeds: tuple[int, int]
    # torch's operations (``flops``), or the samples that its model is given (``samples``)
    counts: str | None


@dataclass(frozen=True)
class AppReply:
    """The reply, and its cost."""

    reply: Message
    bytes: int  # of the reply
    state: RecordDict
    examples: float | None  # the reply's ``num-examples``
    counted: float | None
    slept_s: float


_loaded: dict[str, AppHalf] = {}  # of this process, by the run; one at a time


def carry_out(job: AppJob) -> AppReply:
    """Have the ClientApp answer; ``SimulationError`` if it cannot be loaded, raises, sends no
    message, or never ends.
    """
    replace_all()
    called = f"the ClientApp of device {job.device}"
    if job.run not in _loaded:
        _loaded.clear()
        _loaded[job.run] = AppHalf(job.app, "client", job.seeds[0])
    half = _loaded[job.run]
    return carried_out(
        lambda: _work(job, half, called), job.params.real_patience, job.app.folder, called
    )


def _work(job: AppJob, half: AppHalf, called: str) -> AppReply:
    message = job.message
    app = half.loaded
    sleeper = Sleeper(job.app.folder)
    ids = message.metadata.run_id, message.metadata.dst_node_id
    node_config = job.params.node_config_of(job.device, job.devices)
    context = Context(*ids, node_config, deepcopy(job.state), dict(job.app.config))
    with ExitStack() as around:
        around.enter_context(half.in_use(job.seeds[1]))
        around.enter_context(where(now_s=message.metadata.created_at, reply=None, sleeper=sleeper))
        counted = _counter(job, around)
        try:
            reply = app(message, context)
        except Exception as error:
            raise SimulationError(
                f"{called} raised {error_of_app(error, job.app.folder)}"
            ) from error
        own = here.reply
    if (
        not isinstance(reply, Message)
        or reply.metadata.reply_to_message_id != message.metadata.message_id
    ):
        wrong = (
            f"{shown(reply)}, a {type(reply).__name__}; allowed is a Message that is a reply to "
            "the one that it got"
        )
        raise SimulationError(f"{called} answered with {wrong}{_place_of(app, message)}")
    source = own if isinstance(own, Message) and own.has_content() else reply
    examples = (
        None if source.has_error() else figure(source.content, "num-examples", "num_examples")
    )
    examples = None if examples is not None and examples < 0 else examples
    return AppReply(
        deepcopy(reply), bytes_of(reply), context.state, examples, counted(), sleeper.slept_s
    )


def _counter(job: AppJob, around: ExitStack) -> Callable[[], float | None]:
    """Count until ``around`` is left; returns a function that returns the count."""
    if job.counts is None:
        return lambda: None
    if job.counts == "flops":
        mode = around.enter_context(FlopCounterMode(display=False))
        return lambda: float(mode.get_total_flops())
    given = Counter[Module]()  # samples; the first module called is the whole model
    trains = job.message.metadata.message_type.partition(".")[0] == "train"

    def count(module: Module, inputs: tuple[Any, ...]) -> None:
        batch = next((one for one in inputs if isinstance(one, torch.Tensor)), None)
        # a test within a training does not count
        if batch is not None and (torch.is_grad_enabled() or not trains):
            given[module] += len(batch) if batch.dim() > 1 else 1

    around.callback(register_module_forward_pre_hook(count).remove)
    return lambda: float(next(iter(given.values()), 0))


def _place_of(app: Any, message: Message) -> str:
    category, _, action = message.metadata.message_type.partition(".")
    function = app._registered_funcs.get(f"{category}.{action or 'default'}") or app._call
    code = getattr(unwrap(function), "__code__", None)
    return (
        ""
        if code is None
        else f", in {code.co_filename.rpartition('/')[2]}, line {code.co_firstlineno}"
    )


def config_of(message: Message, run_config: Mapping[str, Any]) -> dict[str, Any]:
    """The configs of a message, before the app's run configuration."""
    own = {
        key: value
        for record in message.content.config_records.values()
        for key, value in record.items()
    }
    return {**own, **run_config, **own}


def figure(content: Mapping[str, Any], *names: str) -> float | None:
    """The first number of one of these names in the metrics (or, of legacy clients, the configs)
    of a message.
    """
    for record in content.values():
        if isinstance(record, MetricRecord | ConfigRecord):
            for name in names:
                value = record.get(name)
                if isinstance(value, int | float) and not isinstance(value, bool):
                    return float(value)
    return None


def bytes_of(message: Message, of_content: int | None = None) -> int:
    """The bytes of a message as Flower sends it, every different object once with its head;
    ``of_content`` if known.
    """
    proto = metadata_to_proto(message.metadata)
    proto.message_id = ""
    error = error_to_proto(message.error) if message.has_error() else None
    body = len(
        MessageProto(metadata=proto, content=None, error=error).SerializeToString(
            deterministic=True
        )
    )
    # of its content the id
    head = len("Message ") + len(f" {body} ") + (0 if error is not None else 64)
    if error is None and of_content is None:
        of_content = bytes_of_content(message.content)
    return head + body + (of_content or 0)


def bytes_of_content(content: RecordDict) -> int:
    """The bytes of a content; of a copy (which shares them), as arrays keep the pieces in which
    they are written.
    """
    return sum(len(each.deflate()) for each in get_all_nested_objects(deepcopy(content)).values())
