"""Calls of a ClientApp for a message to a device, in the simulation's or a worker's process."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from inspect import unwrap

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde_utils import error_to_proto, metadata_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.flop_counter import FlopCounterMode

from fedsim.common.errors import SimulationError, show_value
from fedsim.flower.app import App
from fedsim.flower.app_errors import error_of_app
from fedsim.flower.app_half import AppHalf
from fedsim.flower.params import Config, FlowerParams, is_training
from fedsim.flower.patches import ClientCall, replace_all, running
from fedsim.flower.turns import call_in_thread


@dataclass(frozen=True)
class AppJob:
    """Arguments of a call of a ClientApp for a message to a device, to be sent to a worker.

    Attributes:
        params: values of the scenario's table ``[strategy]``.
        app: the app.
        run: ID of the run; a worker loads the app's modules again for another run.
        device: index of the device.
        devices: count of all devices.
        message: the message.
        state: ``context.state`` of the device after its previous message.
        seeds: two seeds of the global random generators: for loading the ClientApp, and for
            handling this message.
        counts: ``flops`` to count torch's operations, ``samples`` to count the samples that the
            model receives, None to count nothing.
    """

    params: FlowerParams
    app: App
    run: str
    device: int
    devices: int
    message: Message
    state: RecordDict
    seeds: tuple[int, int]
    counts: str | None


@dataclass(frozen=True)
class AppReply:
    """Result of a call of a ClientApp: the reply, the device's new state, and the cost.

    The simulated time of the device's work is computed from the cost.

    Attributes:
        reply: the ClientApp's reply.
        bytes: size of the reply (bytes).
        state: ``context.state`` of the device after the reply.
        examples: the reply's metric ``num-examples``; None if it is missing, negative or not
            finite.
        counted: count of FLOPs or samples, as ``AppJob.counts`` requests; None if nothing is
            counted.
        slept_s: time for which the app called ``time.sleep`` (s).
    """

    reply: Message
    bytes: int
    state: RecordDict
    examples: float | None
    counted: float | None
    slept_s: float


_loaded: dict[str, AppHalf] = {}  # ID of the present run -> this process's ClientApp; one entry


def carry_out(job: AppJob) -> AppReply:
    """Call the ClientApp for a message to a device, in this process.

    Args:
        job: the message, and the arguments of the call.

    Returns:
        The reply, and its cost.

    Raises:
        SimulationError: the ClientApp cannot be loaded, raises an error, returns no reply, or
            computes for longer than ``strategy.real_patience``.
    """
    replace_all()
    label = f"the ClientApp of device {job.device}"
    if job.run not in _loaded:  # the first message of the run in this process
        _loaded.clear()
        _loaded[job.run] = AppHalf(job.app, "client", job.seeds[0])
    half = _loaded[job.run]
    patience_s = job.params.real_patience

    def abandon() -> None:
        half.close()
        _loaded.pop(job.run, None)  # a later message of this run loads the ClientApp again

    return call_in_thread(
        lambda: _work(job, half, label), abandon, patience_s, job.app.folder, label
    )


def _work(job: AppJob, half: AppHalf, label: str) -> AppReply:
    """Call the ClientApp in this thread, and check and measure its reply."""
    message = job.message
    metadata = message.metadata
    app = half.loaded
    call = ClientCall(job.app.folder, metadata.created_at)
    context = Context(
        metadata.run_id,
        metadata.dst_node_id,
        job.params.node_config_of(job.device, job.devices),
        deepcopy(job.state),
        dict(job.app.config),
    )
    with ExitStack() as stack:
        stack.enter_context(half.in_use(job.seeds[1]))
        stack.enter_context(running(call))
        get_count = _start_counting(job, half, stack)
        try:
            reply = app(message, context)
        except BaseException as error:  # ``SystemExit`` too; a user's Ctrl-C is in another thread
            raise SimulationError(
                f"{label} raised {error_of_app(error, job.app.folder)}"
            ) from error
    _check_reply(reply, app, message, label)
    unmodified_reply = reply
    if isinstance(call.reply, Message) and call.reply.has_content():
        # mods (the app's wrappers of its function) may replace the content, such as by encrypted
        # data, in which no count of samples is found
        unmodified_reply = call.reply
    return AppReply(
        deepcopy(reply),
        bytes_of(reply),
        context.state,
        _examples_of(unmodified_reply),
        get_count(),
        call.slept_s,
    )


def _check_reply(reply: object, app: ClientApp, message: Message, label: str) -> None:
    """Raise ``SimulationError`` if the value that an app has returned is no reply to a message."""
    if (
        isinstance(reply, Message)
        and reply.metadata.reply_to_message_id == message.metadata.message_id
    ):
        return
    raise SimulationError(
        f"{label} answered with {show_value(reply)}, a {type(reply).__name__}; allowed is a "
        f"Message that is a reply to the one that it got{_format_function_line(app, message)}"
    )


def _examples_of(reply: Message) -> float | None:
    """Return a reply's metric ``num-examples``; None if it is missing, negative or not finite."""
    if reply.has_error():
        return None
    examples = find_metric(reply.content, "num-examples", "num_examples")
    if examples is None or not 0.0 <= examples < math.inf:
        return None
    return examples


def _start_counting(job: AppJob, half: AppHalf, stack: ExitStack) -> Callable[[], float | None]:
    """Start to count FLOPs or samples in this thread, as ``job.counts`` requests.

    Args:
        job: the call of the ClientApp.
        half: the ClientApp in use; samples are counted until this use ends.
        stack: exit stack of the caller; FLOPs are counted until it is closed.

    Returns:
        A function that returns the count; None if nothing is counted.
    """
    if job.counts is None:
        return lambda: None
    if job.counts == "flops":
        mode = stack.enter_context(FlopCounterMode(display=False))
        return lambda: float(mode.get_total_flops())
    samples = Counter[Module]()  # module -> samples; the first module called is the whole model
    is_train_message = is_training(job.message.metadata.message_type)

    def count(module: Module, inputs: tuple[object, ...]) -> None:
        # a forward pass without gradients is a test, whose samples do not count for a training
        if is_train_message and not torch.is_grad_enabled():
            return
        for value in inputs:
            if isinstance(value, torch.Tensor):
                samples[module] += len(value) if value.dim() > 1 else 1  # a vector is one sample
                return

    half.at_end_of_use(register_module_forward_pre_hook(count).remove)
    return lambda: float(next(iter(samples.values()), 0))


def _format_function_line(app: ClientApp, message: Message) -> str:
    """Format the file and line of the app's function that handles a message, for error messages."""
    category, _, action = message.metadata.message_type.partition(".")
    function = app._registered_funcs.get(f"{category}.{action or 'default'}") or app._call
    code = getattr(unwrap(function), "__code__", None)
    if code is None:
        return ""
    return f", in {code.co_filename.rpartition('/')[2]}, line {code.co_firstlineno}"


def config_of(message: Message, run_config: Config) -> dict[str, object]:
    """Merge the config records of a message with the app's run configuration.

    Args:
        message: message from the ServerApp.
        run_config: the app's run configuration.

    Returns:
        Key -> value; the message's value wins if both have a key.
    """
    config: dict[str, object] = {}
    for record in message.content.config_records.values():
        config.update(record)
    for key, value in run_config.items():
        config.setdefault(key, value)
    return config


def find_metric(content: Mapping[str, object], *names: str) -> float | None:
    """Return the value of a metric from the records of a message.

    Args:
        content: records by name. Config records are searched too, as legacy clients report
            metrics in them.
        names: alternative names of the metric.

    Returns:
        The first value found; None if no record has such a metric.
    """
    for record in content.values():
        if isinstance(record, MetricRecord | ConfigRecord):
            for name in names:
                value = record.get(name)
                if isinstance(value, int | float) and not isinstance(value, bool):
                    return float(value)
    return None


def bytes_of(message: Message, content_bytes: int | None = None) -> int:
    """Return the size of a message as Flower sends it (bytes).

    Flower sends each distinct object once, with a header. The message itself is an object too: its
    body has the metadata and the error, and its header refers to the content by an ID.

    Args:
        message: message with a content or an error.
        content_bytes: ``bytes_of_content`` of the message's content; None to compute it.
    """
    proto = metadata_to_proto(message.metadata)
    # Flower sends a message without its ID, which is a hash of the sent bytes
    proto.message_id = ""
    error = error_to_proto(message.error) if message.has_error() else None
    envelope = MessageProto(metadata=proto, content=None, error=error)
    body = len(envelope.SerializeToString(deterministic=True))
    # Flower's header has the type, the ID of the content, the length of the body, and a null byte
    head = len("Message ") + len(f" {body}\0")
    if error is None:
        head += 64  # length of the content's ID; a message with an error has no content
        if content_bytes is None:
            content_bytes = bytes_of_content(message.content)
    return head + body + (content_bytes or 0)


def bytes_of_content(content: RecordDict) -> int:
    """Return the serialised size of a message's content, in Flower's format (bytes)."""
    # Serialising an array stores chunks in the array, which would take memory as long as the
    # message lives. The chunks are therefore stored in a copy, which shares the arrays' bytes.
    objects = get_all_nested_objects(deepcopy(content))
    return sum(len(nested.deflate()) for nested in objects.values())
